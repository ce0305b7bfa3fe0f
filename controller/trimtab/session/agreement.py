"""Do the ranks of an engine still choose the same? What to do once they do not.

Ranks that part do not come together again: their digests cover every step since the start. So there is one alarm and
one pin for each run of an engine, and a pin that an operator released is not set a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.domain import EngineInfo, InForce, Mode, ModeKind, Pin, RankStep

ALARM = "rank_divergence"
OWNER = "trimtab"
# Taken where the engine does not run a mode that it could be held in, the safest first.
SAFE_PLAIN = (ModeKind.PLAIN_NATIVE, ModeKind.PLAIN_WARM)
NAMED_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ranks that have parted, as first seen at `step`; `what` for people."""

    step: int
    what: str


def disagreement(ranks: Sequence[RankStep]) -> Disagreement | None:
    """What the ranks disagree about; None while they agree, and where there is only one.

    Ranks at another step than the first say nothing: they are left out.
    """
    same_step = [rank for rank in ranks if rank.step == ranks[0].step]
    if len({rank.digest for rank in same_step}) < 2:
        return None
    (common, _), *_ = Counter((rank.mode, rank.batch_size) for rank in same_step).most_common(1)
    parted = [rank for rank in same_step if (rank.mode, rank.batch_size) != common]
    if not parted:
        return Disagreement(ranks[0].step, f"all ran {_ran(*common)}, their digests of the steps before differ")
    named = ", ".join(f"rank {rank.rank} ran {_ran(rank.mode, rank.batch_size)}" for rank in parted[:NAMED_AT_MOST])
    return Disagreement(ranks[0].step, f"{named}; the others {_ran(*common)}")


def safe_pin(found: Disagreement, info: EngineInfo, in_force: InForce) -> Pin | None:
    """The pin that holds the engine: a mode that no batch size changes. None where it follows none.

    The mode in force, so that no rank has to change; where the engine cannot be held in it, its safest plain one.
    """
    if not info.acts:
        return None
    mode = in_force.mode if in_force.mode in info.modes else _plain(info)
    reason = f"{ALARM} at step {found.step}: {found.what}"
    return None if mode is None else Pin(f"{ALARM}-{info.boot_id[:8]}-{found.step}", mode, reason[:256], OWNER)


def _plain(info: EngineInfo) -> Mode | None:
    return next((Mode(kind) for kind in SAFE_PLAIN if Mode(kind) in info.modes), None)


def _ran(mode: Mode, batch_size: int) -> str:
    return f"{mode} for a batch of {batch_size}"
