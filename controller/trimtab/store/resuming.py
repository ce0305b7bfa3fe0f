"""What does a restarted controller go on from? Each engine's newest state, and the orders that came after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import structlog
from google.protobuf.message import DecodeError

from trimtab.errors import DataError
from trimtab.session.orders import Orders
from trimtab.session.state import PolicyChoice, SessionState
from trimtab.store.content import PinContent, StateContent, content_of, message_of
from trimtab.store.entries import ORDERS, Entry, Kind
from trimtab.store.journal_file import RunFacts
from trimtab.store.pruning import kind_list, newest_states
from trimtab.store.reading import unpacked
from trimtab.store.schema import LANDMARK_LIST
from trimtab.wire import Clocks, read_orders
from trimtabpb.v1 import admin_pb2, control_pb2

NS_PER_S = 1_000_000_000
# Leases that a run which died may have sent and not written down: at most ten reports a second, and each at most one.
LEASES_A_S = 10
UNKNOWN_S = 2.0
LONGEST_UNKNOWN_S = 3600.0
COLUMNS = "seq, run, engine, 0, kind, now_ns, wall_ns, packed, payload"

log = structlog.get_logger("trimtab")


@dataclass(frozen=True, slots=True)
class Saved:
    """One engine as the journal knows it.

    Attributes:
        entry: Its newest state.
        orders: What operators ordered afterwards, in that order.
        same_boot: Whether the clock of the entries is the clock of this run.
        unknown_leases: Leases that may have been sent after the state was written down.
    """

    entry: Entry
    orders: tuple[Entry, ...]
    same_boot: bool
    unknown_leases: int

    def content(self, now_ns: int, wall_ns: int) -> StateContent:
        """The engine as a run takes it over that begins now; a pin went on while there was no daemon.

        Raises:
            DataError: The state, or an order, cannot be read by this version.
        """
        content = content_of(self.entry, StateContent)
        _check_hello(self.entry, content.hello)
        state = after_orders(content.state, self.orders)
        shift_ns = 0 if self.same_boot else _shift_ns(self.entry, now_ns, wall_ns)
        return msgspec.structs.replace(content, state=state.after_restart(shift_ns, self.unknown_leases))


@dataclass(frozen=True, slots=True)
class SavedOrders:
    """The standing orders as the journal knows them.

    Attributes:
        entry: The newest ones.
        same_boot: Whether the clock of the entry is the clock of this run.
    """

    entry: Entry
    same_boot: bool

    def read(self, now_ns: int, wall_ns: int) -> Orders:
        """The orders as a run takes them over that begins now; what cannot be read is said and left out."""
        shift_ns = 0 if self.same_boot else _shift_ns(self.entry, now_ns, wall_ns)
        try:
            kept = message_of(self.entry, admin_pb2.Controller)
        except DataError as error:
            log.warning("standing_orders_dropped", why=str(error))
            return Orders()
        orders, problems = read_orders(kept, Clocks(self.entry.now_ns + shift_ns, self.entry.wall_ns))
        for problem in problems:
            log.warning("standing_order_dropped", why=problem)
        return orders


def _shift_ns(entry: Entry, now_ns: int, wall_ns: int) -> int:
    """What the clock shows now, less what the entry's would: the wall clock knows how long it has been."""
    return now_ns - (entry.now_ns + max(0, wall_ns - entry.wall_ns))


def _check_hello(entry: Entry, hello: bytes) -> None:
    try:
        control_pb2.Hello.FromString(hello)
    except DecodeError as error:
        raise DataError(f"entry {entry.seq}", f"has a Hello that cannot be read: {error}") from error


def after_orders(state: SessionState, orders: Iterable[Entry]) -> SessionState:
    """The state after these orders, which came when nothing else of it mattered; `DataError` if one is damaged."""
    for order in orders:
        match order.kind:
            case Kind.PINNED:
                pin = content_of(order, PinContent)
                state = state.pinned(pin.pin, order.now_ns, pin.duration_s)
            case Kind.UNPINNED:
                state = state.unpinned()
            case Kind.POLICY_SET:
                state = state.under(content_of(order, PolicyChoice))
            case Kind.SHADOW_SET:
                state = state.shadowed(content_of(order, PolicyChoice))
            case Kind.SHADOW_DROPPED:
                state = state.shadowed(None)
            case Kind.POLICIES_SWAPPED:
                state = state.swapped()
    return state


