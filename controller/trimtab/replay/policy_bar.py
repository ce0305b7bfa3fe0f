"""Does one policy lose against another on a trace? For tests that operators keep beside their configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trimtab.profile_file import read_profile
from trimtab.replay.counterfactual.replay import ReplaySettings, replay
from trimtab.replay.counterfactual.result import AS_RECORDED, ReplayVerdict
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.statistics.interval import Interval
from trimtab.replay.traces.recording import open_recording


class Comparison(msgspec.Struct, frozen=True):
    """Two policies on one trace.

    Attributes:
        policy: What was found about the policy.
        against: The same about the one that it is held against.
        gain: Tokens a second of the policy over those of the other, with its 95% interval.
    """

    policy: ReplayVerdict
    against: ReplayVerdict
    gain: Interval

    @property
    def lost(self) -> float:
        """Share of tokens a second that the policy loses, by the best estimate; 0 if it gains."""
        return max(0.0, 1 - self.gain.value)

    @property
    def lost_at_most(self) -> float:
        """The same at the unfavourable end of the interval: stricter, and sensitive to how long the trace is."""
        return max(0.0, 1 - self.gain.low)

    def __str__(self) -> str:
        change = f"{self.gain.value - 1:+.2%}"
        return (
            f"{self.policy.policy} makes {self.policy.tokens_per_s:,.0f} tokens a second on {self.policy.trace} where "
            f"{self.against.policy} makes {self.against.tokens_per_s:,.0f}: {change} "
            f"(95% interval {self.gain.low - 1:+.2%} to {self.gain.high - 1:+.2%})"
        )


def compare(
    policy: str,
    trace: Path,
    against: str = AS_RECORDED,
    *,
    profile: Path | None = None,
    switch_ms: float | None = None,
    interval_ms: float = REPORT_INTERVAL_MS,
    seed: int = 0,
) -> Comparison:
    """Replay two policies on a trace. The same arguments give the same result on every machine.

    Args:
        policy: As on the command line: `goodput`, `fixed:3`, `ucb:margin=0.05`.
        trace: A trace, a journal, or a file that `trimtab trace import` takes.
        against: Another policy, or "as recorded".
        profile: What steps cost; None fits a profile on the trace.
        switch_ms: What a change of mode costs; None learns it from the trace.
        interval_ms: Report interval in replayed time.
        seed: Of the policies, of unseen luck and of the intervals.

    Raises:
        DataError: The trace or the profile cannot be used.
        PolicyError: A policy is unknown, or cannot work with an engine of the trace.
    """
    known = read_profile(profile) if profile is not None else None
    settings = ReplaySettings(
        interval_ms=interval_ms,
        seed=seed,
        profile=known.profile if known else None,
        profile_name=known.name if known else "",
        switch_ms=switch_ms,
    )
    names = [name for name in dict.fromkeys((policy, against)) if name != AS_RECORDED]
    with open_recording(trace) as opened:
        result = replay(opened, [parse_policy(name) for name in names], settings, str(trace))
    found = {verdict.policy: verdict for verdict in result.verdicts}
    return Comparison(found[policy], found[against], result.gain(policy, against))
