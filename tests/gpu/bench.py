"""What Trimtab makes of changing load on a real SGLang, against everything else one could run. See README.md.

    python3 tests/gpu/bench.py --out "$OUT" --earlier RESULTS --parts calibrate,closed,open --seconds 480

Ends by itself before the time is over and goes on where it left off, on the same machine or another: what is done is
known from the results in --out and --earlier. To try it out on the CPU engine: `--sizes cpu --controller-python PYTHON`
with an interpreter that has Trimtab's controller and scikit-learn.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE = [str(ROOT / part) for part in ("engine_plugin", "proto", "controller")]
sys.path[:0] = [*CODE, *(str(ROOT / part) for part in ("tests", "tests/sglang"))]
# For what runs in processes of its own: the daemons, the fit.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*CODE, os.environ.get("PYTHONPATH", "")]))

import bench_price  # noqa: E402
import dummy_models  # noqa: E402
import prompt_classes  # noqa: E402
import schedule  # noqa: E402
from bench_engines import ALONE, CANDIDATES, FIRST_PORT, SETTINGS, SHARED, STOCK, STOCK_ADAPTIVE, WIDEST, Bench, Engine  # noqa: E402
from bench_windows import Bout, OutOfTimeError, calibrate, closed, open_loop, prepare  # noqa: E402
from contenders import CONTENDERS, FIXED, NEED_CALIBRATION, Helm, mode_of, offered  # noqa: E402
from load_file import Load, LoadError, read_load  # noqa: E402
from results_file import Key, Results, ResultsError  # noqa: E402
from trimtab.wire import mode_from_wire, read_hello  # noqa: E402
from trimtab_sglang.plugin import digest  # noqa: E402

PARTS = ("calibrate", "closed", "open", "price")
OWN_ENGINES = (ALONE, STOCK_ADAPTIVE, *(f"{STOCK}:{k}" for k in CANDIDATES if k))
OPEN_CONTENDERS = ("fixed:1", "fixed:3", "sglang-adaptive", "sglang-tuned", "goodput+profile", "goodput", "ucb")
# After the deadline engines are ended whatever they do: what is in the results counts.
GRACE_S = 10.0
WARM_UP_S = 1.0


@dataclass
class Session:
    """One call of this script."""

    load: Load
    bench: Bench
    results: Results
    options: argparse.Namespace
    deadline: float
    engines: list[Engine]

    def start(self, names: Sequence[str], controller: str) -> dict[str, Engine]:
        """Engines by name, started side by side and ready."""
        found: dict[str, Engine] = {}
        for name in names:
            ours = controller if name == SHARED else ""
            found[name] = Engine(
                self.bench, name, ours, len(names) > 1, self.load.price.steps, number=len(self.engines)
            )
            self.engines.append(found[name])
            if self.options.one_by_one:
                found[name].ready()
        for name in [] if self.options.one_by_one else names:
            found[name].ready()
        return found

    @property
    def modes(self) -> Sequence[str]:
        """What the shared engine offers, as far as one was ever started."""
        known = [record["modes"] for record in self.results.all("engine") if "modes" in record]
        return known[-1] if known else [str(mode_of(name)) for name in CONTENDERS if name.startswith(FIXED)]

    def contenders(self, usual: Sequence[str]) -> list[str]:
        """Those that are asked for and that the shared engine can run; without calibration some cannot."""
        calibrated = "calibrate" in self.options.parts or self.results.done("calibration")
        names = [n for n in self.options.contenders or usual if calibrated or n not in NEED_CALIBRATION]
        return offered(names, self.modes)

    def shared_left(self) -> bool:
        """Whether there is anything left to measure on the shared engine."""
        parts, done = self.options.parts, self.results.done
        return (
            ("calibrate" in parts and not done("calibration"))
            or ("closed" in parts and any(self.closed_left(name) for name in self.contenders(CONTENDERS)))
            or (
                "open" in parts
                and any(
                    not done("open", rate=rate, contender=name)
                    for rate in self.load.open.rates
                    for name in self.contenders(OPEN_CONTENDERS)
                )
            )
        )

    def closed_left(self, contender: str) -> bool:
        """Whether this contender has cells to run."""
        cells = schedule.cells(self.load)
        return any(not self.results.done("closed", cell=cell.number, contender=contender) for cell in cells)

    def time_to_start(self) -> None:
        """`OutOfTimeError` if another engine start makes no sense."""
        if time.monotonic() + self.options.start_s > self.deadline:
            raise OutOfTimeError

    def stop(self) -> None:
        """End every engine."""
        while self.engines:
            self.engines.pop().stop()


def run_shared(session: Session, folder: Path) -> None:
    """The shared engine and all that can be measured on it."""
    options = session.options
    helm = Helm(SHARED, folder, options.controller_python)
    engine = session.start([SHARED], helm.target)[SHARED]
    helm.attach(engine.orders)
    bout = Bout(session.load, engine, session.results, session.deadline, options.controller_python, helm)
    try:
        helm.hand_over(f"{FIXED}{WIDEST}")
        hello = helm.hello()
        session.results.add("engine", {"engine": SHARED, **engine.facts(), **_offers(hello)})
        cost_key = read_hello(hello)[0].cost_key
        _warm_up(bout)
        if "calibrate" in options.parts:
            fixed = [name for name in offered(CONTENDERS, session.modes) if name.startswith(FIXED)]
            calibrate(bout, fixed, cost_key, list(hello.graph_batch_sizes), session.bench.work)
        prepare(helm, session.results, cost_key, session.bench.work)
        if "closed" in options.parts:
            closed(bout, session.contenders(CONTENDERS))
        if "open" in options.parts:
            open_loop(bout, session.contenders(OPEN_CONTENDERS))
    finally:
        helm.stop()


def run_own(session: Session, name: str) -> None:
    """An engine that is a contender by itself."""
    engine = session.start([name], "")[name]
    session.results.add("engine", {"engine": name, **engine.facts()})
    bout = Bout(session.load, engine, session.results, session.deadline)
    _warm_up(bout)
    closed(bout, [name])


def run_price(session: Session, folder: Path) -> None:
    """All engines of the price, side by side."""
    if bench_price.all_done(session.load, session.results):
        return
    helm = Helm(SHARED, folder, session.options.controller_python)
    engines = session.start(bench_price.engine_names(session.load), helm.target)
    helm.attach(engines[SHARED].orders)
    try:
        bench_price.price(session.load, engines, helm, session.results, session.deadline)
    finally:
        helm.stop()


def run(session: Session, folder: Path) -> str:
    """All parts, as far as time goes; why it ended early, or nothing."""
    options = session.options
    try:
        if SHARED in options.engines and session.shared_left():
            run_shared(session, folder)
            session.stop()
        for name in [name for name in options.engines if name != SHARED and "closed" in options.parts]:
            if session.closed_left(name):
                session.time_to_start()
                run_own(session, name)
                session.stop()
        if "price" in options.parts:
            session.time_to_start()
            run_price(session, folder)
    except OutOfTimeError:
        return "time is over: run it again to go on"
    except Exception as error:  # noqa: BLE001 - what is measured is in the results; the rest is for whoever looks
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        session.stop()
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is left; 0 if all is there, 3 if time ran out, 1 if something failed."""
    options = _options(arguments)
    began = time.monotonic()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[options.sizes]
    folder = Path(tempfile.mkdtemp(prefix="trimtab-"))
    try:
        load = read_load(options.load or Path(__file__).with_name(setting.load))
        models = options.models or folder / "models"
        if options.models:
            load = prompt_classes.for_classes(load, options.models)
        else:
            dummy_models.make(models, options.model or setting.shape, CANDIDATES)
        probabilities = [] if options.models else [load.probabilities(label, WIDEST) for label in load.labels]
        real = options.models is not None
        work = folder / "work"
        work.mkdir()
        place = (models.resolve(), real, work, out)
        bench = Bench(setting, options.backend, *place, probabilities, load.seed, options.port)
        name = options.models.resolve().name if real else options.model or setting.shape
        key = Key(_card(options.sizes), metadata.version("sglang"), name, options.backend, load.hash)
        results = Results(key, _results_path(out), options.earlier, _about(), options.since)
        session = Session(load, bench, results, options, began + options.seconds, [])
        print(f"{key}", flush=True)
        watchdog = threading.Timer(options.seconds + GRACE_S, session.stop)
        watchdog.daemon = True
        watchdog.start()
        problem = run(session, folder)
        watchdog.cancel()
    except (LoadError, ResultsError) as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(problem or "all is measured", flush=True)
    return 0 if not problem else 3 if problem.startswith("time") else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="results of earlier runs")
    parser.add_argument("--since", default="", help="as 2026-11-30T12:00:00Z: windows of before do not count")
    parser.add_argument("--parts", type=_list(PARTS), default=list(PARTS), help=", ".join(PARTS))
    known = (SHARED, *OWN_ENGINES)
    parser.add_argument("--engines", type=_list(known), default=[SHARED], help=", ".join(known))
    parser.add_argument("--contenders", type=_list(CONTENDERS), help=", ".join(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=480.0, help="end by then")
    parser.add_argument("--start-s", type=float, default=90.0, help="no engine is started with less time left")
    parser.add_argument("--sizes", choices=SETTINGS, default="card")
    parser.add_argument("--load", type=Path, help="load file")
    parser.add_argument("--model", choices=dummy_models.SHAPES, help="shape of the models without weights")
    parser.add_argument("--models", type=Path, help="folder with target/, draft/ and prompts.json of real models")
    parser.add_argument("--backend", default="fa3", help="attention backend")
    parser.add_argument("--controller-python", default=sys.executable, help="interpreter for trimtabd and the fit")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="first port of the engines")
    parser.add_argument("--one-by-one", action="store_true", help="start engines one after the other")
    return parser.parse_args(arguments)


