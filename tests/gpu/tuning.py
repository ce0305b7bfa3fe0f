"""What is learned from the calibration: a cost profile, and a table for SGLang's own rule that fits this load.

    python tuning.py CALIBRATION.json FOLDER

Runs where the controller's packages are (and scikit-learn); FOLDER gets `profile.json` and `tuned.json`.

The profile is the one that `trimtab profile fit` would make of these steps. The table is the best that SGLang's rule
can do here: for every slot each set of candidates, with each of a few hystereses, is run as SGLang would run it, on the
measured step times and on drafts drawn with the load's own probabilities, equally long at each acceptance; what makes
the most of its time goes into the table. No operator could tune more carefully.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain import CostKey, Mode
from trimtab.policies.ema_rule import EmaSlot, Slot
from trimtab.policies.profile import CostProfile
from trimtab.profile_file import content_of, read_mode, write_profile

STEPS = 400
HYSTERESES = ((0.0, 0.0), (0.0, -0.25), (0.25, 0.0), (-0.25, 0.0), (0.25, -0.25))
# Requests whose drafts are averaged in a large batch; more change the mean no further.
DRAWN_REQUESTS = 32

Tables = Mapping[int, float]


def tuned_table(
    ms_by_clients: Mapping[int, Tables], acceptances: Sequence[Sequence[float]], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """The table in SGLang's form.

    Args:
        ms_by_clients: For each number of clients the step time in ms by steps; 0 steps is SGLang's own zero.
        acceptances: Probabilities by draft position, one sequence for each phase of the load.
        seed: Of the drafts.
    """
    sizes = sorted(ms_by_clients)
    # A slot serves batches from its key up: it begins half-way between the sizes that were measured.
    starts = [1, *(round((a * b) ** 0.5) + 1 for a, b in itertools.pairwise(sizes))]
    return {
        str(start): _best_slot(ms_by_clients[size], acceptances, min(size, DRAWN_REQUESTS), seed)
        for start, size in zip(starts, sizes, strict=True)
    }


def _best_slot(ms: Tables, acceptances: Sequence[Sequence[float]], requests: int, seed: int) -> dict[str, Any]:
    drafts = [_drafts(probabilities, max(ms), requests, seed) for probabilities in acceptances]
    candidates = [c for n in range(1, len(ms) + 1) for c in itertools.combinations(sorted(ms), n)]
    slots = [Slot(c, up, down) for c in candidates for up, down in (HYSTERESES if len(c) > 1 else HYSTERESES[:1])]
    rates = {slot: sum(_rates(slot, ms, drafts)) for slot in slots}
    best = max(slots, key=lambda slot: rates[slot])
    return {
        "candidate_steps": list(best.candidates), "up_hysteresis": best.up_hysteresis,
        "down_hysteresis": best.down_hysteresis, "ceiling_coeff": 0,
    }  # fmt: skip


def _rates(slot: Slot, ms: Tables, drafts: Sequence[Sequence[Mapping[int, float]]]) -> Iterator[float]:
    """Tokens a millisecond and request in each phase, over the best fixed step count there.

    The state goes on from phase to phase, as it does in the engine; the first phase comes twice and counts once.
    """
    rule = EmaSlot(slot, max(slot.candidates))
    for i, phase in enumerate([drafts[0], *drafts]):
        tokens, time_ms = 0.0, 0.0
        for accepted in phase:
            steps = rule.steps
            tokens += 1 + accepted[steps]
            time_ms += ms[steps]
            rule.update(accepted[steps])
        if i:
            yield tokens / time_ms / max(sum(1 + a[k] for a in phase) / len(phase) / ms[k] for k in ms)


def _drafts(probabilities: Sequence[float], widest: int, requests: int, seed: int) -> list[dict[int, float]]:
    """Step by step the mean accepted drafts of the batch, by steps."""
    drawn = np.random.default_rng(seed)
    chance = np.array([probabilities[min(i, len(probabilities) - 1)] for i in range(widest)])
    runs = np.cumprod(drawn.random((STEPS, requests, widest)) < chance, axis=2).mean(axis=1)
    reached = np.concatenate([np.zeros((STEPS, 1)), np.cumsum(runs, axis=1)], axis=1)
    return [dict(enumerate(row)) for row in reached.tolist()]


def fitted_profile(rows: Sequence[Sequence[Any]]) -> CostProfile:
    """The profile of these steps: (mode, ms, requests, tokens of context, padded batch size)."""
    # Not at the top: scikit-learn is slow to import, and nothing else here needs it.
    from replay_parts import cost_samples, fit_profile

    modes: list[Mode] = sorted({read_mode("calibration", row[0]) for row in rows})
    number = {str(mode): i for i, mode in enumerate(modes)}
    columns = {
        "mode": np.array([number[row[0]] for row in rows]),
        "step_ns": np.array([row[1] * 1e6 for row in rows]),
        "batch_size": np.array([float(row[2]) for row in rows]),
        "context_tokens_sum": np.array([float(row[3]) for row in rows]),
        "padded_batch_size": np.array([float(row[4]) for row in rows]),
    }
    samples, _ = cost_samples(modes, columns)
    return fit_profile(samples)


def sampled(rows: Sequence[Any], most: int, seed: int) -> list[Any]:
    """At most so many of the rows, in their order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), most))]


def main(calibration: Path, folder: Path) -> None:
    """Read the calibration, leave both files."""
    found = json.loads(calibration.read_text())
    profile = fitted_profile(found["rows"])
    write_profile(folder / "profile.json", content_of(profile, CostKey(**found["key"])))
    ms_by_clients = {
        int(clients): {int(steps): ms for steps, ms in medians.items()}
        for clients, medians in found["ms_by_clients"].items()
    }
    (folder / "tuned.json").write_text(json.dumps(tuned_table(ms_by_clients, found["acceptances"]), indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
