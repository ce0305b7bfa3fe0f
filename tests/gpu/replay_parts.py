"""What the measurements take from Trimtab's replay, in one place."""

from __future__ import annotations

from trimtab.replay.profiles.fit import fit_profile
from trimtab.replay.profiles.samples import StepSamples, cost_samples

__all__ = ["StepSamples", "cost_samples", "fit_profile"]
