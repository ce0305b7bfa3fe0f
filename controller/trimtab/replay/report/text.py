"""What the report says in words: what came out, how sure it is, and what is not in it."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.replay.counterfactual.result import ReplayResult, ReplayVerdict
from trimtab.replay.statistics.interval import Interval

SHARES = (
    (
        "Observed",
        "tokens for which the policy would have run the very mode that ran: their steps and times are as recorded.",
    ),
    (
        "Truncated",
        "tokens for which it would have made fewer drafts than were made. How many of those would have been "
        "accepted is known exactly, draft by draft; the time of the step is that of the recorded step times "
        "the ratio of the two modes' costs.",
    ),
    (
        "Modelled",
        "all others: more drafts than were made, or a log that knows only sums. Acceptance goes on from what "
        "was seen around the same time, cost as for truncated tokens.",
    ),
)


def headline(result: ReplayResult) -> list[str]:
    """One sentence for every policy: how it does against what ran."""
    recorded, *others = result.verdicts
    return [
        f"{v.policy} would have made {v.tokens_per_s:,.0f} tokens a second, {_against(v, recorded)}." for v in others
    ]


def _against(verdict: ReplayVerdict, recorded: ReplayVerdict) -> str:
    gain = verdict.against_recorded
    what = f"the {recorded.tokens_per_s:,.0f} that the recorded run made"
    span = f"95% interval {_percent(gain.low)} to {_percent(gain.high)}"
    if gain.low <= 1 <= gain.high and gain.value != 1:
        return f"which cannot be told apart from {what} ({_percent(gain.value)}, {span})"
    if gain.value == 1:
        return f"exactly {what}"
    return f"{abs(gain.value - 1):.1%} {'more' if gain.value > 1 else 'less'} than {what} ({span})"


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}".replace("-", "−")


def gain_words(gain: Interval) -> str:
    """A ratio and its interval, for the table."""
    return f"{gain.low:.3f} to {gain.high:.3f}"


def facts(result: ReplayResult) -> list[tuple[str, str]]:
    """What the figures stand on, as pairs of a name and words."""
    recorded, price = result.verdicts[0], result.costs.price
    told = f"learnt from {price.seen} changes" if price.seen else "given, or nobody knows"
    engines = ", ".join(dict.fromkeys(result.engines))
    return [
        ("Trace", f"{result.trace} ({result.source})"),
        ("Engines", engines),
        (
            "Work",
            f"{result.rows:,} rows, {recorded.steps:,.0f} decode steps, {recorded.tokens:,} tokens in "
            f"{_time(recorded.seconds)}",
        ),
        ("Step times", f"profile {result.profile}; see the cost surface"),
        ("A change of mode", f"costs {price.ms:.2g} ms ({told})"),
        ("Prefill", f"{_time(float(result.prefill_s.sum()))}, which every policy pays alike"),
        ("Left out", left_out(recorded)),
        ("Best fixed mode", f"{recorded.best_fixed}; which one it is, nobody knew beforehand"),
        ("Report interval", f"{result.interval_ms:g} ms of replayed time; SGLang's own rule decides at every step"),
        ("Seed", str(result.seed)),
    ]


def left_out(recorded: ReplayVerdict) -> str:
    """What no policy is charged for."""
    total = recorded.seconds + recorded.left_out_s
    share = recorded.left_out_s / total if total else 0.0
    rows = "".join(f"; {n:,} rows ({reason.replace('_', ' ')})" for reason, n in recorded.left_out_rows.items())
    seconds = f"{_time(recorded.left_out_s)} of pauses, warm-ups and gaps that nobody can explain"
    return f"{seconds} ({share:.1%} of the time){rows}"


def notes(verdicts: Sequence[ReplayVerdict]) -> list[str]:
    """What to bear in mind, each with the policies that it concerns."""
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        for note in verdict.notes:
            found.setdefault(note, []).append(verdict.policy)
    return [f"{', '.join(policies)}: {note}." for note, policies in found.items()]


def _time(seconds: float) -> str:
    for size, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:,.1f} s"


METHOD = (
    "A recorded row is a piece of work: the tokens that came out, at that load. Every policy gets the same work in the "
    "same order, and its time is how long it would have needed. Policies run through the same session and lease "
    "machine as live engines.",
    "With another number of drafts a step carries other tokens, so the same work takes more or fewer steps; each costs "
    "what the recorded step cost, times the ratio of the two modes in the profile.",
    "Intervals hold what chance in the load, in acceptance that was not seen and in costs that were fitted may do. "
    "Comparisons use the same chance for both sides and are much surer than each figure by itself.",
    "They do not hold other load than this trace's, and not that requests which end sooner come back sooner.",
)
