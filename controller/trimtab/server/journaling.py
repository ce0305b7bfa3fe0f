"""The daemon's journal from its settings: opened at the start, with what an earlier run left in it."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimtab import __version__
from trimtab.config import OFF, JournalSection, Settings, default_state_directory
from trimtab.errors import ConfigError, DataError
from trimtab.server.scribe import Profiles, Scribe
from trimtab.session.orders import Orders
from trimtab.session.profiles import KeyedProfile
from trimtab.store.content import StateContent, read_profile_content
from trimtab.store.journal_file import Bounds, JournalFile, RunFacts, TakenError
from trimtab.store.resuming import Saved, SavedOrders, read_saved, saved_engines, saved_orders
from trimtab.store.schema import ForeignFileError
from trimtab.store.writing import JournalWriter

KEY = "journal.directory"
MIB = 1 << 20
DAY_S = 86_400.0
NS_PER_S = 1_000_000_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Journaling:
    """An open journal.

    Attributes:
        scribe: Puts what happens into it.
        writer: Brings it to the disk; to be started, and closed at the end.
        saved: The engines that an earlier run knew.
        orders: The standing orders that it had.
        profiles: Cost profiles that the saved engines speak of, by id.
    """

    scribe: Scribe
    writer: JournalWriter
    saved: tuple[StateContent, ...]
    orders: Orders
    profiles: dict[str, KeyedProfile]


def open_journal(settings: Settings, profiles: tuple[KeyedProfile, ...]) -> Journaling | None:
    """The journal of these settings; None if it is switched off.

    A disk that fails is no reason not to start: the journal is then tried again and again.

    Raises:
        ConfigError: What is there is no journal, or another daemon's.
    """
    if settings.journal.directory == OFF:
        return None
    known = Profiles(profiles)
    run = run_facts(settings)
    file = JournalFile(directory_of(settings.journal), bounds_of(settings.journal), run, known.contents)
    writer = JournalWriter(file)
    try:
        saved, kept = _open(file, run)
    except (OSError, sqlite3.Error) as error:
        writer.failed(error)
        saved, kept = [], None
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    states = tuple(read_saved(saved, now_ns, wall_ns))
    orders = kept.read(now_ns, wall_ns) if kept is not None else Orders()
    found = _profiles_of(file, states)
    for profile in found.values():
        known.keep(profile)
    file.profiles.update(known.contents)
    usable = tuple(state for state in states if not state.profile or state.profile in found)
    return Journaling(Scribe(writer, known), writer, usable, orders, found)


def directory_of(section: JournalSection) -> Path:
    """Where the journal of these settings is."""
    return Path(section.directory).absolute() if section.directory else default_state_directory()


def bounds_of(section: JournalSection) -> Bounds:
    """How much the journal of these settings keeps."""
    return Bounds(section.max_mb * MIB, section.max_age_days * DAY_S)


def run_facts(settings: Settings) -> RunFacts:
    """This run, as the journal remembers it."""
    try:
        boot_id = BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return RunFacts(time.time_ns(), time.monotonic_ns(), boot_id, __version__, msgspec.json.encode(settings).decode())


def _open(file: JournalFile, run: RunFacts) -> tuple[list[Saved], SavedOrders | None]:
    try:
        file.open()
    except TakenError as error:
        raise ConfigError(
            KEY, f"another trimtabd writes {file.path}: give this one another place with --state-dir, or off"
        ) from error
    except ForeignFileError as error:
        raise ConfigError(KEY, f"{error}: move it away, or take another place with --state-dir, or off") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(KEY, f"{file.path.parent} is no directory: take another place with --state-dir") from error
    oldest_wall_ns = time.time_ns() - round(file.bounds.max_age_s * NS_PER_S)
    nothing: tuple[list[Saved], SavedOrders | None] = ([], None)
    return file.read(lambda db: (saved_engines(db, run, oldest_wall_ns), saved_orders(db, run)), nothing)


def _profiles_of(file: JournalFile, states: tuple[StateContent, ...]) -> dict[str, KeyedProfile]:
    """The profiles that these states speak of, as far as they can be read."""
    wanted = {state.profile for state in states if state.profile}
    if not wanted or not file.is_open:
        return {}
    found = {}
    for profile_id, content in file.db.execute("SELECT id, content FROM profiles").fetchall():
        if profile_id in wanted:
            try:
                found[profile_id] = read_profile_content(content)
            except DataError:
                continue
    return found
