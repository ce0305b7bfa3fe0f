"""The journal as Prometheus metrics; none of them is there while it is switched off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab.server.scribe import Scribe

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JournalMetric:
    """One figure; `value` None leaves it out."""

    name: str
    help: str
    value: Callable[[Scribe], float | None]
    counter: bool = False


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """Counts by reason."""

    name: str
    help: str
    counts: Callable[[Scribe], Mapping[str, int]]


METRICS = (
    JournalMetric(
        "trimtab_journal_failing",
        "1 while the journal cannot be written, 0 otherwise. At 1: `trimtab engines` says why; engines are steered all "
        "the same, but a restart would forget what is not written. See runbooks/procedures/journal.md.",
        lambda scribe: float(bool(scribe.figures.problem)),
    ),
    JournalMetric(
        "trimtab_journal_entries",
        "Entries that are on the disk. If it stands still while reports come in, look at trimtab_journal_failing.",
        lambda scribe: float(scribe.figures.entries),
        counter=True,
    ),
    JournalMetric(
        "trimtab_journal_bytes",
        "Size of the journal on the disk. It grows up to journal.max_mb and stays there; much more means that somebody "
        "reads it and does not stop: close that reader.",
        lambda scribe: float(scribe.figures.file_bytes),
    ),
    JournalMetric(
        "trimtab_journal_lag_seconds",
        "Age of the oldest entry that is not on the disk yet. Over 1 s for minutes: take a faster disk.",
        Scribe.lag_s,
    ),
    JournalMetric(
        "trimtab_journal_oldest_entry_age_seconds",
        "How far the journal goes back. Shorter than you need for a replay: raise journal.max_mb.",
        lambda scribe: _age_s(scribe.figures.oldest_wall_ns),
    ),
)
COUNTS = (
    JournalCounts(
        "trimtab_journal_dropped_entries",
        "Entries that the journal does not have, by reason. queue_full: the disk failed, or was too slow, for longer "
        "than the queue lasts; these entries are a gap in every replay.",
        lambda scribe: scribe.figures.dropped,
    ),
    JournalCounts(
        "trimtab_journal_errors",
        "Writes that failed and are tried again, by reason. disk_full: make room; read_only, cannot_open: look at the "
        "mount and the owner of the directory; io: look at the disk; damaged: a new journal was begun, see the log.",
        lambda scribe: scribe.figures.errors,
    ),
)


class JournalCollector(Collector):
    """Reads the journal's figures once a scrape.

    Args:
        scribe: Gives what writes the journal, or None without one; called on the scraping thread.
    """

    def __init__(self, scribe: Callable[[], Scribe | None]) -> None:
        self._scribe = scribe

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against other collectors."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        scribe = self._scribe()
        if scribe is None:
            return
        for metric in METRICS:
            value = metric.value(scribe)
            family = (CounterMetricFamily if metric.counter else GaugeMetricFamily)(metric.name, metric.help)
            if value is not None:
                family.add_metric([], value)
            yield family
        for counts in COUNTS:
            by_reason = CounterMetricFamily(counts.name, counts.help, labels=["reason"])
            for reason, count in sorted(dict(counts.counts(scribe)).items()):
                by_reason.add_metric([reason], count)
            yield by_reason


def _age_s(wall_ns: int | None) -> float | None:
    return None if wall_ns is None else max(0.0, (time.time_ns() - wall_ns) / NS_PER_S)
