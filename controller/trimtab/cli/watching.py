"""The newest state of every engine, kept up to date in the background."""

from __future__ import annotations

import threading
import time

from msgspec.structs import replace

from trimtab.cli.client import Controller, ControllerError
from trimtab.cli.views import EngineView, LeaseView, engine_view
from trimtabpb.v1 import admin_pb2

RECONNECT_AFTER_S = 1.0
# The slowest report interval is 5 s; nothing for longer than that is worth a look.
SILENT_AFTER_S = 6.0


class Watching:
    """Follows the controller's Watch stream in a thread of its own; comes back when the controller does.

    Attributes:
        trouble: What is wrong with the controller at this moment; empty if nothing is.
    """

    def __init__(self, controller: Controller) -> None:
        self.trouble = ""
        self._controller = controller
        self._latest: dict[str, tuple[EngineView, float]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trimtab-watch", daemon=True)

    def start(self) -> None:
        """Take in what is there now, and follow from here on.

        Raises:
            ControllerError: No controller answers.
        """
        self._take_all()
        self._thread.start()

    def stop(self) -> None:
        """Take in nothing more."""
        self._stopped.set()

    def engines(self) -> list[EngineView]:
        """Every engine by id, ages counted on to now."""
        now = time.monotonic()
        with self._lock:
            latest = sorted(self._latest.items())
        return [aged(view, now - since) for _, (view, since) in latest]

    def _take_all(self) -> None:
        """What this controller knows, and nothing that only one before it knew."""
        now = {engine.engine_id: (engine_view(engine), time.monotonic()) for engine in self._controller.engines()}
        with self._lock:
            self._latest = now
        self.trouble = ""

    def _take(self, engine: admin_pb2.Engine) -> None:
        with self._lock:
            self._latest[engine.engine_id] = engine_view(engine), time.monotonic()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._take_all()
                for engine in self._controller.watch(admin_pb2.Selector(all=True)):
                    self._take(engine)
            except ControllerError as error:
                self.trouble = str(error)
            self._stopped.wait(RECONNECT_AFTER_S)


def aged(view: EngineView, elapsed_s: float) -> EngineView:
    """The view `elapsed_s` after it was taken; an engine that should have reported since is silent."""
    message_age_s = None if view.last_message_age_s is None else view.last_message_age_s + elapsed_s
    silent = view.state != "disconnected" and message_age_s is not None and message_age_s > SILENT_AFTER_S
    return replace(
        view,
        state="silent" if silent else view.state,
        lease=_aged(view.lease, elapsed_s),
        last_message_age_s=message_age_s,
    )


def _aged(lease: LeaseView | None, elapsed_s: float) -> LeaseView | None:
    if lease is None or lease.age_s is None:
        return lease
    return replace(lease, age_s=lease.age_s + elapsed_s)
