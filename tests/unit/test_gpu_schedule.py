"""The load of the GPU measurements: the same seed, the same everything."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path

import pytest

import schedule
from load_file import Lengths, Load, LoadError, read_load

GPU = Path(__file__).resolve().parents[1] / "gpu"
LENGTHS = Lengths((32, 128), (200, 1000))


@pytest.fixture
def load() -> Load:
    return read_load(GPU / "load.toml")


@pytest.mark.parametrize("name", ["load.toml", "load_cpu.toml"])
def test_the_committed_loads_can_be_read(name: str) -> None:
    assert read_load(GPU / name).hash


def test_every_number_of_clients_meets_every_acceptance_once_a_pass(load: Load) -> None:
    cells = schedule.cells(load)
    crossed = Counter((cell.clients, cell.acceptance) for cell in cells)
    assert crossed == {(n, a): 1 for n in (1, 4, 16, 64, 128, 256) for a in ("low", "mid", "high")}
    assert [cell.number for cell in cells] == list(range(18))
    assert [cell.clients for cell in cells] != sorted(cell.clients for cell in cells)
    assert cells == schedule.cells(load)


def test_contenders_take_turns_in_an_order_that_depends_on_the_place_alone(load: Load) -> None:
    names = ["a", "b", "c", "d", "e"]
    orders = [schedule.order(load, f"cell {i}", names) for i in range(20)]
    assert all(sorted(order) == names for order in orders)
    assert len({tuple(order) for order in orders}) > 10
    assert schedule.order(load, "cell 3", names[::-1]) == orders[3]


def test_a_request_is_the_same_for_whoever_serves_it() -> None:
    one, again, other = (schedule.request("8-cell-3", client, 5, LENGTHS) for client in (2, 2, 3))
    assert one == again
    assert one.prompt(1000) == again.prompt(1000)
    assert one.prompt(1000) != other.prompt(1000)
    assert len(one.prompt(1000)) == one.prompt_tokens
    assert all(3 <= token < 1000 for token in one.prompt(1000))


def test_lengths_stay_within_their_bounds() -> None:
    requests = [schedule.request("x", client, n, LENGTHS) for client in range(20) for n in range(20)]
    assert all(32 <= r.prompt_tokens <= 128 and 200 <= r.output_tokens <= 1000 for r in requests)
    assert statistics.fmean(r.output_tokens for r in requests) == pytest.approx(600, rel=0.1)


def test_arrivals_come_at_the_wanted_rate_and_in_bursts(load: Load) -> None:
    settings = load.open
    counts = [len(schedule.arrivals(settings, 40.0, str(seed))) for seed in range(200)]
    assert statistics.fmean(counts) == pytest.approx(40.0 * settings.seconds, rel=0.05)
    poisson = statistics.fmean(counts) ** 0.5
    assert statistics.stdev(counts) > 2 * poisson
    once = schedule.arrivals(settings, 40.0, "1")
    assert once == sorted(once) == schedule.arrivals(settings, 40.0, "1")
    assert once[0] >= 0
    assert once[-1] < settings.seconds


def test_the_acceptance_of_an_open_run_changes_at_every_change(load: Load) -> None:
    changes = schedule.acceptances(load, 16.0, 4.0, "1")
    assert [at for at, _ in changes] == [0.0, 4.0, 8.0, 12.0]
    assert all(a != b for (_, a), (_, b) in itertools.pairwise(changes))


def test_the_hash_sees_what_is_run_and_not_how_it_is_written(load: Load, tmp_path: Path) -> None:
    text = (GPU / "load.toml").read_text()
    same, other = tmp_path / "same.toml", tmp_path / "other.toml"
    same.write_text("# a comment\n" + text)
    other.write_text(text.replace("window_s = 4.0", "window_s = 5.0"))
    assert read_load(same).hash == load.hash
    assert read_load(other).hash != load.hash


def test_the_last_probability_holds_for_all_further_drafts(load: Load) -> None:
    assert load.probabilities("mid", 7) == [0.6] * 7


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clients = [1, 4, 16, 64, 128, 256]", "clients = [0]", r"closed\.clients"),
        ("window_s = 4.0", "windows = 4.0", "window"),
        ('acceptance = "mid"\nwindow_s', 'acceptance = "none"\nwindow_s', r"calibration\.acceptance is 'none'"),
        ("prompt_tokens = [32, 128]", "prompt_tokens = [128, 32]", r"requests\.prompt_tokens must go from small"),
    ],
)
def test_a_load_that_cannot_be_used_is_one_error_with_the_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (GPU / "load.toml").read_text()
    assert old in text
    path = tmp_path / "load.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LoadError, match=words):
        read_load(path)
