"""The words and figures of the report, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.replay_traces import Recorder, engine, flat_profile, write
from trimtab.domain import modes_of
from trimtab.errors import DataError
from trimtab.replay.counterfactual.replay import ReplaySettings, replay
from trimtab.replay.counterfactual.result import ReplayResult
from trimtab.replay.report.figures import mode_colours, smoothed
from trimtab.replay.report.page import report_page, write_report
from trimtab.replay.report.svg import Scale, short, ticks
from trimtab.replay.report.text import headline
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.traces.recording import read_trace


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ReplayResult:
    runs = []
    for steps in (3, 1):
        recorder = Recorder()
        for i in range(300):
            recorder.step(steps, [i % 5, 3, 7], gap_ms=30.0 if i == 50 else 0.0)
        runs.append(recorder.rows)
    path = write(
        tmp_path_factory.mktemp("page") / "t.parquet", (engine("llama<a>"), runs[0]), (engine("llama-b", 0, 1), runs[1])
    )
    with read_trace(path) as trace:
        policies = [parse_policy(name) for name in ("fixed:3", "fixed:7", "goodput")]
        return replay(trace, policies, ReplaySettings(profile=flat_profile()), "<b>bold</b> & co")


def test_names_are_written_as_they_are_and_never_as_markup(result: ReplayResult) -> None:
    page = report_page([result], "trimtab replay '<script>alert(1)</script>'")
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; co" in page
    assert "llama&lt;a&gt;" in page
    assert "<b>bold" not in page
    assert "<script>alert" not in page


def test_the_headline_says_what_came_out_and_how_sure_it_is(result: ReplayResult) -> None:
    sentences = headline(result)
    assert len(sentences) == 3
    assert all(re.search(r"would have made [\d,]+ tokens a second", sentence) for sentence in sentences)
    three = sentences[0]
    assert re.search(
        r"\d+\.\d% (more|less) than the [\d,]+ that the recorded run made \(95% interval", three
    ) or re.search(r"cannot be told apart from", three)


def test_every_engine_has_its_figures(result: ReplayResult) -> None:
    page = report_page([result])
    assert "Tokens a second by engine" in page
    assert page.count("llama-b") > 3


def test_what_was_left_out_is_said(result: ReplayResult) -> None:
    assert "0.1 s of pauses, warm-ups and gaps that nobody can explain" in report_page([result])


def test_a_page_appears_as_a_whole_or_not_at_all(result: ReplayResult, tmp_path: Path) -> None:
    write_report([result], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(DataError, match="nowhere"):
        write_report([result], tmp_path / "nowhere" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (-3, 12, [0, 5, 10]), (5, 5, [5])],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (12.5, "12.5"), (950, "950"), (5_000, "5k"), (12_500, "12.5k")]
)
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_scale_keeps_what_lies_beyond_it_at_its_ends() -> None:
    scale = Scale(0.0, 10.0, 100.0, 200.0)
    assert [scale(v) for v in (-5, 0, 5, 10, 99)] == [100, 100, 150, 200, 200]
    assert Scale(1.0, 100.0, 0.0, 2.0, logarithmic=True)(10.0) == pytest.approx(1.0)


def test_plain_is_grey_and_more_drafts_are_stronger() -> None:
    assert mode_colours(modes_of([0, 1, 2, 3, 5, 7])) == ["--m0", "--m1", "--m2", "--m4", "--m6", "--m7"]


def test_smoothing_keeps_the_ends_and_sums_neighbours() -> None:
    assert smoothed([1.0, 2.0, 3.0, 4.0], 1).tolist() == [1, 2, 3, 4]  # type: ignore[arg-type]
    assert smoothed([1.0, 2.0, 3.0, 4.0], 3).tolist() == [3, 6, 9, 7]  # type: ignore[arg-type]
