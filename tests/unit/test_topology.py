"""Where the plugin acts, and why not elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab_sglang.facts import Ranks, read_facts
from trimtab_sglang.topology import SUPPORT, describe, topology_reasons, unfit_for_dp_attention

DP_ATTENTION = Ranks(tp_size=4, dp_size=2, dp_attention=True)

ACTS: list[tuple[Ranks, bool, str]] = [
    (Ranks(), False, "one rank"),
    (Ranks(tp_size=8), False, "tensor parallel 8"),
    (Ranks(dp_size=4, dp_rank=3), False, "replica 3 of 4"),
    (Ranks(tp_size=2, dp_size=2), False, "replica 0 of 2, tensor parallel 2"),
    (DP_ATTENTION, True, "data-parallel attention 2, tensor parallel 4"),
]


@pytest.mark.parametrize(("ranks", "lifted", "words"), ACTS)
def test_where_the_plugin_acts(ranks: Ranks, lifted: bool, words: str) -> None:
    assert topology_reasons(ranks, {}, lifted, {}) == []
    assert describe(ranks) == words


OBSERVES: list[tuple[Ranks, dict[str, Any], bool, dict[str, str], str]] = [
    (Ranks(pp_size=2), {}, False, {}, "pipeline parallel size 2: only the last stage drafts; not supported"),
    (Ranks(cp_size=2), {}, False, {}, "context parallel size 2: not tried"),
    (
        Ranks(tp_size=16, nodes=2),
        {},
        False,
        {},
        "2 hosts: a rank on another host could not raise an alarm without one more collective a step",
    ),
    (DP_ATTENTION, {}, False, {}, "data-parallel attention: set TRIMTAB_DP_ATTENTION=1 for the server to act there"),
    (
        DP_ATTENTION,
        {"enable_dp_attention_local_control_broadcast": True},
        True,
        {},
        "data-parallel attention, enable_dp_attention_local_control_broadcast: decisions would not reach every rank",
    ),
    (
        DP_ATTENTION,
        {},
        True,
        {"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "true"},
        "data-parallel attention, SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION: it drafts without a zero-step branch",
    ),
]


@pytest.mark.parametrize(("ranks", "server", "lifted", "environ", "reason"), OBSERVES)
def test_where_it_observes_and_why(
    ranks: Ranks, server: dict[str, Any], lifted: bool, environ: dict[str, str], reason: str
) -> None:
    assert topology_reasons(ranks, server, lifted, environ) == [reason]


UNFIT: list[tuple[dict[str, Any], dict[str, str], int]] = [
    ({}, {}, 0),
    ({"disaggregation_mode": "null", "pp_size": 1, "nnodes": 1, "dwdp_size": 1}, {}, 0),
    ({}, {"SGLANG_RUST_SERVER": "0", "SGLANG_SCHEDULER_SKIP_ALL_GATHER": "False"}, 0),
    ({"enable_two_batch_overlap": True, "enable_pdmux": True, "enable_multi_layer_eagle": True}, {}, 3),
    ({"elastic_ep_backend": "mooncake"}, {}, 1),
    ({"disaggregation_mode": "decode"}, {}, 1),
    ({"pp_size": 2, "attn_cp_size": 2, "nnodes": 2, "dwdp_size": 2}, {}, 4),
    ({}, {"SGLANG_RUST_SERVER": "1", "SGLANG_SCHEDULER_SKIP_ALL_GATHER": "yes"}, 2),
]


@pytest.mark.parametrize(("server", "environ", "reasons"), UNFIT)
def test_what_keeps_the_ranks_of_data_parallel_attention_apart(
    server: dict[str, Any], environ: dict[str, str], reasons: int
) -> None:
    assert len(unfit_for_dp_attention(server, environ)) == reasons


SIZES: list[tuple[dict[str, Any], Ranks]] = [
    ({"tp_size": 4, "dp_size": 2}, Ranks(tp_size=4, dp_size=2, dp_rank=1)),
    ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, DP_ATTENTION),
    ({"tp_size": 4, "dp_size": 1, "attn_dp_size": 2, "enable_dp_attention": True}, DP_ATTENTION),
    ({"tp_size": 1, "enable_dp_attention": True}, Ranks(dp_rank=1)),
    ({"tp_size": 2, "attn_cp_size": 2, "nnodes": 3}, Ranks(tp_size=2, cp_size=2, nodes=3, dp_rank=1)),
    ({"tp_size": 2, "dcp_size": 2}, Ranks(tp_size=2, cp_size=2, dp_rank=1)),
]


@pytest.mark.parametrize(("server", "ranks"), SIZES)
def test_sizes_are_read_whatever_this_version_calls_them(server: dict[str, Any], ranks: Ranks) -> None:
    scheduler = SimpleNamespace(server_args=SimpleNamespace(**server), dp_rank=1)
    assert read_facts(scheduler, None, None).ranks == ranks


def test_the_readme_says_where_it_acts() -> None:

    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert [what for what, _ in SUPPORT if f"| {what} |" not in readme] == []
