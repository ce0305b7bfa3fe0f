"""Compares `EmaRule` with SGLang's own class on the same random histories. Prints what it found as JSON.

Runs in the engine environment, which has both.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from sglang.srt.speculative.adaptive_spec_params import DEFAULT_ADAPTIVE_CONFIG, AdaptiveSpeculativeParams

from trimtab.policies.ema_rule import DEFAULT_SLOTS, EmaRule, Slot

HISTORIES = 200
BATCHES = 150
GRAPH_SIZES = ((), (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256))


def random_table(source: random.Random) -> dict[int, Slot]:
    """Slots with random candidates and hysteresis."""
    starts = [1, *sorted(source.sample(range(2, 80), source.randint(0, 3)))]
    return {start: _random_slot(source) for start in starts}


def _random_slot(source: random.Random) -> Slot:
    candidates = tuple(sorted(source.sample(range(9), source.randint(1, 5))))
    return Slot(candidates, source.choice((0.0, 0.1, 0.5)), source.choice((-0.25, 0.0, 0.3)))


def config_of(table: dict[int, Slot]) -> dict[str, Any]:
    """The table in the form of SGLang's configuration file."""
    return {
        str(start): {
            "candidate_steps": list(slot.candidates),
            "up_hysteresis": slot.up_hysteresis,
            "down_hysteresis": slot.down_hysteresis,
        }
        for start, slot in table.items()
    }


def first_difference(table: dict[int, Slot] | None, source: random.Random, config: Path) -> str:
    """Run one history through both; what differs first, or an empty text."""
    initial, sizes = source.randint(0, 8), source.choice(GRAPH_SIZES)
    if table is not None:
        config.write_text(json.dumps(config_of(table)))
    theirs = AdaptiveSpeculativeParams(initial, str(config) if table is not None else None)
    theirs.set_cuda_graph_bs(list(sizes) or None)
    ours = EmaRule(DEFAULT_SLOTS if table is None else table, initial, sizes)
    likely, batch_size = source.random(), source.randint(1, 80)
    for batch in range(BATCHES):
        batch_size = max(1, min(300, batch_size + source.randint(-4, 4)))
        expected, got = theirs.get_steps_for_batch(batch_size), ours.steps_for(batch_size)
        if expected != got:
            return f"batch {batch} of {batch_size} requests: SGLang runs {expected} steps, EmaRule {got}; {table}"
        accepted = [sum(source.random() < likely for _ in range(expected)) for _ in range(batch_size)]
        changed = theirs.on_verify_complete(accepted, batch_size) is not None
        if ours.observe(sum(accepted) / len(accepted), batch_size) != changed:
            return f"batch {batch} of {batch_size} requests: SGLang changed: {changed}; {table}"
    return ""


def main() -> None:
    """Half of the histories with SGLang's default table, half with random ones."""
    source = random.Random(20)
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for history in range(HISTORIES):
            table = random_table(source) if history % 2 else None
            if difference := first_difference(table, source, Path(folder, "adaptive.json")):
                differences.append(f"history {history}: {difference}")
    default = {int(start): tuple(entry["candidate_steps"]) for start, entry in DEFAULT_ADAPTIVE_CONFIG.items()}
    same_table = default == {start: slot.candidates for start, slot in DEFAULT_SLOTS.items()}
    print(json.dumps({"histories": HISTORIES, "differences": differences, "same_default_table": same_table}))


if __name__ == "__main__":
    main()
