"""Times of modes at batch sizes where they never ran: from what was measured, and how sure that is.

A trace of a policy that knew its way has each mode where it is good and nowhere else, so that a profile has holes
just where replay asks. They are filled by Bayesian linear regression (Bishop 2006, section 3.3) on the logarithm of
the times that were measured:

    log T(b, k) = level(b) + e(b) log(1 + k) + g(b) k / 7 + offset(k)

Level, e and g move from octave to octave of the batch size b like random walks. e is the part of a wider verify that
computes, g that of one more draft. The beliefs held beforehand were set so that the regression, shown some modes of the
measured tables of `trimtab.data`, is off on the others by as much as it says it may be: by a tenth between measured
modes, by a third where 7 drafts are told from 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain import Mode
from trimtab.policies.cost import NOISE
from trimtab.policies.cost_features import expected_exponent
from trimtab.policies.profile import CostProfile, ProfilePoint, profile_of
from trimtab.replay.arrays import Floats, Mask

WIDEST = 7
# Beliefs: e as the policies expect it times this, g, and standard deviations of each at the smallest batch and of its
# change in an octave.
EXPONENT_SHARE, GROWTH = 0.7, 0.3
LEVEL_SD, LEVEL_WALK = 4.0, 0.3
EXPONENT_SD, EXPONENT_WALK = 0.25, 0.15
GROWTH_SD, GROWTH_WALK = 0.3, 0.1
OFFSET_SD = 0.03
CELL_SD = 0.05


@dataclass(frozen=True, slots=True)
class Completed:
    """A profile without holes. Shapes: S listed batch sizes, M modes, W independent sources of doubt.

    Attributes:
        profile: The profile.
        sources: How `log` time moves with each source, by one standard deviation; shape `(S, M, W)`; 0 where it was
            measured.
        own_sd: Standard deviation that a time shares with no other; shape `(S, M)`; 0 where it was measured.
    """

    profile: CostProfile
    sources: Floats
    own_sd: Floats


def completed(profile: CostProfile, modes: Sequence[Mode], rows: Floats) -> Completed:
    """The profile with every mode at every listed size; what was measured stays.

    Args:
        profile: Fitted on rows of a trace; one point for each size.
        modes: Modes that may run, ascending.
        rows: Steps by listed size and mode; 0 where nothing was measured; shape `(S, M)`.
    """
    sizes = [point.batch_size for point in profile.points]
    known: Mask = np.asarray(rows > 0)
    listed = np.array([[profile.step_ms(mode, size) for mode in modes] for size in sizes])
    octaves, drafts = np.log2(sizes), np.array([mode.steps for mode in modes], dtype=float)
    design, believed = _design(octaves, drafts), _believed(octaves, drafts)
    noise_var = CELL_SD**2 + NOISE**2 / rows[known]
    seen = design[known]
    covariance = np.linalg.inv(_prior_precision(octaves, len(modes)) + seen.T @ (seen / noise_var[:, None]))
    weights = covariance @ (seen.T @ ((np.log(listed[known]) - believed[known]) / noise_var))
    ms = np.where(known, listed, np.exp(design @ weights + believed))
    points = [
        ProfilePoint(size, dict(zip(modes, row, strict=True))) for size, row in zip(sizes, ms.tolist(), strict=True)
    ]
    return Completed(
        profile=profile_of(points, profile.context),
        sources=np.where(known[:, :, None], 0.0, design @ np.linalg.cholesky(covariance)),
        own_sd=np.where(known, 0.0, CELL_SD),
    )


def _knots(octaves: Floats) -> int:
    return max(2, int(np.ceil(octaves.max())) + 1)


def _design(octaves: Floats, drafts: Floats) -> Floats:
    """Features of every size and mode; shape `(S, M, W)`."""
    knots, (s, m) = _knots(octaves), (len(octaves), len(drafts))
    low = np.minimum(octaves.astype(np.int64), knots - 2)
    hat = np.zeros((s, knots))
    hat[np.arange(s), low], hat[np.arange(s), low + 1] = 1 - (octaves - low), octaves - low
    by_size = hat[:, None, :]
    parts = [
        np.broadcast_to(by_size, (s, m, knots)),
        by_size * np.log1p(drafts)[:, None],
        by_size * drafts[:, None] / WIDEST,
        np.broadcast_to(np.eye(m), (s, m, m)),
    ]
    return np.concatenate(parts, axis=2)


def _believed(octaves: Floats, drafts: Floats) -> Floats:
    """What is believed of `log T` beforehand, up to the level; shape `(S, M)`."""
    exponent = EXPONENT_SHARE * np.array([expected_exponent(octave) for octave in octaves.tolist()])
    found: Floats = exponent[:, None] * np.log1p(drafts) + GROWTH * drafts / WIDEST
    return found


def _prior_precision(octaves: Floats, modes: int) -> Floats:
    """Inverse covariance of the weights beforehand; shape `(W, W)`."""
    knots = _knots(octaves)
    precision = np.zeros((3 * knots + modes, 3 * knots + modes))
    walks = ((LEVEL_SD, LEVEL_WALK), (EXPONENT_SD, EXPONENT_WALK), (GROWTH_SD, GROWTH_WALK))
    for at, (first_sd, step_sd) in enumerate(walks):
        start = at * knots
        precision[start, start] += first_sd**-2
        for i in range(start, start + knots - 1):
            precision[i : i + 2, i : i + 2] += step_sd**-2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    offsets = np.arange(3 * knots, 3 * knots + modes)
    precision[offsets, offsets] = OFFSET_SD**-2
    return precision
