"""Makes step rows of what the scheduler thread recorded; runs on the link thread.

Works on one raw row at a time and lets go of the interpreter in between: a long stretch of Python here
would make the scheduler thread wait for its next turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab_sglang.contexts import Contexts
from trimtab_sglang.lease import Choice, Mode
from trimtab_sglang.native_plain import LaunchNote
from trimtab_sglang.policy import MODES_BY_STEPS
from trimtab_sglang.recorder import Launch, RawRow, Recorder

ABSENT = -1
# First results of a graph size in a mode: lazy initialisation and first replays, not a cost.
WARM_UP_ROWS = 3
HEALTH_CHECK_PREFIX = "HEALTH_CHECK"
# Of the ids of the start-up sweep's dummy requests.
SWEEP_PREFIX = "TRIMTAB_SWEEP_"

GRAPH, GAP, WARM_UP, SWITCHED, EXPLORED, SWEEP = 1, 2, 4, 8, 16, 32


@dataclass(frozen=True, slots=True)
class Row:
    """A step row as the plugin sends it; the fields are those of `StepRows` in control.proto."""

    launch_id: int
    step: int
    result_ns: int
    mode: Mode
    lease_version: int
    table_entry: int
    batch_size: int
    padded_batch_size: int
    offered: tuple[int, ...]
    accepted: tuple[int, ...]
    fresh_requests: int
    stale_offered: tuple[int, ...]
    stale_accepted: tuple[int, ...]
    stale_requests: int
    emitted_tokens: int
    step_ns: int
    wall_gap_ns: int
    prefill_tokens: int
    context_tokens_sum: int
    context_tokens_max: int
    retracted_requests: int
    accepted_worst_decile: float
    catch_up_ns: int
    flags: int
    missed_tokens: int
    caught_up_tokens: int
    global_batch_size: int = ABSENT


@dataclass(frozen=True, slots=True)
class Tally:
    """Accepted drafts of one batch: requests that got at least d drafts accepted, by depth."""

    requests: int
    offered: tuple[int, ...]
    accepted: tuple[int, ...]
    worst_decile: float

    @property
    def accepted_tokens(self) -> int:
        """Accepted drafts over the batch."""
        return sum(self.accepted)


def tally(counts: Sequence[int], steps: int, skip: Sequence[int] = (), dropped: Counter[str] | None = None) -> Tally:
    """Count accepted drafts by depth.

    Args:
        counts: Accepted drafts of each request, shape `(batch_size,)`.
        steps: Drafts that were offered to each.
        skip: Indexes that say nothing (requests that had ended before).
        dropped: Where to count what was left out, by reason.
    """
    dropped = Counter() if dropped is None else dropped
    if skip:
        dropped["late_request"] += len(skip)
        ignored = set(skip)
        counts = [c for i, c in enumerate(counts) if i not in ignored]
    by_count = _histogram(counts, steps, dropped)
    requests = sum(by_count)
    # Requests that reached depth d + 1 are those with more than d accepted drafts, from the deep end.
    accepted, above = [0] * steps, 0
    for depth in range(steps, 0, -1):
        above += by_count[depth]
        accepted[depth - 1] = above
    offered = (requests, *accepted[:-1]) if steps else ()
    return Tally(requests, tuple(offered), tuple(accepted), _worst_decile(by_count, requests))


def _histogram(counts: Sequence[Any], steps: int, dropped: Counter[str]) -> list[int]:
    """Requests by accepted drafts, shape `(steps + 1,)`; what is out of range or no count is dropped."""
    try:
        packed = bytes(counts)
        by_count = [packed.count(c) for c in range(steps + 1)]
        if sum(by_count) == len(packed):
            return by_count
    except (ValueError, TypeError):
        pass
    by_count = [0] * (steps + 1)
    for count in counts:
        if not isinstance(count, int):
            dropped["unreadable_count"] += 1
        elif count < 0:
            dropped["negative_count"] += 1
        elif count > steps:
            dropped["count_above_steps"] += 1
        else:
            by_count[count] += 1
    return by_count


def _worst_decile(by_count: Sequence[int], requests: int) -> float:
    """Mean accepted drafts of the tenth of the requests with the fewest; at least one request."""
    if not requests:
        return ABSENT
    tenth = left = max(1, requests // 10)
    total = 0
    for count, n in enumerate(by_count):
        taken = min(n, left)
        total += taken * count
        left -= taken
    return total / tenth


NOTHING = Tally(0, (), (), ABSENT)


class RowMaker:
    """Drains a recorder into step rows. Owned by the link thread.

    Args:
        recorder: Whose ring to drain.
        graph_sizes: Captured batch sizes, ascending.
        mode_of: The mode that SGLang's width of a verify stands for (None: it has none).
        table_size_at: Where ranks have batches of their own: the largest of them at a step, None if that is unknown.

    Attributes:
        dropped: Rows and samples left out so far, by reason.
        switches: Changes of mode between rows so far.
        last_mode: Mode of the newest row; None before the first.
        last_result_ns: Monotonic clock of the newest row; 0 before the first.
    """

    def __init__(
        self,
        recorder: Recorder,
        graph_sizes: Sequence[int],
        mode_of: Callable[[int | None], Mode],
        table_size_at: Callable[[int], int | None] | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.switches = 0
        self.last_result_ns = 0
        self._ring = recorder.ring
        self._notes = recorder.notes
        self._graph_sizes = list(graph_sizes)
        self._mode_of = mode_of
        self._table_size_at = table_size_at
        self._contexts = Contexts()
        self._seen: Counter[tuple[int, Mode]] = Counter()
        self.last_mode: Mode | None = None
        self._last_launch_id = 0

    def drain(self, most: int) -> Iterator[Row]:
        """At most `most` rows, the oldest first. Rows that cannot be read are dropped and counted."""
        self._contexts.forget()
        for _ in range(most):
            try:
                raw = RawRow._make(self._ring.popleft())
            except IndexError:
                return
            try:
                row = self.make(raw)
            except Exception:  # noqa: BLE001 - one odd row must not end the stream
                self.dropped["unreadable_row"] += 1
                continue
            if row is not None:
                yield row

    def forget_warm_up(self) -> None:
        """Graphs may be captured anew: the first rows of each are warm-up again."""
        self._seen.clear()

    def make(self, raw: RawRow) -> Row | None:
        """The step row of one raw row; None if it says nothing."""
        launch, reqs = Launch._make(raw.launch), raw.reqs
        if not self._follows(launch):
            return None
        gap = launch.gap or launch.launch_id != self._last_launch_id + 1
        self._last_launch_id = launch.launch_id
        wall_gap_ns, self.last_result_ns = _since(self.last_result_ns, raw.result_ns), raw.result_ns
        if not reqs:
            self.dropped["empty_batch"] += 1
            return None
        # Older versions of SGLang merge new requests into a batch's list afterwards.
        batch_size = len(reqs) if raw.counts is None else len(raw.counts)
        # All ranks of a group are padded alike.
        largest = max(batch_size, self._table_size_at(launch.step) or 0) if self._table_size_at else batch_size
        mode, choice = self._mode(launch, raw.draft_tokens)
        late, note = _indexes(raw.released, reqs), self._note(launch.launch_id)
        counts = raw.counts if raw.counts is not None else [0] * batch_size
        fresh, stale = self._tally(counts, mode.steps, late, note.behind)
        context = _context(raw.seq_lens) or self._contexts.of(reqs, batch_size)
        context_sum, context_max = context or (ABSENT, ABSENT)
        # The sweep's leases are its own: no table of the controller's stands behind what they chose.
        choice = None if _is_swept(reqs) else launch.choice
        return Row(
            launch_id=launch.launch_id,
            step=launch.step,
            result_ns=raw.result_ns,
            mode=mode,
            lease_version=choice.lease_version if choice else 0,
            table_entry=choice.table_entry if choice else ABSENT,
            batch_size=batch_size,
            padded_batch_size=self._padded(largest),
            offered=fresh.offered,
            accepted=fresh.accepted,
            fresh_requests=fresh.requests,
            stale_offered=stale.offered,
            stale_accepted=stale.accepted,
            stale_requests=stale.requests,
            emitted_tokens=_emitted(raw, (fresh, stale), late),
            step_ns=ABSENT if gap else wall_gap_ns,
            wall_gap_ns=wall_gap_ns,
            prefill_tokens=launch.prefill_tokens,
            context_tokens_sum=context_sum,
            context_tokens_max=context_max,
            retracted_requests=sum(1 for r in raw.released if getattr(r, "is_retracted", False)),
            accepted_worst_decile=fresh.worst_decile if mode.steps else ABSENT,
            catch_up_ns=_catch_up_ns(note),
            flags=self._flags(raw, launch, mode, gap, largest),
            missed_tokens=note.missed_tokens,
            caught_up_tokens=note.caught_up_tokens,
            global_batch_size=largest if self._table_size_at else ABSENT,
        )

    def _note(self, launch_id: int) -> LaunchNote:
        """What else was noted of this launch; notes of launches that never came back are let go."""
        while self._notes and self._notes[0].launch_id <= launch_id:
            note: LaunchNote = self._notes.popleft()
            if note.launch_id == launch_id:
                return note
        return LaunchNote(launch_id)

    def _tally(
        self, counts: Sequence[int], steps: int, late: Sequence[int], behind: Sequence[int]
    ) -> tuple[Tally, Tally]:
        """Fresh requests, and those with tokens that the draft model has not read."""
        if not behind:
            return tally(counts, steps, late, self.dropped), NOTHING
        self.dropped["late_request"] += len(late)
        unread, ended = set(behind), set(late)
        fresh = [count for i, count in enumerate(counts) if i not in unread and i not in ended]
        stale = [count for i, count in enumerate(counts) if i in unread and i not in ended]
        return tally(fresh, steps, (), self.dropped), tally(stale, steps, (), self.dropped)

    def _follows(self, launch: Launch) -> bool:
        """Whether this launch comes after the last one; counts those missing in between."""
        missing = launch.launch_id - self._last_launch_id - 1
        if missing < 0:
            self.dropped["duplicate_launch"] += 1
        elif missing and self._last_launch_id:
            self.dropped["lost_row"] += missing
        return missing >= 0

    def _mode(self, launch: Launch, draft_tokens: int | None) -> tuple[Mode, Choice | None]:
        """The mode that ran, and the choice behind it.

        Where SGLang's own word on the width differs from the tag, it goes first, and nobody knows who chose.
        """
        if launch.choice is not None:
            mode = launch.choice.mode
        elif launch.stock_steps >= 0:
            mode = MODES_BY_STEPS[launch.stock_steps]
        else:
            return self._mode_of(draft_tokens), None
        if draft_tokens is not None and draft_tokens - 1 != mode.steps:
            said = self._mode_of(draft_tokens)
            if said.steps != mode.steps:
                self.dropped["tag_differs"] += 1
                return said, None
        return mode, launch.choice

    def _padded(self, batch_size: int) -> int:
        at = bisect_left(self._graph_sizes, batch_size)
        return self._graph_sizes[at] if at < len(self._graph_sizes) else batch_size

    def _flags(self, raw: RawRow, launch: Launch, mode: Mode, gap: bool, batch_size: int) -> int:
        last, self.last_mode = self.last_mode, mode
        switched = last is not None and mode != last
        self.switches += switched
        flags = (GRAPH if raw.graph else 0) | (GAP if gap else 0)
        flags |= (SWITCHED if switched else 0) | (EXPLORED if launch.choice and launch.choice.explored else 0)
        key = self._padded(batch_size), mode
        seen = self._seen[key]
        if seen < WARM_UP_ROWS:
            self._seen[key] = seen + 1
        if seen < WARM_UP_ROWS or _only_health_checks(raw.reqs):
            flags |= WARM_UP
        return flags | (SWEEP if _is_swept(raw.reqs) else 0)


def _since(last_ns: int, now_ns: int) -> int:
    return now_ns - last_ns if 0 < last_ns <= now_ns else ABSENT


def _indexes(released: Sequence[Any], reqs: Sequence[Any]) -> list[int]:
    """Where the released requests are in the batch, if they are."""
    return [reqs.index(r) for r in released if r in reqs] if released else []


def _catch_up_ns(note: LaunchNote) -> int:
    """Time of the catch-up before the launch; 0: none was due, but one will be; absent: there will be none."""
    if note.catch_up_ns is None:
        return 0 if note.catches_up else ABSENT
    try:
        return max(0, note.catch_up_ns())
    except Exception:  # noqa: BLE001 - the device's own errors; the row is worth more than this figure
        return 0


def _emitted(raw: RawRow, counted: Sequence[Tally], late: Sequence[int]) -> int:
    """Tokens that went out: accepted drafts and one more a request, less what stop conditions cut off."""
    tokens = sum(tally.requests + tally.accepted_tokens for tally in counted)
    for request in raw.finished:
        length = getattr(request, "finished_len", None)
        if length is not None and request in raw.reqs:
            tokens -= max(0, len(request.output_ids) - length)
    if raw.retained is not None and raw.counts is not None:
        for i, (kept, count) in enumerate(zip(raw.retained, raw.counts, strict=False)):
            if kept is not None and i not in late:
                tokens -= max(0, count + 1 - len(kept))
    return max(tokens, 0)


def _context(seq_lens: Any) -> tuple[int, int] | None:
    """Sum and maximum of the context lengths; None where SGLang keeps none on the host."""
    if seq_lens is None or getattr(seq_lens, "is_cuda", False):
        return None
    lengths = seq_lens.tolist()
    return (sum(lengths), max(lengths)) if lengths else None


def _is_swept(reqs: Sequence[Any]) -> bool:
    """Whether dummy requests of the sweep are in the batch: it begins alone, and whoever comes joins at an end."""
    return any(str(getattr(r, "rid", "")).startswith(SWEEP_PREFIX) for r in (reqs[0], reqs[-1]))


def _only_health_checks(reqs: Sequence[Any]) -> bool:
    return len(reqs) <= 2 and all(str(getattr(r, "rid", "")).startswith(HEALTH_CHECK_PREFIX) for r in reqs)
