"""Windows on one live engine: calibration, closed loop and open loop."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import schedule
import tuning
import window_figures
from bench_engines import Engine
from contenders import FIXED, Helm, mode_of
from load_file import Load
from results_file import Results
from step_recorder import PLAIN, Steps, read_steps
from trimtab.domain import PLAIN_NATIVE, CostKey, Mode

HERE = Path(__file__).resolve().parent
# What a window takes besides: filling up, ending, orders; a change of daemons.
AROUND_S = 4.0
MOST_ROWS = 300


class OutOfTimeError(Exception):
    """The next window would not end in time."""


@dataclass
class Bout:
    """Everything that windows on one engine need.

    Attributes:
        load: What is run.
        engine: On which engine.
        results: Where what is found goes.
        deadline: On CLOCK_MONOTONIC, in s.
        tuner: Interpreter for `tuning.py`.
        helm: Of the shared engine, None elsewhere.
    """

    load: Load
    engine: Engine
    results: Results
    deadline: float
    tuner: str = sys.executable
    helm: Helm | None = None

    def time_for(self, seconds: float) -> None:
        """`OutOfTimeError` unless there is so much time left, and some around it."""
        if time.monotonic() + seconds + AROUND_S > self.deadline:
            raise OutOfTimeError

    def run(self, label: str, clients: int, seed: str, window_s: float, lengths: Any = None) -> tuple[Steps, Any]:
        """One closed window: the recorded steps, and what came of the requests."""
        self.engine.orders.phase.set(self.load.labels.index(label))
        self.engine.orders.record(clients)
        tally = self.engine.process.load(
            "closed", clients=clients, lengths=lengths or self.load.requests, seed=seed, window_s=window_s, label=label
        )
        self.engine.orders.write()
        return read_steps(self.engine.orders.steps_path), tally

    def add(self, kind: str, steps: Steps, tally: dict[str, Any], **fields: Any) -> None:
        """A window's figures go into the results."""
        found = window_figures.window(steps, tally["began_ns"], tally["ended_ns"])
        tallied = {name: tally[name] for name in ("answered", "failed", "problem")}
        started = {"engine": self.engine.name, "engine_started_at": self.engine.started_at}
        self.results.add(kind, {**fields, **started, **found, **tallied})


def closed(bout: Bout, contenders: Sequence[str]) -> None:
    """Every cell that is not done, contenders in their order; on other than the shared engine it is its own."""
    for cell in schedule.cells(bout.load):
        for turn, contender in enumerate(schedule.order(bout.load, f"cell {cell.number}", contenders)):
            if bout.results.done("closed", cell=cell.number, contender=contender):
                continue
            bout.time_for(bout.load.closed.window_s)
            _hand_over(bout, contender)
            seed = f"{bout.load.seed}-cell-{cell.number}"
            steps, tally = bout.run(cell.acceptance, cell.clients, seed, bout.load.closed.window_s)
            place = {"clients": cell.clients, "acceptance": cell.acceptance, "run": cell.run, "turn": turn}
            phase = bout.load.labels.index(cell.acceptance)
            bout.add("closed", steps, tally, cell=cell.number, contender=contender, phase=phase, **place)
            _say(f"{cell.name}: {contender}")


def open_loop(bout: Bout, contenders: Sequence[str]) -> None:
    """Every rate that is not done."""
    calibration = bout.results.get("calibration")
    if calibration is None:
        _say("no calibration, so nobody knows what the engine can do at most: no open loop")
        return
    settings = bout.load.open
    for number, rate in enumerate(settings.rates):
        seed = f"{bout.load.seed}-rate-{number}"
        drawn = schedule.acceptances(bout.load, settings.seconds, settings.acceptance_s, seed)
        changes = [(at, (bout.load.labels.index(label), label)) for at, label in drawn]
        for turn, contender in enumerate(schedule.order(bout.load, seed, contenders)):
            if bout.results.done("open", rate=rate, contender=contender):
                continue
            bout.time_for(settings.seconds + settings.drain_s)
            _hand_over(bout, contender)
            bout.engine.orders.record(settings.max_clients)
            per_second = rate * calibration["saturation_per_s"]
            tally = bout.engine.process.load(
                "open", settings=settings, per_second=per_second, seed=seed, changes=changes
            )
            bout.engine.orders.write()
            steps = read_steps(bout.engine.orders.steps_path)
            where = {"rate": rate, "per_second": per_second, "acceptances": drawn, "turn": turn}
            bout.add("open", steps, tally, contender=contender, **where)
            _say(f"open loop at {rate:g}: {contender}")