def saved_engines(db: sqlite3.Connection, run: RunFacts, oldest_wall_ns: int) -> list[Saved]:
    """Every engine with a state, but for those that were seen last before `oldest_wall_ns`.

    Args:
        db: The journal, in which `run` has begun and written nothing yet.
        run: The run that is about to go on.
        oldest_wall_ns: What is older is forgotten.
    """
    runs, last = dict(_runs(db)), _last_of_run(db)
    found = []
    for engine, seq in newest_states(db).items():
        if not engine:
            continue
        try:
            saved = _saved(db, engine, seq, runs, last, run.boot_id)
        except DataError as error:
            _say_dropped(engine, error)
            continue
        if saved is not None and saved.entry.wall_ns >= oldest_wall_ns:
            found.append(saved)
    return found


def saved_orders(db: sqlite3.Connection, run: RunFacts) -> SavedOrders | None:
    """The newest standing orders; None if nobody ever gave any. See `saved_engines`."""
    seq, runs = newest_states(db).get(""), dict(_runs(db))
    if seq is None:
        return None
    (entry,) = _entries(db, "seq = ?", seq)
    boot_id, _ = runs.get(entry.run, ("", True))
    return SavedOrders(entry, boot_id == run.boot_id)


def read_saved(saved: Iterable[Saved], now_ns: int, wall_ns: int) -> Iterator[StateContent]:
    """The engines that can be gone on with; what cannot be read is said and left out."""
    for one in saved:
        try:
            yield one.content(now_ns, wall_ns)
        except DataError as error:
            _say_dropped(one.entry.engine, error)


def _say_dropped(engine: str, error: DataError) -> None:
    log.warning("checkpoint_dropped", engine=engine, why=str(error))


def _saved(
    db: sqlite3.Connection,
    engine: str,
    seq: int,
    runs: Mapping[int, tuple[str, bool]],
    last: Mapping[int, int],
    boot_id: str,
) -> Saved | None:
    (entry,) = _entries(db, "seq = ?", seq)
    if entry.run not in runs:
        return None
    its_boot_id, ended = runs[entry.run]
    orders = _entries(
        db, f"engine = ? AND seq > ? AND kind IN ({LANDMARK_LIST}) AND kind IN ({kind_list(ORDERS)})", engine, seq
    )
    unknown = 0 if ended else _unknown_leases(entry, last.get(entry.run, entry.now_ns))
    return Saved(entry, tuple(orders), its_boot_id == boot_id, unknown)


def _runs(db: sqlite3.Connection) -> Iterator[tuple[int, tuple[str, bool]]]:
    for run, boot_id, ended in db.execute("SELECT run, boot_id, ended_wall_ns FROM runs"):
        yield run, (boot_id, ended is not None)


def _last_of_run(db: sqlite3.Connection) -> dict[int, int]:
    """When the last entry was written, for the newest run that wrote any."""
    return dict(db.execute("SELECT run, now_ns FROM entries ORDER BY seq DESC LIMIT 1").fetchall())


def _unknown_leases(entry: Entry, last_now_ns: int) -> int:
    since_s = min(LONGEST_UNKNOWN_S, max(0.0, (last_now_ns - entry.now_ns) / NS_PER_S))
    return round((since_s + UNKNOWN_S) * LEASES_A_S)


def _entries(db: sqlite3.Connection, where: str, *values: object) -> list[Entry]:
    rows = db.execute(f"SELECT {COLUMNS} FROM entries WHERE {where} ORDER BY seq", values)
    return [
        Entry(seq, run, engine, missing, Kind(kind), now_ns, wall_ns, unpacked(f"entry {seq}", packed, payload))
        for seq, run, engine, missing, kind, now_ns, wall_ns, packed, payload in rows
    ]
