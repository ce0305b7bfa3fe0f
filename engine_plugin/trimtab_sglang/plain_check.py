"""The part of the self-check that says, before a server starts, what native plain will take of its memory."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from trimtab_sglang.plain_memory import MIB, PlainMemory, Server, estimate, read_config
from trimtab_sglang.settings import DEFAULT_CATCH_UP_MIB

TEXTS = {"model": "", "draft": "", "algorithm": "EAGLE3", "attention-backend": "fa3"}
# SGLang's own defaults beside speculation, and the plugin's.
NUMBERS = {
    "max-running-requests": 48, "graph-batch": 48, "context-length": 8192, "tp-size": 1,
    "catch-up-mib": DEFAULT_CATCH_UP_MIB,
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let the server be described by SGLang's own names; `--model` and `--draft` are the models' folders."""
    group = parser.add_argument_group("what native plain will take of a server with these settings, on each rank")
    for defaults, kind in ((TEXTS, str), (NUMBERS, int)):
        for name, default in defaults.items():
            group.add_argument(f"--{name}", type=kind, default=default, help=f"default {default or 'none'}")


def expected(options: argparse.Namespace) -> PlainMemory | None:
    """What native plain will take; None if no model was named.

    Raises:
        ValueError: A model's configuration cannot be read.
    """
    if not options.model:
        return None
    server = Server(
        target=read_config(options.model),
        draft=read_config(options.draft or options.model),
        algorithm=options.algorithm,
        requests=options.max_running_requests,
        graph_batch=options.graph_batch,
        context_tokens=options.context_length,
        attention_backend=options.attention_backend,
        tp_size=options.tp_size,
    )
    return estimate(server, options.catch_up_mib * MIB)


def as_json(memory: PlainMemory | None) -> dict[str, Any] | None:
    """The figures by name."""
    return None if memory is None else {**asdict(memory), "kv_tokens": memory.kv_tokens}


def render(memory: PlainMemory | None) -> list[str]:
    """The figures for people."""
    if memory is None:
        return []
    if not memory.window_tokens:
        return ["Native plain would be refused: TRIMTAB_CATCH_UP_MIB is too small for so many requests."]
    graph = f"about {memory.graph_bytes / MIB:,.0f} MiB" if memory.graph_bytes else "what the attention backend takes"
    return [
        f"Native plain would take {memory.ring_bytes / MIB:,.0f} MiB for {memory.window_tokens} unread tokens a request"
        f" and {graph} for its decode graph: the memory of {memory.kv_tokens:,} KV tokens."
    ]
