"""What the recorded steps of a window are boiled down to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import window_figures
from step_recorder import COLD, PLAIN, PREFILL, SKIP_DRAFT_EXTEND, StepRecorder, Steps, read_steps

MS = 1_000_000
# (ms, steps, [(request, tokens), ...])
Made = tuple[int, int, list[tuple[int, int]]]


def steps(made: Sequence[Made], wanted: Sequence[int] = (100, 100), retractions: int = 0) -> Steps:
    entries = [entry for _, _, row in made for entry in row]
    return Steps(
        at_ns=np.array([at * MS for at, _, _ in made]),
        steps=np.array([k for _, k, _ in made]),
        graph=np.ones(len(made), dtype=np.int64),
        context=np.array([10 * len(row) for _, _, row in made]),
        first=np.cumsum([0, *(len(row) for _, _, row in made)]),
        request=np.array([request for request, _ in entries]),
        tokens=np.array([tokens for _, tokens in entries]),
        identities=tuple(f"1.{i}.{count}" for i, count in enumerate(wanted)),
        retractions=retractions,
    )


def test_a_window_counts_what_came_out_inside_of_it() -> None:
    found = window_figures.window(
        steps([(5, 3, [(0, 9)]), (20, 3, [(0, 2)]), (30, 3, [(0, 4)]), (50, 1, [(0, 9)])]), 10 * MS, 40 * MS
    )
    assert (found["tokens"], found["tokens_per_s"], found["steps"]) == (6, 200.0, 2)


def test_a_request_gets_no_more_than_it_asked_for() -> None:
    """The last verify accepted too much, and the request was in one more step that was launched already."""
    made: list[Made] = [(10, PREFILL, [(0, 1), (1, 1)]), (20, 3, [(0, 4), (1, 2)]), (30, 3, [(0, 4), (1, 2)])]
    out = window_figures.emissions(steps(made, wanted=(3, 100)))
    assert out.tokens.tolist() == [1, 1, 2, 2, 0, 2]


def test_time_goes_to_the_mode_that_ran_and_prefill_is_apart() -> None:
    made: list[Made] = [(10, 3, [(0, 1)]), (25, PREFILL, [(1, 1)]), (30, 3, [(0, 1)]), (40, PLAIN, [(0, 1)])]
    found = window_figures.window(steps(made), 0, 40 * MS)
    assert found["ms_by_mode"] == {"prefill": 15.0, "plain_native": 10.0, "speculate(3)": 15.0}
    assert found["switches"] == 1


def test_blocks_have_the_tokens_and_times_of_the_window() -> None:
    made: list[Made] = [(at, 1, [(0, 2)]) for at in range(10, 1001, 10)]
    found = window_figures.window(steps(made, wanted=(1000,)), 0, 1000 * MS)
    assert len(found["blocks"]) == 4
    assert sum(block["tokens"] for block in found["blocks"]) == found["tokens"] == 200
    assert sum(block["ms"]["speculate(1)"] for block in found["blocks"]) == pytest.approx(1000)


def test_tokens_that_come_together_share_the_wait() -> None:
    """Ten tokens of one request: 2 at 20 ms, 8 at 60 ms after a first one at 0: waits of 10 ms and 5 ms."""
    made: list[Made] = [(1, PREFILL, [(0, 1)]), (21, 7, [(0, 2)]), (61, 7, [(0, 8)])]
    found = window_figures.window(steps(made), 0, 100 * MS)
    assert found["itl_ms"] == [5.0, 10.0, 10.0]
    assert found["tpot_ms"] == [6.0, 6.0, 6.0]
    assert found["tpot_worst_decile_ms"] == 6.0
    assert found["requests"] == 1


def test_the_worst_decile_is_the_mean_of_the_slowest_tenth() -> None:
    count = 20
    made: list[Made] = [(0, PREFILL, [(i, 1) for i in range(count)])]
    made += [(10 * (i + 1), 7, [(i, 8)]) for i in range(count)]
    found = window_figures.window(steps(made, wanted=[100] * count), -1, 1000 * MS)
    assert found["requests"] == 20
    assert found["tpot_worst_decile_ms"] == pytest.approx((190 + 200) / 2 / 8)


def test_an_idle_window_has_no_figures_and_no_errors() -> None:
    found = window_figures.window(steps([(5, 1, [(0, 1)])]), 10 * MS, 20 * MS)
    assert (found["tokens"], found["tpot_ms"], found["itl_ms"]) == (0, [None] * 3, [None] * 3)


def test_a_step_time_is_between_two_results_of_the_same_mode_and_batch() -> None:
    made: list[Made] = [
        (0, 3, [(0, 1), (1, 1)]), (10, 3, [(0, 1), (1, 1)]), (30, PREFILL, [(2, 1)]), (42, 3, [(0, 1), (1, 1)]),
        (54, 3, [(0, 1), (1, 1)]), (60, 1, [(0, 1), (1, 1)]), (90, 3, [(0, 1)]),
    ]  # fmt: skip
    found = window_figures.step_medians(steps(made, wanted=(100,) * 3), -1, 100 * MS, 3, 2)
    assert found == [(10.0, 2, 20), (12.0, 2, 20)]


@pytest.mark.parametrize("mode", ["plain_native", "plain_cold", "plain_warm", "speculate(3)"])
def test_modes_have_the_names_that_trimtab_gives_them(mode: str) -> None:
    assert window_figures.mode_name(window_figures.steps_of(mode)) == mode


class Forward:
    def __init__(self, prefill: bool) -> None:
        self._prefill = prefill

    def is_extend(self) -> bool:
        return self._prefill

    def is_decode(self) -> bool:
        return not self._prefill


def batch(prefill: bool, *rids: str) -> Any:
    requests = [SimpleNamespace(rid=rid, origin_input_ids=[1] * 7, output_ids=[1]) for rid in rids]
    return SimpleNamespace(forward_mode=Forward(prefill), reqs=requests)


def result(recorder: StepRecorder, accepted: list[int] | None, verified_steps: int | None) -> Any:
    made = SimpleNamespace(num_correct_drafts_per_req_cpu=accepted, can_run_cuda_graph=True)
    if verified_steps is not None:
        worker = SimpleNamespace(speculative_num_steps=verified_steps)
        recorder.after_verify(made, worker, batch(False))
    return made


def test_the_recorder_keeps_every_kind_of_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = StepRecorder()
    recorder.after_result(None, None, batch(False, "before"), result(recorder, [0], 3))
    recorder.begin(2)
    recorder.after_result(None, None, batch(True, "a.5", "b.5"), SimpleNamespace())
    recorder.after_result(None, None, batch(False, "a.5"), result(recorder, [2], 3))
    assert recorder.filled_ns == 0
    recorder.after_result(None, None, batch(False, "a.5", "b.5"), result(recorder, None, None))
    assert recorder.filled_ns > 0
    # Native plain has the shape of a verify without drafts.
    recorder.after_result(None, None, batch(False, "a.5"), result(recorder, [0], None))
    recorder.after_result(None, None, batch(False, "a.5"), result(recorder, [0], 0))
    monkeypatch.setenv(SKIP_DRAFT_EXTEND, "1")
    recorder.after_result(None, None, batch(False, "a.5"), result(recorder, [0], 0))
    recorder.after_retraction(([1, 2], 0.5, []))
    recorder.write(tmp_path / "steps.npz")
    found = read_steps(tmp_path / "steps.npz")
    assert found.steps.tolist() == [PREFILL, 3, PLAIN, PLAIN, 0, COLD]
    assert found.batch.tolist() == [2, 1, 2, 1, 1, 1]
    assert found.tokens.tolist() == [1, 1, 3, 1, 1, 1, 1, 1]
    assert found.request.tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    assert found.context.tolist() == [16, 11, 21, 13, 14, 15]
    assert (found.identities, found.retractions) == (("a.5", "b.5"), 2)
