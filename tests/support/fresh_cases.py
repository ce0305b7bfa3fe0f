"""Cases from a seed: hardware, load, acceptance and switch costs that nobody looked at when the policy was written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trimtab.domain import modes_of, speculate
from trimtab.replay.environment import MAX_DEPTH, CostTable, StepLoad, load_of
from trimtab.replay.simulation.cases import CaseEnvironment, CostRow

STEPS = (0, 1, 2, 3, 5, 7)
SHORT_CONTEXT, LONG_CONTEXT = 300, 5_000
MEASURED = (("8B", "fa3"), ("32B", "fa3"), ("8B", "triton"))


def mixed_load(seed: int, steps: int = 3_000, phase_steps: tuple[int, int] = (250, 900)) -> CaseEnvironment:
    """Phases of a wandering batch; a measured table stretched to another GPU and other batch sizes."""
    rng = np.random.default_rng(seed)
    rows = _hardware(rng)
    return _case(f"mixed {seed}", rows, list(_phases(rng, rows, steps, phase_steps)), 0.3)


def by_context(seed: int, steps: int = 3_000) -> CaseEnvironment:
    """Phases of few batch sizes with short and long contexts, and a threshold between their costs."""
    rng = np.random.default_rng(seed)
    threshold = int(rng.choice([512, 1_024, 2_048]))
    rows = []
    for row in _hardware(rng)[::2][:4]:
        more = rng.uniform(0.01, 0.06) * row.batch_size**0.8 * row.ms[0] / 5
        rows.append(CostRow(row.batch_size, row.ms, threshold))
        rows.append(CostRow(row.batch_size, {k: ms + more * (1 + 0.05 * k) for k, ms in row.ms.items()}, 65_536))
    return _case(f"context {seed}", rows, list(_phases(rng, rows, steps, (300, 800), still=True)), 0.3)


def recovery(seed: int, switch_ms: float = 0.5) -> CaseEnvironment:
    """Low and high acceptance in turn: plain is best in the one, many drafts in the other."""
    rng = np.random.default_rng(seed)
    size, base, exponent = int(rng.choice([4, 8, 16])), rng.uniform(8, 25), rng.uniform(0.4, 0.6)
    ms = {k: float(base * (1 + k) ** exponent) for k in (0, 1, 3, 7)}
    loads = []
    for phase in range(4):
        chance = rng.uniform(0.85, 0.95) if phase % 2 else rng.uniform(0.05, 0.2)
        loads += [_load(rng, size, np.full(MAX_DEPTH, chance), phase) for _ in range(300)]
    return _case(f"recovery {seed}", [CostRow(size, ms)], loads, switch_ms)


def dear_switches(seed: int, steps: int = 3_000) -> CaseEnvironment:
    """As `mixed_load`, but every change of mode costs 300 ms."""
    case = mixed_load(seed, steps, (600, 1_300))
    return CaseEnvironment(f"dear {seed}", case.modes, case.start, case.cost_rows, case.loads, 300.0)


def any_switch_cost(seed: int, steps: int = 3_000) -> CaseEnvironment:
    """As `mixed_load`, with a change of mode that costs anything from a tenth of a millisecond to fifty."""
    case = mixed_load(seed, steps)
    switch_ms = float(np.exp(np.random.default_rng([seed, 1]).uniform(np.log(0.1), np.log(50.0))))
    return CaseEnvironment(f"switches {seed}", case.modes, case.start, case.cost_rows, case.loads, switch_ms)


def _case(name: str, rows: list[CostRow], loads: list[StepLoad], switch_ms: float) -> CaseEnvironment:
    steps = sorted(rows[0].ms)
    return CaseEnvironment(name, modes_of(steps), speculate(3), rows, loads, switch_ms)


def _hardware(rng: np.random.Generator) -> list[CostRow]:
    table = CostTable.measured(*MEASURED[rng.integers(len(MEASURED))])
    speed, stretch = float(np.exp(rng.uniform(-1, 1))), 2.0 ** rng.integers(-1, 2)
    rows: dict[int, dict[int, float]] = {}
    for measured in table.graph_batch_sizes:
        size = max(1, round(measured * stretch))
        rows.setdefault(size, {k: speed * table.step_ms(speculate(k), measured) for k in STEPS})
    return [CostRow(size, ms) for size, ms in rows.items()]


def _phases(
    rng: np.random.Generator, rows: list[CostRow], steps: int, phase_steps: tuple[int, int], still: bool = False
) -> Iterator[StepLoad]:
    sizes = sorted({row.batch_size for row in rows})
    left, phase = steps, 0
    while left > 0:
        length = min(left, int(rng.integers(*phase_steps)))
        size, first = float(rng.choice(sizes)), rng.uniform(0.2, 0.92)
        last, fall = np.clip(first + rng.uniform(-0.05, 0.05), 0.05, 0.95), rng.choice([1.0, 0.97, 0.93])
        context = int(rng.choice([SHORT_CONTEXT, LONG_CONTEXT])) if still else None
        for i in range(length):
            if not still and rng.random() < 0.08:
                size = size * rng.choice([0.88, 0.95, 1.05, 1.12]) + rng.choice([-2, -1, 0, 1, 2])
                size = float(min(sizes[-1], max(1, size)))
            chances = np.clip((first + (last - first) * i / length) * fall ** np.arange(MAX_DEPTH), 0.02, 0.98)
            yield _load(rng, round(size), chances, phase, context)
        left, phase = left - length, phase + 1


def _load(
    rng: np.random.Generator, size: int, chances: npt.NDArray[np.float64], phase: int, context: int | None = None
) -> StepLoad:
    runs = np.cumprod(rng.random((size, MAX_DEPTH)) < chances, axis=1).sum(axis=1)
    return load_of(np.bincount(runs, minlength=MAX_DEPTH + 1).tolist(), context, phase=str(phase))
