"""What windows and pairs of the GPU measurements say together, and the tables made of that."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import gpu_tables
import paired
import price_verdict
from closed_verdict import ClosedVerdict
from open_verdict import open_section
from results_file import Key, ResultsError

KEY = Key("H200", "0.5.16", "8b", "fa3", "abc")
BLOCKS = 16


def window(contender: str, cell: int, per_s: float, mode: str, acceptance: str = "low", **more: Any) -> dict[str, Any]:
    """Four seconds at an even rate in one mode."""
    blocks = [{"tokens": round(per_s / 4), "ms": {mode: 250.0}} for _ in range(BLOCKS)]
    return {
        "contender": contender, "cell": cell, "clients": 4**cell, "acceptance": acceptance, "phase": 0,
        "blocks": blocks, "seconds": 4.0, "tokens": 16 * round(per_s / 4), "ms_by_mode": {mode: 4000.0}, "steps": 400,
        "switches": 2, "retractions": 0, "failed": 0, "at": "2026-11-30T10:00:00Z", "kind": "closed",
        "tpot_ms": [1.0, 2.0, 3.0], "tpot_worst_decile_ms": 2.5, "itl_ms": [1.0, 2.0, 3.0], **more,
    }  # fmt: skip


RECORDS = [
    window("fixed:1", 0, 400, "speculate(1)"), window("fixed:3", 0, 800, "speculate(3)"),
    window("fixed:1", 1, 4000, "speculate(1)"), window("fixed:3", 1, 2000, "speculate(3)"),
    window("goodput", 0, 776, "speculate(3)"), window("goodput", 1, 3800, "speculate(1)"),
    window("sglang-adaptive", 0, 400, "speculate(1)"), window("sglang-adaptive", 1, 2000, "plain_warm"),
]  # fmt: skip


def test_efficiency_is_the_time_that_the_best_modes_would_have_needed() -> None:
    verdict = ClosedVerdict(RECORDS)
    assert verdict.best == {(1, "low"): ("fixed:3", 800.0), (4, "low"): ("fixed:1", 4000.0)}
    found = verdict.efficiency("goodput")
    assert found is not None
    assert found.value == pytest.approx((776 / 800 + 3800 / 4000) / 2)
    assert found.low == pytest.approx(found.high)


def test_totals_are_compared_on_the_cells_that_both_ran() -> None:
    verdict = ClosedVerdict([record for record in RECORDS if (record["contender"], record["cell"]) != ("goodput", 1)])
    ratio = verdict.against("goodput", "sglang-adaptive")
    assert ratio is not None
    assert ratio.value == pytest.approx(776 / 400, rel=0.01)


def test_the_best_single_mode_is_one_for_all_cells() -> None:
    verdict = ClosedVerdict(RECORDS)
    assert verdict.best_single() == "fixed:1"
    ratio = verdict.against("goodput", "fixed:1")
    assert ratio is not None
    assert ratio.value == pytest.approx((776 + 3800) / 4400, rel=0.01)


def late(contender: str, cell: int, first_blocks: int) -> dict[str, Any]:
    """Runs the worse mode first."""
    made = window(contender, cell, 800, "speculate(3)")
    for block in made["blocks"][:first_blocks]:
        block["ms"] = {"speculate(1)": 200.0, "prefill": 50.0}
    return made


@pytest.mark.parametrize(("first_blocks", "settled_s"), [(0, 0.0), (6, 1.5), (16, None)])
def test_it_has_settled_once_what_it_runs_is_worth_the_best(first_blocks: int, settled_s: float | None) -> None:
    verdict = ClosedVerdict([*RECORDS[:2], late("goodput", 0, first_blocks)])
    assert verdict.settle_s("goodput", (1, "low")) == settled_s
    assert verdict.longest_settling("goodput") == (math.inf if settled_s is None else settled_s)


def test_a_mode_that_was_no_contender_is_worth_what_the_calibration_says() -> None:
    calibration = {
        "acceptances": {"low": [0.5, 0.4]},
        "ms": {"plain_warm": {"1": 4.0}, "speculate(2)": {"1": 5.0}, "speculate(3)": {"1": 5.5}},
    }
    ran = [*RECORDS[:2], window("goodput", 0, 700, "speculate(2)"), window("ucb", 0, 500, "plain_warm")]
    assert ClosedVerdict(ran).worst_choice("goodput") == (0.0, (1, "low"))
    verdict = ClosedVerdict(ran, calibration)
    three = (1 + 0.5 + 0.2 + 0.08) / 5.5
    worst = [found[0] for name in ("goodput", "ucb") if (found := verdict.worst_choice(name))]
    assert worst == pytest.approx([1.7 / 5 / three, 1 / 4 / three])
    assert verdict.settle_s("goodput", (1, "low")) == 0.0
    assert verdict.settle_s("ucb", (1, "low")) is None


def test_what_was_lost_is_told_with_what_ran_instead() -> None:
    losses = ClosedVerdict(RECORDS).losses("goodput")
    assert [(loss.clients, round(loss.share, 2), loss.best, loss.ran) for loss in losses] == [
        (4, 0.95, "fixed:1", "speculate(1) 100%"), (1, 0.97, "fixed:3", "speculate(3) 100%"),
    ]  # fmt: skip


def test_the_tables_name_what_was_reached_and_what_was_not() -> None:
    records = {("closed", r["cell"], r["contender"]): r for r in RECORDS}
    text = gpu_tables.section(KEY, records)
    assert "| efficiency of goodput | >= 0.95 | 0.960 (0.960-0.960) | yes |" in text
    assert "| tokens/s of goodput over sglang-adaptive | >= 1.25 | 1.907 (1.907-1.907) | yes |" in text
    assert "| goodput | low | 4 | 0.950 | fixed:1 | speculate(1) 100% |" in text
    assert "measured 2026-11-30" in text


def test_tables_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{gpu_tables.BEGIN}\nold\n{gpu_tables.END}\nafter\n")
    for _ in range(2):
        gpu_tables.put_between(page, "new")
    assert page.read_text() == f"before\n{gpu_tables.BEGIN}\n\nnew\n\n{gpu_tables.END}\nafter\n"


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("nothing")
    with pytest.raises(ResultsError, match="has no lines"):
        gpu_tables.put_between(page, "new")
    assert page.read_text() == "nothing"


def test_the_open_loop_is_judged_by_the_95th_percentile_against_the_best_fixed_mode() -> None:
    def at(contender: str, p95: float) -> dict[str, Any]:
        return {**window(contender, 0, 100, "speculate(1)"), "rate": 0.8, "requests": 9, "tokens_per_s": 99.0,
                "tpot_ms": [1.0, p95, 9.0]}  # fmt: skip

    text = open_section([at("fixed:1", 10.0), at("fixed:3", 8.0), at("goodput", 8.4), at("goodput+profile", 8.0)])
    assert "| 0.8 | goodput | <= 1.01 | 1.050 | **no** |" in text
    assert "| 0.8 | goodput+profile | <= 1.01 | 1.000 | yes |" in text


def price(condition: str, clients: int, ours: float) -> dict[str, Any]:
    seconds = {"shared": [ours] * 8, "adaptive": [1.0] * 8, "stock:3": [0.99] * 8}
    return {"condition": condition, "clients": clients, "seconds": seconds}


def test_the_price_is_the_time_of_the_other_over_ours_pair_by_pair() -> None:
    found = price_verdict.estimates([price("led", 16, 1.25)], "adaptive")
    assert found["led", 16].value == pytest.approx(0.8)
    text = price_verdict.price_section([price("led", 1, 1.0), price("hung", 16, 1.001)])
    assert "| led | 1 | 1.000 (1.000-1.000) |" in text
    assert "Geometric mean 0.9995, lowest end of an interval 0.9990. Wanted: at least 0.995 and 0.985; reached." in text
    assert "Against stock fixed steps:" in text


def test_a_moment_of_standstill_does_not_make_a_price() -> None:
    steady = [0.998, 1.002] * 10
    spoilt = paired.typical([*steady[:18], 0.5, 0.6])
    assert spoilt.value == pytest.approx(1.0, abs=0.003)
    assert spoilt.low > 0.99
    assert paired.geometric([*steady[:18], 0.5, 0.6]).value < 0.95


def test_the_interval_of_typical_ratios_is_that_of_the_signed_rank_test() -> None:
    """Ten pairs: the ninth of the 55 means of two from either end (Hollander and Wolfe 1999, table A.4)."""
    logs = [0.01 * i for i in range(10)]
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(10) for j in range(i, 10))
    found = paired.typical([math.exp(value) for value in logs])
    assert (found.low, found.high) == pytest.approx((math.exp(walsh[8]), math.exp(walsh[-9])))
    assert paired.typical([1.0] * 4).high == math.inf


def test_equal_runs_have_a_ratio_of_one() -> None:
    found = paired.geometric([1.0] * 8)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))


def test_the_interval_is_students_on_the_logarithms() -> None:
    """Worked by hand: logs 0.00 and 0.02, mean 0.01, deviation 0.01414, half width 12.706 * 0.01."""
    found = paired.geometric([1.0, 1.0202013])
    assert found.value == pytest.approx(1.01005, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((0.88954, 1.14689), abs=1e-4)


def test_one_pair_says_nothing_about_the_interval() -> None:
    found = paired.geometric([0.9])
    assert (found.low, found.high) == (0.0, math.inf)


def test_the_interval_of_two_groups_is_students() -> None:
    """Logarithms 0 and 0.02 against 0 and 0: a pooled variance of 0.0001, so 4.303 * 0.01 to either side of 0.01."""
    found = paired.of_groups([1.0, math.exp(0.02)], [1.0, 1.0])
    assert found.value == pytest.approx(math.exp(0.01))
    assert (found.low, found.high) == pytest.approx((math.exp(0.01 - 0.04303), math.exp(0.01 + 0.04303)))


def test_one_start_a_side_has_no_interval() -> None:
    found = paired.of_groups([1.1], [1.0])
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == (0.0, math.inf)


def test_the_bootstrap_is_as_wide_as_the_blocks_are_different() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]

    def mean(drawn: Any) -> float:
        return float(sum(values[i] for i in drawn[0]) / len(drawn[0]))

    found = paired.resampled([len(values)], mean)
    assert found.value == 4.5
    # The mean of 8 draws from these has a deviation of 0.81.
    assert (found.low, found.high) == pytest.approx((4.5 - 1.6, 4.5 + 1.6), abs=0.25)
    assert paired.resampled([len(values)], mean) == found
