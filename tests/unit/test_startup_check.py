"""The start-up check on case c11 and beyond: which settings leave the steps under control, and why others do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.unlinked_engine import Unlinked
from trimtab_sglang import host
from trimtab_sglang.startup_check import Outcome, StartSettings, judge, start_settings
from trimtabpb.v1 import control_pb2 as pb

CASE = Path(__file__).resolve().parents[1] / "data" / "cases" / "c11_candidates_and_limits.jsonl"
LINES = [json.loads(line) for line in CASE.read_text().splitlines()]
CONFIGS = [line for line in LINES if line["kind"] == "config"]
LEASES = [line for line in LINES if line["kind"] == "call"]
WANTED = {
    "ok": {Outcome.OK},
    "trim_or_refuse": {Outcome.TRIM, Outcome.REFUSE},
    "ok_or_refuse": {Outcome.OK, Outcome.REFUSE},
    "refuse": {Outcome.REFUSE},
    "refuse_adaptive": {Outcome.REFUSE_ADAPTIVE},
}
SOUND = StartSettings("EAGLE", 1, 3, 4, (0, 1, 3, 7))


def settings_of(case: dict[str, Any]) -> StartSettings:
    """The settings of a line of the case, by the names that we have for them."""
    given = dict(case)
    return StartSettings(
        largest_graph=given.pop("cuda_graph_max_bs"),
        graph_memory_gib=given.pop("free_gpu_gib_for_graphs"),
        state_memory_gib=given.pop("gib_per_state_estimate"),
        candidate_steps=tuple(given.pop("candidate_steps")),
        **given,
    )


@pytest.mark.parametrize("line", CONFIGS, ids=lambda line: line["id"])
def test_the_verdict_on_a_configuration_of_the_case(line: dict[str, Any]) -> None:
    wanted, verdict = line["expect"], judge(settings_of(line["args"]))
    assert verdict.outcome in WANTED[wanted["result"]]
    if "needs_rows" in wanted:
        assert verdict.needs_rows == wanted["needs_rows"]
    if "fits" in wanted:
        assert list(verdict.fits) == wanted["fits"]
    if "max_states" in wanted:
        assert len(verdict.fits) <= wanted["max_states"]
    if "names" in wanted:
        assert verdict.setting == wanted["names"]
    if wanted.get("still_runs") == "static":
        assert verdict.outcome is Outcome.REFUSE_ADAPTIVE
    if verdict.outcome is not Outcome.OK:
        assert len(verdict.reason) > 30


@pytest.mark.parametrize("line", LEASES, ids=lambda line: f"k={line['args']['k']}")
def test_a_lease_for_steps_that_were_not_built_is_refused_and_what_ran_goes_on(line: dict[str, Any]) -> None:
    unlinked = Unlinked(candidates=line["engine_states"])
    engine = unlinked.engine
    engine.admit(2)
    assert engine.decode(1) == [3]
    lease = pb.Lease(version=1, nonce=1, smoothing=1.0)
    lease.ttl.seconds = 2
    # A count below zero does not fit the field: it arrives as an absurd one.
    steps = line["args"]["k"] % (1 << 32)
    kind = pb.Mode.KIND_SPECULATE if steps else pb.Mode.KIND_PLAIN_WARM
    lease.table.add(min_batch_size=1, mode=pb.Mode(kind=kind, steps=steps), probability=1.0)
    ack = unlinked.link.take_lease(lease).ack
    assert ack.accepted == line["expect"]["ack"]
    if "reason" in line["expect"]:
        assert pb.Refusal.Name(ack.refusal) == f"REFUSAL_{line['expect']['reason'].upper()}"
    assert engine.decode(1) == [line["expect"]["k_after"]]


@pytest.mark.parametrize(
    ("changes", "setting", "offers_plain"),
    [
        ({"topk": 4}, "topk", True),
        ({"topk": 4, "lora": True}, "topk", False),
        ({"lora": True}, "lora", False),
        ({"dp_attention": True}, "dp_attention", False),
        ({"pdmux": True}, "pdmux", False),
        ({"two_batch_overlap": True}, "two_batch_overlap", False),
        ({"multi_layer_eagle": True}, "multi_layer_eagle", False),
        ({"algorithm": "NGRAM"}, "algorithm", False),
    ],
    ids=str,
)
def test_where_steps_are_refused_the_verdict_says_whether_plain_could_be_offered_without_them(
    changes: dict[str, Any], setting: str, offers_plain: bool
) -> None:
    verdict = judge(replace(SOUND, **changes))
    assert (verdict.outcome, verdict.setting, verdict.offers_plain) == (Outcome.REFUSE_ADAPTIVE, setting, offers_plain)


def test_what_does_not_fit_is_trimmed_to_start_plain_and_widest_first() -> None:
    six = replace(SOUND, candidate_steps=(0, 1, 2, 3, 5, 7), graph_memory_gib=4.0, state_memory_gib=1.0)
    assert judge(six).fits == (0, 1, 3, 7)
    assert judge(replace(six, graph_memory_gib=2.5)).fits == (0, 3)
    nothing = judge(replace(six, graph_memory_gib=1.5))
    assert (nothing.outcome, nothing.fits) == (Outcome.REFUSE, (3,))
    assert judge(six).reason == "6 step counts of 1 GiB do not fit into 4 GiB; 4 do: take the steps 0, 1, 3, 7 only"


def test_without_graphs_and_without_a_figure_nothing_is_trimmed() -> None:
    assert judge(SOUND).outcome is Outcome.OK
    assert judge(replace(SOUND, largest_graph=32)).needs_rows == 256
    assert judge(replace(SOUND, largest_graph=32)).outcome is Outcome.OK


def test_settings_are_read_by_sglangs_names() -> None:
    server = {
        "speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4, "enable_lora": True, "cuda_graph_max_bs_decode": 64,
    }  # fmt: skip
    found = start_settings(server, [0, 3])
    assert found == StartSettings("EAGLE3", 1, 3, 4, (0, 3), lora=True, largest_graph=64)
    assert start_settings({**server, "disable_cuda_graph": True}).largest_graph == 0
    assert start_settings({}) == StartSettings()


CHECK: dict[str, Any] = {
    "outcome": "ok", "setting": "", "reason": "", "fits": [0, 1, 3], "needs_rows": 128, "offers_plain": False,
    "adaptive_asked_for": True, "reserved_kv_tokens": 8,
}  # fmt: skip
PAGES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {},
        [
            "A server with these flags: ok",
            "  steps under control: 0, 1, 3",
            "  KV tokens kept free by each running request, in plain as well: 8",
            "  rows of logits that the widest graph writes: 128",
        ],
    ),
    (
        {"outcome": "refuse_adaptive", "reason": "topk is 4: no", "fits": [], "needs_rows": 0, "offers_plain": True},
        [
            "A server with these flags: refuse_adaptive: topk is 4: no",
            "  native plain decoding does not depend on any of this",
        ],
    ),
    (
        {"adaptive_asked_for": False, "needs_rows": 0},
        [
            "A server with these flags: ok",
            "  steps under control: 0, 1, 3",
            "  KV tokens kept free by each running request, in plain as well: 8",
            "  --speculative-adaptive is missing: the server would run fixed steps",
        ],
    ),
]


@pytest.mark.parametrize(("changes", "lines"), PAGES, ids=["ok", "refused", "not asked for"])
def test_the_page_says_it_in_a_few_lines(changes: dict[str, Any], lines: list[str]) -> None:
    assert host.render_server(CHECK | changes).splitlines() == lines


def test_without_sglang_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert host.main(["--server", "--speculative-adaptive"]) == 1
    assert capsys.readouterr().out == "SGLang is not installed in this environment: install Trimtab beside it.\n"
