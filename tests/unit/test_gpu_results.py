"""Result files of the GPU measurements: what is done is known, and files of several runs become one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results_file import Key, Results, ResultsError, merged, read_all

KEY = Key("H200", "0.5.16", "8b", "fa3", "abc")


def results(path: Path, *earlier: Path, key: Key = KEY) -> Results:
    return Results(key, path / "results-1.jsonl", earlier, {"command": "bench.py"})


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    results(tmp_path).add("closed", {"cell": 3, "contender": "ucb", "tokens": 5})
    again = results(tmp_path)
    assert again.done("closed", cell=3, contender="ucb")
    assert not again.done("closed", cell=4, contender="ucb")
    assert not again.done("open", rate=0.5, contender="ucb")


def test_a_run_goes_on_from_the_results_of_another_machine(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    results(first).add("price", {"condition": "led", "clients": 16})
    assert results(second, first).done("price", condition="led", clients=16)


@pytest.mark.parametrize("field", ["card", "sglang", "model", "backend", "load"])
def test_results_of_anything_else_do_not_count(tmp_path: Path, field: str) -> None:
    results(tmp_path).add("calibration", {"ms": {}})
    other = Key(**{**{name: getattr(KEY, name) for name in KEY.__dataclass_fields__}, field: "other"})
    assert not results(tmp_path, key=other).done("calibration")


def test_a_record_says_what_it_holds_for_and_how_it_came_about(tmp_path: Path) -> None:
    results(tmp_path).add("closed", {"cell": 0, "contender": "ucb"})
    (record,) = read_all([tmp_path])
    assert record["key"] == {"card": "H200", "sglang": "0.5.16", "model": "8b", "backend": "fa3", "load": "abc"}
    assert record["command"] == "bench.py"
    assert record["at"].endswith("Z")


def made(at: str, **fields: Any) -> dict[str, Any]:
    key = {name: getattr(KEY, name) for name in KEY.__dataclass_fields__}
    return {"kind": "closed", "key": key, "at": at, "cell": 0, "contender": "ucb", **fields}


def test_the_newest_of_several_measurements_counts_whatever_the_order_of_the_files() -> None:
    records = [made("2026-11-30T10:00:00Z", tokens=2), made("2026-11-29T10:00:00Z", tokens=1)]
    for order in (records, records[::-1]):
        (found,) = merged(order)[KEY].values()
        assert found["tokens"] == 2


def test_windows_from_before_a_change_can_be_measured_again_and_the_calibration_stays(tmp_path: Path) -> None:
    path = tmp_path / "results-0.jsonl"
    old, later = made("2026-11-30T10:00:00Z"), made("2026-11-30T12:00:00Z", cell=1)
    calibration = {**made("2026-11-30T09:00:00Z"), "kind": "calibration"}
    path.write_text("".join(json.dumps(record) + "\n" for record in (old, later, calibration)))
    found = Results(KEY, tmp_path / "results-1.jsonl", [], {}, since="2026-11-30T11:00:00Z")
    assert not found.done("closed", cell=0, contender="ucb")
    assert found.done("closed", cell=1, contender="ucb")
    assert found.done("calibration")


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results-1.jsonl"
    path.write_text(json.dumps(made("2026-11-30T10:00:00Z")) + "\n" + '{"kind": "clo')
    assert len(list(read_all([tmp_path]))) == 1


def test_a_broken_line_elsewhere_is_one_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "results-1.jsonl"
    path.write_text("{}\n" + json.dumps(made("2026-11-30T10:00:00Z")) + "\n")
    with pytest.raises(ResultsError, match=r"results-1\.jsonl:1: is no result"):
        list(read_all([tmp_path]))


def test_a_file_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        list(read_all([tmp_path / "none.jsonl"]))
