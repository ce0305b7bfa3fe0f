"""What would a candidate have wanted at every recorded step? It learns from what ran; nothing that it wants is run.

The candidate lives in the controller's own session and is told the recorded rows at the report interval. Its wish for
a step is the entry of its table for the batch, read as an engine reads it: with the table's smoothing and hysteresis,
since these follow from recorded batches alone. What follows from its own past is left out, since it has none here: the
lots that it would have drawn (an entry counts with all of its probabilities) and the dwell that a mode of its own
would still have to sit out. SGLang's own rule is asked at every report here, as any other policy.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.domain import EngineInfo, Lease, StepRow, TableEntry
from trimtab.replay.simulation.engine_side import EngineSide
from trimtab.replay.simulation.trial import NamedPolicy
from trimtab_sglang.lease import NEVER, LeaseMachine


class Shadow:
    """A candidate beside one run of an engine. For every row in turn: `wish`, then `see`.

    Args:
        info: What the engine says of itself.
        policy: The candidate.
        interval_ms: Report interval in recorded time.
        seed: Of the candidate.

    Raises:
        PolicyError: The candidate cannot work with the modes of this engine.
    """

    def __init__(self, info: EngineInfo, policy: NamedPolicy, interval_ms: float, seed: int) -> None:
        self._side = EngineSide(info, policy.name, policy.factory, interval_ms, seed)
        self._reader = LeaseMachine()
        self._lease: Lease | None = None
        self._table: tuple[TableEntry, ...] = ()
        self._begins_ns: int | None = None

    def wish(self, batch_size: int) -> TableEntry | None:
        """What it wants for the step that starts now; None if it has no wish."""
        lease = self._side.session.lease
        if lease is not self._lease:
            self._read(lease)
        self._reader.choose(batch_size)
        entry = self._reader.entry
        return self._table[entry] if entry >= 0 else None

    def see(self, row: StepRow) -> None:
        """Learn of the step, once the report is due that it belongs to."""
        if self._begins_ns is None:
            self._begins_ns = row.result_ns - (row.wall_gap_ns or row.step_ns or 0)
        self._side.pass_time((row.result_ns - self._begins_ns) / 1e6)
        self._side.note(row)

    def _read(self, lease: Lease | None) -> None:
        self._lease = lease
        if lease is None or not lease.table:
            self._table = ()
            self._reader.release()
            return
        drawing = lease.exploration_dwell_steps > 0
        self._table = tuple(entry if drawing else TableEntry(entry.min_batch_size, entry.mode) for entry in lease.table)
        bands = tuple(TableEntry(entry.min_batch_size, entry.mode) for entry in lease.table)
        self._reader.adopt(
            replace(lease, table=bands, min_dwell_steps=0, exploration_dwell_steps=0, life_steps=NEVER, pin=None)
        )
