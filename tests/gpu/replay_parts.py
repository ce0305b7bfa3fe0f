"""What the measurements take from Trimtab's replay, in one place."""

from __future__ import annotations

from trimtab.replay.profile_fit import fit_profile
from trimtab.replay.step_samples import StepSamples, cost_samples

__all__ = ["StepSamples", "cost_samples", "fit_profile"]
