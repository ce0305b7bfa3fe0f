"""Data-parallel attention: when SGLang's refusal is lifted, and which batch size reads the table."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.hooked_engine import UNLINKED, EmbeddedEngine, mode_of_width
from support.ranked_engine import RankedEngine
from support.raw_rows import launch, raw_row
from trimtab_sglang import dp_attention, messages
from trimtab_sglang.dp_attention import after_exchange, lift_refusal, settled
from trimtab_sglang.lease import Lease, TableEntry, speculate
from trimtab_sglang.recorder import Recorder
from trimtab_sglang.rows import RowMaker
from trimtabpb.v1 import control_pb2 as pb

REFUSED = "attention DP is not supported (adaptive tier decisions are not synchronized across DP ranks)"
CONFIG = {"ema_alpha": 0.5, "1": {"candidate_steps": [1, 3, 5]}, "8": {"candidate_steps": [0, 1]}}


@pytest.fixture
def set_by_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the hook decides; SGLang's resolution stands aside."""
    decided: dict[str, Any] = {}
    path = tmp_path / "adaptive.json"
    path.write_text(json.dumps(CONFIG))
    monkeypatch.setattr(
        dp_attention, "_resolved", lambda args: {"speculative_adaptive_config": str(path), **vars(args)}
    )
    monkeypatch.setattr(dp_attention, "_set", lambda args, **fields: decided.update(fields))
    return decided


def asked(reason: str | None, **server: Any) -> Any:
    hook = lift_refusal(EmbeddedEngine(UNLINKED).plugin)
    return hook(lambda args: reason, SimpleNamespace(**{"device": "cpu", **server}))


def test_the_refusal_is_lifted_and_sglangs_own_rule_settled(set_by_us: dict[str, Any]) -> None:
    assert asked(REFUSED) is None
    made = json.loads(Path(set_by_us["speculative_adaptive_config"]).read_text())
    assert made == settled(CONFIG)
    assert made["1"]["candidate_steps"] == [0, 1, 3, 5]
    assert [key for key in made if key.isdigit()] == ["1"]


@pytest.mark.parametrize("reason", [None, "speculative_eagle_topk=2 (only topk=1 is supported)"])
def test_every_other_word_of_sglangs_stays(reason: str | None, set_by_us: dict[str, Any]) -> None:
    assert asked(reason) == reason
    assert set_by_us == {}


def test_where_the_ranks_would_not_stay_together_the_refusal_stays_and_the_log_says_why(
    set_by_us: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trimtab"):
        assert asked(REFUSED, enable_dp_attention_local_control_broadcast=True) == REFUSED
    assert set_by_us == {}
    (record,) = caplog.records
    assert "enable_dp_attention_local_control_broadcast: decisions would not reach" in record.getMessage()


@pytest.mark.parametrize(
    ("server", "version", "unfit"),
    [
        ({"device": "cuda"}, "0.5.16", False),
        ({"device": "cuda"}, "0.5.23", True),
        ({"device": "cuda", "disable_cuda_graph": True}, "0.5.23", False),
        ({"device": "cuda", "cuda_graph_config": {"decode": {"backend": "disabled"}}}, "0.5.23", False),
        (
            {"device": "cuda", "cuda_graph_config": SimpleNamespace(decode=SimpleNamespace(backend="full"))},
            "0.5.23",
            True,
        ),
        ({"device": "cpu"}, "0.5.23", False),
    ],
)
def test_with_cuda_graphs_only_where_that_was_seen_to_work(
    server: dict[str, Any], version: str, unfit: bool, set_by_us: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_attention, "sglang_version", lambda: version)
    assert asked(REFUSED, **server) == (REFUSED if unfit else None)


def test_a_failure_of_ours_leaves_the_refusal(set_by_us: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str | None) -> str:
        raise OSError("no space left")

    monkeypatch.setattr(dp_attention, "_settled", fail)
    assert asked(REFUSED) == f"{REFUSED} (no space left)"


def test_the_largest_batch_of_all_ranks_reads_the_table() -> None:
    engine = RankedEngine(2)
    exchanged = [after_exchange(plugin) for plugin in engine.plugins]
    table = (TableEntry(1, speculate(7)), TableEntry(8, speculate(1)))
    engine.post(Lease(1, table, smoothing=1))
    for sizes in ([3, 2], [1, 9], [9, 1], [0, 4]):
        for exchange in exchanged:
            exchange(None, SimpleNamespace(global_num_tokens=sizes))
        steps = engine.step([max(size, 1) for size in sizes])
        assert steps == ([7, 7] if max(sizes) < 8 else [1, 1])
    rows = list(engine.ranks[0].row_maker().drain(10))
    assert {row.global_batch_size for row in rows} == {-1}, "this row maker was not told of the other ranks"
    team = engine.speaker.team
    assert team is not None
    assert [team.table_size_at(row.step) for row in rows] == [3, 9, 9, 4]


def test_sizes_that_cannot_be_read_blow_the_fuse() -> None:
    engine = RankedEngine(2)
    after_exchange(engine.plugins[1])(None, SimpleNamespace(global_num_tokens=None))
    assert engine.plugins[1].fuse.reason.startswith("reading the batch sizes of all ranks: TypeError")


def test_alone_there_is_nothing_to_exchange() -> None:
    plugin = EmbeddedEngine(UNLINKED).plugin
    after_exchange(plugin)(None, SimpleNamespace(global_num_tokens=None))
    assert not plugin.fuse.blown


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_row_says_which_batch_size_read_the_table_and_is_padded_with_it(forgotten: bool) -> None:
    recorder = Recorder()
    recorder.ring.append(tuple(raw_row(launch(1, step=22), [3, 3, 0])))
    rows = RowMaker(recorder, [1, 2, 4, 8, 16], mode_of_width, lambda step: None if forgotten else step - 12)
    (row,) = rows.drain(10)
    largest = 3 if forgotten else 10
    assert (row.batch_size, row.global_batch_size) == (3, largest)
    assert row.padded_batch_size == (4 if forgotten else 16)
    columns = pb.StepRows()
    messages.append_row(columns, row)
    assert list(columns.global_batch_size) == [largest]
