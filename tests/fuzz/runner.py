"""Runs one fuzz target under coverage guidance: `python tests/fuzz/runner.py wire --inputs 20000`.

A target is a module `NAME_target.py` beside this file, with

* `one_input(data: bytes) -> None`: takes any bytes, and raises only if something is wrong with our code;
* `seeds() -> Iterable[bytes]`: inputs to begin with;
* `INSTRUMENT = ("module", ...)`: modules whose coverage guides the search (with all that is below them);
* `mutate(data: bytes, luck: random.Random) -> bytes` (may be left out): a change that keeps the structure.

The run fails on an exception, on an input that takes longer than `--seconds-an-input`, and if memory grows by more
than `--growth-mib` after the first tenth. The input that did it is left in `--keep`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

HERE = Path(__file__).resolve().parent
SUFFIX = "_target"
# Half of the mutations keep the structure, the others are libFuzzer's own.
STRUCTURED_SHARE = 0.5


class Target(Protocol):
    """What a target module offers beside `INSTRUMENT`; `mutate` may be missing."""

    one_input: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


class MemoryGrewError(Exception):
    """The process took more memory with every input."""


class Watched:
    """A target's `one_input` that keeps an eye on memory.

    Args:
        one_input: The target's.
        inputs: How many there will be.
        growth_mib: How much memory may grow after the first tenth of them.
    """

    def __init__(self, one_input: Callable[[bytes], None], inputs: int, growth_mib: float) -> None:
        self._one_input = one_input
        self._growth_mib = growth_mib
        self._look_every = max(1, inputs // 10)
        self._seen = 0
        self._first_mib = 0.0

    def __call__(self, data: bytes) -> None:
        """Give the target one input."""
        self._seen += 1
        if self._seen % self._look_every == 0:
            self._look()
        self._one_input(data)

    def _look(self) -> None:
        now_mib = resident_mib()
        if not self._first_mib:
            self._first_mib = now_mib
        print(f"memory after {self._seen} inputs: {now_mib:.1f} MiB", file=sys.stderr, flush=True)
        if now_mib > self._first_mib + self._growth_mib:
            raise MemoryGrewError(f"from {self._first_mib:.1f} to {now_mib:.1f} MiB in {self._seen} inputs")


def resident_mib() -> float:
    """Memory that this process really takes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def names(folder: Path = HERE) -> list[str]:
    """Every target that there is."""
    return sorted(path.stem.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}.py"))


def instrumented(path: Path) -> list[str]:
    """What the target says of itself, read without importing it: its imports are to be instrumented."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INSTRUMENT":
            return list(ast.literal_eval(node.value))
    raise SystemExit(f"{path} does not say what to INSTRUMENT")


def run(name: str, options: argparse.Namespace) -> None:
    """Fuzz; the process ends with it."""
    import atheris

    path = options.targets / f"{name}{SUFFIX}.py"
    sys.path.insert(0, str(options.targets))
    with atheris.instrument_imports(include=instrumented(path), enable_loader_override=False):
        target = cast(Target, importlib.import_module(path.stem))
    with tempfile.TemporaryDirectory(prefix="trimtab-fuzz-") as folder:
        for i, seed in enumerate(target.seeds()):
            (Path(folder) / f"seed-{i:04}").write_bytes(seed)
        arguments = [
            sys.argv[0], f"-runs={options.inputs}", f"-seed={options.seed}", f"-max_len={options.max_bytes}",
            f"-timeout={options.seconds_an_input}", f"-artifact_prefix={options.keep}/", "-print_final_stats=1",
            "-rss_limit_mb=4096", folder,
        ]  # fmt: skip
        # Looked up when it is called: the real one is put into its place as the run begins.
        mutator = _mutator(target, options.seed, lambda data, size: atheris.Mutate(data, size))
        watched = Watched(target.one_input, options.inputs, options.growth_mib)
        atheris.Setup(arguments, watched, custom_mutator=mutator)
        atheris.Fuzz()


def _mutator(target: Target, seed: int, plain: Callable[[bytes, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    structured = getattr(target, "mutate", None)
    luck = random.Random(seed)

    def mutate(data: bytes, max_size: int, _: int) -> bytes:
        if structured is None or luck.random() >= STRUCTURED_SHARE:
            return plain(data, max_size)
        changed: bytes = structured(data, luck)
        return changed if len(changed) <= max_size else plain(data, max_size)

    return mutate


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help=", ".join(names()))
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-bytes", type=int, default=4096)
    parser.add_argument("--seconds-an-input", type=int, default=10)
    parser.add_argument("--growth-mib", type=float, default=32.0)
    parser.add_argument("--targets", type=Path, default=HERE, help="folder of the target")
    parser.add_argument("--keep", type=Path, default=Path("."), help="folder for an input that failed")
    options = parser.parse_args()
    if options.target not in names(options.targets):
        parser.error(f"there is no target {options.target!r}: known are {', '.join(names(options.targets))}")
    options.keep.mkdir(parents=True, exist_ok=True)
    run(options.target, options)


if __name__ == "__main__":
    # Modules are imported as from the tests: support.*, fuzz.*.
    sys.path.insert(0, str(HERE.parent))
    main()
