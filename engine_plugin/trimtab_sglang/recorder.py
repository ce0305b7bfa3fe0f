"""Records decode steps on the scheduler thread: a few references a step, into a bounded ring.

Everything that takes longer than a few hundred nanoseconds (counting, sums over requests, protobuf) is
left to `rows.py`, which the link thread runs when it drains the ring. The scheduler thread appends to a
`deque` of bounded length and never waits: if nobody drains, the oldest rows fall out, and the gap in the
launch ids shows how many.

The hooks (`hooks.py`) write the fields themselves and build plain tuples: at a microsecond or two for all
hooks of a step, a method call or a named tuple's constructor is a tenth of the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trimtab_sglang.lease import Choice

RING_ROWS = 4096
# Released requests matter for the next two results only. Where no decode result comes for long (prefill
# only, or a hook that is not in place), they must not pile up.
MAX_RELEASED = 1024


class Launch(NamedTuple):
    """What was launched. The plain tuple goes on SGLang's result object, so that a late result finds it.

    Attributes:
        launch_id: Serial number of decode launches in this process.
        step: Decode step counter: the same on every rank.
        choice: What a lease or pin chose; None where the engine's own policy decided.
        stock_steps: Steps that the engine's own policy wanted; -1 where it has none.
        gap: Whether prefill or idle time lies between this launch and the one before.
        prefill_tokens: Prompt tokens launched in between.
    """

    launch_id: int
    step: int
    choice: Choice | None
    stock_steps: int
    gap: bool
    prefill_tokens: int


LaunchTuple = tuple[int, int, Choice | None, int, bool, int]
CHOICE: Final = 2
STOCK_STEPS: Final = 3


class RawRow(NamedTuple):
    """One decode result as the scheduler thread saw it; `rows.py` makes a step row of it.

    Attributes:
        launch: What was launched, a `Launch` as a plain tuple.
        result_ns: Monotonic clock after the result was processed.
        reqs: Requests of the batch. Held until the ring is drained.
        counts: Accepted drafts of each request; None without speculation.
        released: Requests whose slots were released before this result was processed: if one is in
            the batch, its result came too late and says nothing.
        finished: Requests that ended with this result.
        graph: Whether it ran from a captured graph.
        seq_lens: Context lengths on the host (a tensor), or None.
        retained: Tokens that a grammar kept of each request, or None.
        draft_tokens: Tokens a verify reads for each request (drafts and one more); None if SGLang does not say.
    """

    launch: LaunchTuple
    result_ns: int
    reqs: list[Any]
    counts: list[int] | None
    released: Sequence[Any]
    finished: Sequence[Any]
    graph: bool
    seq_lens: Any
    retained: list[Any] | None
    draft_tokens: int | None


class Recorder:
    """Owned by the scheduler thread; the link thread only takes from `ring` and reads `launches` and `last`.

    Attributes:
        ring: Rows not yet drained, the oldest first, as plain tuples of `RawRow`'s fields.
        launches: Decode launches so far.
        last: The newest launch, or None.
        processing: The launch whose result is being processed, or None.
        released: Requests whose slots were released since the last decode result, `MAX_RELEASED` at most.
        ended: Requests that ended with the last decode result.
        now_ns: Monotonic clock at the last decode result; 0 before the first.
        gap: Whether something else than decoding was launched since the last decode launch.
        prefill_tokens: Prompt tokens launched since the last decode launch.
        notes: What else there is to say of launches, the oldest first (`native_plain.LaunchNote`).
    """

    __slots__ = (
        "ended", "gap", "last", "launches", "notes", "now_ns", "prefill_tokens", "processing", "released", "ring",
    )  # fmt: skip

    def __init__(self, capacity: int = RING_ROWS) -> None:
        self.ring: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self.launches = 0
        self.last: LaunchTuple | None = None
        self.processing: LaunchTuple | None = None
        self.released: deque[Any] = deque(maxlen=MAX_RELEASED)
        self.ended: Sequence[Any] = ()
        self.gap = True
        self.now_ns = 0
        self.prefill_tokens = 0
        self.notes: deque[Any] = deque(maxlen=capacity)

    def keep_nothing(self) -> None:
        """Before the first step: rows and requests go as they come, on a rank where nobody drains the ring."""
        self.ring = deque(maxlen=0)
        self.released = deque(maxlen=0)

    def launched_prefill(self, tokens: int) -> None:
        """A prefill was launched: the next decode step is behind a gap."""
        self.gap = True
        self.prefill_tokens += tokens

    def take_released(self) -> Sequence[Any]:
        """The requests released since the last call."""
        released, self.released = self.released, deque(maxlen=MAX_RELEASED)
        return released
