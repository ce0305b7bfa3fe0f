"""Step times from a real H200: what goodput learnt while it steered, against a calibration of the same engine."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trimtab.policies.cost import CellKey, CostModel, Observation, Place

REPORTS = Path(__file__).parents[1] / "data" / "step_times" / "h200_8b_reports.csv.gz"
# Native plain, warm plain, then drafts.
STEPS = (0, 0, 1, 2, 3, 5, 7)
BANDS = (1, 2, 3, 5, 9, 17, 33, 65, 129)
# Milliseconds a step by batch size, a mode in a column; medians of a calibration without Trimtab's policy.
CALIBRATION = {
    1: (4.785, 5.213, 5.366, 5.617, 5.880, 6.380, 6.921),
    4: (4.939, 5.737, 5.432, 5.710, 6.133, 6.569, 7.136),
    16: (5.061, 5.452, 5.626, 6.722, 6.412, 7.173, 7.899),
    64: (5.915, 6.374, 6.845, 8.334, 9.274, 13.046, 15.959),
    128: (6.961, 7.447, 9.830, 12.862, 15.863, 23.305, 27.779),
    256: (10.448, 9.972, 16.360, 23.655, 28.487, 43.768, 53.552),
}
Seen = dict[CellKey, Observation]


def reports() -> Iterator[tuple[int, int, Seen]]:
    """Steps, batch size of the last one, and what was seen, report by report."""
    with gzip.open(REPORTS, "rt") as lines:
        for _, of_report in itertools.groupby(csv.DictReader(lines), key=lambda row: row["report"]):
            seen: Seen = {}
            for row in of_report:
                values = [float(row[name]) for name in ("rows", "log_ms", "octave", "context", "imbalance", "scatter")]
                seen[int(row["band"]), int(row["mode"]), int(row["kind"])] = Observation(*values)
            yield int(row["steps"]), int(row["batch_size"]), seen


def test_what_is_learnt_on_the_fly_is_what_a_calibration_says() -> None:
    model = CostModel(STEPS, len(BANDS), 256, with_profile=False, native=0)
    places = [Place(math.log2(size), 0.0, 0.0) for size in (*(edge - 1 for edge in BANDS[1:]), 256)]
    errors = []
    for steps, size, seen in reports():
        model.observe(seen, steps)
        (band, mode, kind), last = list(seen.items())[-1]
        if size not in CALIBRATION:
            continue
        places[band] = Place(math.log2(size), last.context, last.imbalance)
        log_ms = model.predict(places, kind).log_ratio[band]
        truth = np.log(CALIBRATION[size])
        errors.append((log_ms - log_ms[mode]) - (truth - truth[mode]))
    assert len(errors) > 200
    by_report = np.sqrt(np.mean(np.square(errors), axis=1))
    # Most modes were never run at most batch sizes here.
    assert np.sqrt(np.mean(by_report**2)) < 0.08
    assert np.median(by_report) < 0.06