def _list(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        found = text.split(",")
        for word in found:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of: {', '.join(known)}")
        return found

    return read


def _offers(hello: Any) -> dict[str, Any]:
    """What Trimtab can run in the engine, what it cannot, and what that takes."""
    return {
        "modes": [str(mode) for mode in read_hello(hello)[0].modes],
        "refused": {str(mode_from_wire("refused", r.mode)): r.reason for r in hello.plain.refused},
        "native_plain_bytes": hello.plain.ring_bytes + hello.plain.graph_bytes,
        "native_plain_start_s": hello.plain.start_time.ToTimedelta().total_seconds(),
        "candidates_bytes": hello.candidate_cost.memory_bytes,
    }


def _warm_up(bout: Bout) -> None:
    """Everything runs once: kernels are compiled, the allocator has its memory."""
    for clients in (1, max(bout.load.closed.clients)):
        bout.run(bout.load.labels[0], clients, "warm-up", WARM_UP_S)


def _card(sizes: str) -> str:
    """The card's name as its driver has it, without taking any of its memory."""
    if sizes == "cpu":
        return "CPU"
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def _results_path(out: Path) -> Path:
    return out / f"results-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"


def _about() -> dict[str, str]:
    """What every record says of its making, besides the time."""
    return {"command": shlex.join(["bench.py", *sys.argv[1:]]), "trimtab": digest()}


if __name__ == "__main__":
    sys.exit(main())
