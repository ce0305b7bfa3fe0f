"""What the plugin reads off a scheduler, and why it may only observe beside some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.hooked_engine import CANDIDATES, GRAPH_SIZES, EmbeddedEngine
from trimtab_sglang.facts import EngineFacts, HookStatus, Ranks, read_facts, reasons_to_observe
from trimtab_sglang.lease import modes_of
from trimtab_sglang.sampling import sample_scheduler

ADAPTIVE = {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True}


def facts(server: dict[str, Any] | None = None, **fields: Any) -> EngineFacts:
    return EngineFacts(
        **{
            "sglang_version": "0.5.23",
            "ranks": Ranks(),
            "server": ADAPTIVE if server is None else server,
            "adaptive": True,
            "candidate_steps": (0, 1, 3),
            **fields,
        }
    )


HOOKED = [HookStatus("a.b", True)]
NO_PLACE = [HookStatus("a.b", True), HookStatus("c.d", False, "this SGLang has no such place")]

REASONS: list[tuple[EngineFacts, list[HookStatus], bool, list[str]]] = [
    (facts(), HOOKED, True, []),
    (facts(), NO_PLACE, True, ["hook not in place: c.d: this SGLang has no such place"]),
    (facts(), HOOKED, False, ["SGLang 0.5.23 is not one that this plugin was tried with"]),
    (facts(ranks=Ranks(tp_size=4, dp_size=8)), HOOKED, True, []),
    (
        facts(ranks=Ranks(tp_size=4, pp_size=2)),
        HOOKED,
        True,
        ["pipeline parallel size 2: only the last stage drafts; not supported"],
    ),
    (facts(candidate_steps=(3,)), HOOKED, True, ["only one candidate step count: [3]"]),
    (
        facts({"speculative_algorithm": None}, adaptive=False, candidate_steps=()),
        HOOKED,
        True,
        ["the server runs without speculative decoding"],
    ),
    (
        facts({"speculative_algorithm": "EAGLE", "speculative_adaptive": False}, adaptive=False),
        HOOKED,
        True,
        ["the server runs without --speculative-adaptive, so there is one step count only"],
    ),
    (
        facts({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}, adaptive=False),
        HOOKED,
        True,
        [
            "the server runs without --speculative-adaptive, so there is one step count only (topk is 4: trees of "
            "drafts have no adaptive steps; set --speculative-eagle-topk 1)"
        ],
    ),
    (
        facts({**ADAPTIVE, "enable_lora": True}),
        HOOKED,
        True,
        ["lora is True: the draft worker keeps a snapshot of one step count; serve without LoRA"],
    ),
    (
        facts(adaptive=False),
        HOOKED,
        True,
        ["SGLang did not build its adaptive policy, or another plugin replaced it"],
    ),
]


@pytest.mark.parametrize(("found", "hooks", "known", "reasons"), REASONS)
def test_why_the_plugin_only_observes(
    found: EngineFacts, hooks: list[HookStatus], known: bool, reasons: list[str]
) -> None:
    assert reasons_to_observe(found, hooks, known) == reasons


def test_the_facts_of_an_embedded_engine() -> None:
    found = EmbeddedEngine().plugin.facts
    assert found is not None
    assert (found.sglang_version, found.ranks, found.adaptive) == ("embedded", Ranks(), True)
    assert (found.candidate_steps, found.graph_batch_sizes) == (CANDIDATES, GRAPH_SIZES)
    assert (found.max_running_requests, found.kv_capacity_tokens) == (256, 500_000)
    assert found.modes == modes_of(CANDIDATES)
    assert found.text("speculative_algorithm") == "EAGLE3"
    assert (found.text("nothing"), found.number("nothing", 1.5), found.number("model_path")) == ("", 1.5, 0)
    assert found.boot_id != facts().boot_id


def scheduler(server: Any, **fields: Any) -> Any:
    return SimpleNamespace(server_args=server, **fields)


@pytest.mark.parametrize(
    ("server", "told", "sizes"),
    [
        ({}, None, ()),
        ({}, [1, 2], (1, 2)),
        ({"cuda_graph_bs_decode": [8, 1]}, None, (1, 8)),
        ({"cuda_graph_bs": (4, 2)}, None, (2, 4)),
        ({"cuda_graph_bs": [4, 2], "disable_cuda_graph": True}, None, ()),
        ({"cuda_graph_bs": 64}, None, ()),
    ],
)
def test_graph_sizes_are_those_the_policy_was_told_or_those_of_the_settings(
    server: dict[str, Any], told: list[int] | None, sizes: tuple[int, ...]
) -> None:
    assert read_facts(scheduler(SimpleNamespace(**server)), [3], told).graph_batch_sizes == sizes


def test_resolved_settings_go_before_those_that_were_asked_for() -> None:
    server = SimpleNamespace(tp_size=1, resolved_dict=lambda: {"tp_size": 2})
    assert read_facts(scheduler(server), None, None).ranks.tp_size == 2


class Unwritten:
    """A context of SGLang's whose fields raise until they are written."""

    pp_rank = 1

    @property
    def tp_rank(self) -> int:
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    ("fields", "tp_rank", "pp_rank", "speaks"),
    [
        ({}, 0, 0, True),
        ({"tp_rank": 1}, 1, 0, False),
        ({"ps": SimpleNamespace(tp_rank=2, pp_rank=0), "tp_rank": 1}, 2, 0, False),
        ({"ps": Unwritten(), "tp_rank": 0}, 0, 1, False),
    ],
)
def test_ranks_come_from_wherever_this_version_keeps_them(
    fields: dict[str, Any], tp_rank: int, pp_rank: int, speaks: bool
) -> None:
    ranks = read_facts(scheduler(SimpleNamespace(tp_size=4), **fields), None, None).ranks
    assert (ranks.tp_size, ranks.tp_rank, ranks.pp_rank, ranks.speaks) == (4, tp_rank, pp_rank, speaks)


def test_a_scheduler_without_an_adaptive_policy_has_no_candidates() -> None:
    found = read_facts(scheduler(SimpleNamespace()), None, None)
    assert (found.adaptive, found.candidate_steps, found.modes) == (False, (), ())


# -- samples -------------------------------------------------------------------------------------


def test_what_is_sampled_once_a_report() -> None:
    engine = EmbeddedEngine()
    engine.admit(3)
    engine.decode(1)
    engine.running[0].grammar = object()
    engine.running[1].lora_id = "a"
    engine.scheduler.waiting_queue = [engine.shape.Req("w")]
    engine.scheduler.token_to_kv_pool_allocator.used = 1234
    assert sample_scheduler(engine.scheduler) == (
        3,
        {
            "waiting_requests": 1, "greedy_requests": 3, "grammar_requests": 1, "lora_requests": 1,
            "kv_used_tokens": 1234,
        },
    )  # fmt: skip


def test_what_cannot_be_read_is_left_out() -> None:
    bare = SimpleNamespace(running_batch=SimpleNamespace(reqs=[1, 2]), waiting_queue=[])
    assert sample_scheduler(bare) == (2, {"waiting_requests": 0})
    assert sample_scheduler(None) == (0, {})