def calibrate(bout: Bout, fixed: Sequence[str], cost_key: CostKey, graph_sizes: Sequence[int], work: Path) -> None:
    """Step times in every mode, saturation, the profile and the tuned table; one record, or none."""
    if bout.results.done("calibration"):
        return
    settings, load = bout.load.calibration, bout.load
    windows = len(load.closed.clients) * len(fixed)
    # Half of what windows take besides is the change of daemons, and here there is none.
    bout.time_for(windows * (settings.window_s + AROUND_S / 2) + settings.saturation_s + AROUND_S)
    assert bout.helm is not None
    rows: list[tuple[str, float, int, int, int]] = []
    places = [(clients, contender) for clients in load.closed.clients for contender in fixed]
    for clients, contender in schedule.shuffled(load, "calibration", places):
        bout.helm.hand_over(contender)
        seed = f"{load.seed}-calibration-{clients}-{contender}"
        steps, tally = bout.run(settings.acceptance, clients, seed, settings.window_s)
        rows += _rows(steps, tally, mode_of(contender), clients, graph_sizes)
    bout.helm.hand_over(f"{FIXED}{settings.saturation_steps}")
    most, lengths = load.open.max_clients, load.open.requests
    steps, tally = bout.run(settings.acceptance, most, f"{load.seed}-saturation", settings.saturation_s, lengths)
    figures = window_figures.window(steps, tally["began_ns"], tally["ended_ns"])
    per_s = figures["tokens_per_s"] / statistics.fmean(lengths.output_tokens)
    learned = learn(load, rows, cost_key, bout.tuner, work)
    found = {"ms": _medians(rows), "acceptances": dict(load.acceptance), "saturation_per_s": per_s}
    bout.results.add("calibration", {**found, **learned})
    _say("calibration")


def learn(load: Load, rows: Sequence[Any], cost_key: CostKey, tuner: str, work: Path) -> dict[str, Any]:
    """Profile and tuned table, by `tuning.py` in an interpreter that has what it takes."""
    by_place: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in rows:
        by_place[row[0], row[4]].append(row)
    medians = {str(clients): _steps_ms(times) for clients, times in _by_clients(rows).items()}
    calibration = {
        "rows": [row for place in by_place.values() for row in tuning.sampled(place, MOST_ROWS, load.seed)],
        "key": {"model": cost_key.model, "device_name": cost_key.device_name},
        "ms_by_clients": medians,
        "acceptances": [list(probabilities) for probabilities in load.acceptance.values()],
    }
    (work / "calibration.json").write_text(json.dumps(calibration))
    command = [tuner, str(HERE / "tuning.py"), str(work / "calibration.json"), str(work)]
    subprocess.run(command, check=True, timeout=120)
    return {name: json.loads((work / f"{name}.json").read_text()) for name in ("profile", "tuned")}


def prepare(helm: Helm, results: Results, cost_key: CostKey, work: Path) -> None:
    """Lay out what the calibration learned where engines and daemons find it, in terms of this run's paths."""
    calibration = results.get("calibration")
    if calibration is None:
        return
    key = {"model": cost_key.model, "device_name": cost_key.device_name}
    helm.profile, helm.table = work / "fitted.json", work / "table.json"
    helm.profile.write_text(json.dumps({**calibration["profile"], "key": key}))
    helm.table.write_text(json.dumps(calibration["tuned"]))


def _hand_over(bout: Bout, contender: str) -> None:
    if bout.helm is not None:
        bout.helm.hand_over(contender)


def _rows(
    steps: Steps, tally: dict[str, Any], mode: Mode, clients: int, graph_sizes: Sequence[int]
) -> list[tuple[str, float, int, int, int]]:
    """Steps of this mode: mode, ms, requests, tokens of context, padded batch size."""
    ran = PLAIN if mode == PLAIN_NATIVE else mode.steps
    found = window_figures.step_medians(steps, tally["began_ns"], tally["ended_ns"], ran, clients)
    padded = min((size for size in graph_sizes if size >= clients), default=clients)
    return [(str(mode), ms, requests, context, padded) for ms, requests, context in found]


def _medians(rows: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Step times in ms by mode and requests."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mode, ms, requests, *_ in rows:
        found[mode][str(requests)].append(ms)
    return {mode: {n: statistics.median(ms) for n, ms in sizes.items()} for mode, sizes in found.items()}


def _by_clients(rows: Sequence[Any]) -> dict[int, dict[str, list[float]]]:
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mode, ms, requests, *_ in rows:
        found[requests][mode].append(ms)
    return found


def _steps_ms(times: dict[str, list[float]]) -> dict[str, float]:
    """By steps, as SGLang's rule knows them: its zero is `plain_warm`, and native plain is none of its modes."""
    medians = {window_figures.steps_of(mode): statistics.median(ms) for mode, ms in times.items()}
    return {str(steps): ms for steps, ms in medians.items() if steps >= 0}


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)
