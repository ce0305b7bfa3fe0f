"""What the lines of SGLang's own log say of decode steps and of the server, whatever its version.

Known from SGLang 0.5.16 to 0.5.23, and the older form that ends the words `Decode batch` with a full stop:

    [2026-11-30 02:40:11 TP0] Decode batch, #running-req: 4, #token: 812, token usage: 0.05, accept len: 3.62,
    accept rate: 0.87, cuda graph: True, gen throughput (token/s): 911.38, #queue-req: 0

Fields are looked up by name, so more of them, and another order, do not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

# `decode_log_interval` of a server that was told nothing else.
DEFAULT_LOG_STEPS = 40
_STAMP = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d{3}))?"
    r"(?P<ranks>(?: [A-Z_]+\d+)*)\] "
)
_RANK = re.compile(r"([A-Z_]+)(\d+)")
_NUMBER = r":\s*(-?\d+(?:\.\d+)?)(?=[,\s]|$)"
_RUNNING = re.compile(r"#running-req" + _NUMBER)
_QUEUED = re.compile(r"#queue-req" + _NUMBER)
_TOKENS = re.compile(r"#(?:full )?token" + _NUMBER)
_ACCEPT = re.compile(r"\baccept len" + _NUMBER)
_THROUGHPUT = re.compile(r"gen throughput \(token/s\)" + _NUMBER)
_NEW_TOKENS = re.compile(r"#new-token" + _NUMBER)
_GRAPH = re.compile(r"\b\w+ graph:\s*(True|False)")
_SWITCH = re.compile(r"Switch adaptive runtime state: steps (\d+) -> (\d+)")
_BUILT = re.compile(r"Built adaptive runtime state steps=(\d+)")
_CAPACITY = re.compile(r"\bmax_total_num_tokens=(\d+)")
_RUNNABLE = re.compile(r"\bmax_running_requests=(\d+)")


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a line was written, and by which ranks; `wall_ns` is the server's wall clock read as if it were UTC.

    `dp_rank` is None where the line does not say it: there is one rank, or all of them are meant.
    """

    wall_ns: int
    dp_rank: int | None
    pp_rank: int


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """What a line says of the decode steps since the one before.

    Attributes:
        accept_len: Tokens that a request got out of a step on average; None from a server without speculation.
        tokens_per_s: Tokens that came out, over all the time since the line before.
        graph: Whether the last step ran from a captured graph; None if it does not say.
    """

    running: int
    queued: int
    tokens: int | None
    accept_len: float | None
    tokens_per_s: float
    graph: bool | None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server said when it started.

    Attributes:
        steps: Drafts a step that it starts with; 0 without speculation.
        speculative: Whether it speculates at all.
        adaptive: Whether it changes its steps, and says so.
        log_steps: Decode steps that a line is about.
        max_running_requests: 0 if it was not said.
        cost_key: Fields of `CostKey`.
    """

    steps: int
    speculative: bool
    adaptive: bool
    log_steps: int
    max_running_requests: int
    cost_key: dict[str, str | int]


def stamp_of(line: str) -> Stamp | None:
    """When and by whom the line was written; None if it does not begin as a line of the log does."""
    found = _STAMP.search(line)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    wall_ns = int(at.timestamp()) * 1_000_000_000 + int(found[2] or 0) * 1_000_000
    ranks = dict(_RANK.findall(found["ranks"]))
    return Stamp(wall_ns, int(ranks["DP"]) if "DP" in ranks else None, int(ranks.get("PP", 0)))


def is_decode_line(line: str) -> bool:
    """Whether the line is one about decode steps."""
    return "Decode batch" in line and "#running-req" in line


def decode_line(line: str) -> DecodeLine | None:
    """What it says; None if something is missing or makes no sense, as where two processes wrote at once."""
    running, per_s = _float(_RUNNING, line), _float(_THROUGHPUT, line)
    if line.count("#running-req") != 1 or running is None or per_s is None or not running.is_integer() or running < 0:
        return None
    tokens, graph, accept_len = _float(_TOKENS, line), _GRAPH.search(line), _float(_ACCEPT, line)
    if accept_len is None and "accept len" in line:
        return None
    return DecodeLine(
        running=int(running),
        queued=int(_float(_QUEUED, line) or 0),
        tokens=None if tokens is None else int(tokens),
        accept_len=accept_len,
        tokens_per_s=per_s,
        graph=None if graph is None else graph[1] == "True",
    )


def prefilled_tokens(line: str) -> int | None:
    """Prompt tokens that a line says were computed; None if it is about something else."""
    if "Prefill batch" not in line:
        return None
    return int(_float(_NEW_TOKENS, line) or 0)


def switched_steps(line: str) -> tuple[int, int] | None:
    """From how many steps to how many the server has switched, if the line says that."""
    found = _SWITCH.search(line)
    return (int(found[1]), int(found[2])) if found else None


def built_steps(line: str) -> int | None:
    """The step count for which the server says that it is ready, if the line says that."""
    found = _BUILT.search(line)
    return int(found[1]) if found else None


def capacities(line: str) -> tuple[int, int] | None:
    """Tokens and requests that the server has room for, if the line says that."""
    tokens, requests = _CAPACITY.search(line), _RUNNABLE.search(line)
    return (int(tokens[1]), int(requests[1])) if tokens and requests else None


def server_facts(line: str) -> ServerFacts | None:
    """What the line with the server's arguments says; None for other lines."""
    if "server_args=" not in line:
        return None
    arguments = line.split("server_args=", 1)[1]
    algorithm = _argument(arguments, "speculative_algorithm")
    steps = int(_argument(arguments, "speculative_num_steps") or 0) if algorithm else 0
    key = {
        "model": _argument(arguments, "model_path"),
        "draft_model": _argument(arguments, "speculative_draft_model_path"),
        "attention_backend": _argument(arguments, "attention_backend"),
        "dtype": _argument(arguments, "dtype"),
        "kv_cache_dtype": _argument(arguments, "kv_cache_dtype"),
        "tp_size": int(_argument(arguments, "tp_size") or 0),
    }
    return ServerFacts(
        steps=steps,
        speculative=bool(algorithm),
        adaptive=_argument(arguments, "speculative_adaptive") == "True",
        log_steps=int(_argument(arguments, "decode_log_interval") or DEFAULT_LOG_STEPS),
        max_running_requests=int(_argument(arguments, "max_running_requests") or 0),
        cost_key={name: value for name, value in key.items() if value},
    )


def _argument(arguments: str, name: str) -> Any:
    """A server argument as text, from `name=value` or `'name': value`; None if it is not set."""
    found = re.search(rf"(?<![\w]){name}'?(?:=|:\s*)(?:'([^']*)'|\"([^\"]*)\"|(\w+))", arguments)
    if found is None or found[3] == "None":
        return None
    return found[1] or found[2] or found[3]


def _float(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    return float(found[1]) if found else None
