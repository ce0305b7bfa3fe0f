"""One engine's place in the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from trimtab.domain import EngineKey
from trimtab.server.outbox import Outbox
from trimtab.server.scribe import Written
from trimtab.session.engine_session import EngineSession
from trimtab.session.measured import Measured
from trimtab.session.orders import Selector
from trimtabpb.v1 import control_pb2

log = structlog.get_logger("trimtab")


@dataclass(slots=True)
class Seat:
    """One engine's place in the controller. Owned by `Fleet`.

    Attributes:
        hello: The engine's last Hello, fit to be shown.
        outbox: What waits to be sent on the open stream; None without one.
        refused: Messages, columns and rows of this engine that were refused, by reason.
        reports: Reports taken in.
        leases: Leases handed to the stream, renewals included.
        written: What the journal has of the session.
        canary: Whether a policy on trial acts here.
    """

    key: EngineKey
    session: EngineSession
    hello: control_pb2.Hello
    outbox: Outbox | None = None
    refused: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    leases: int = 0
    written: Written = field(default_factory=Written)
    canary: bool = False
    _measured_of: tuple[object, int] = (None, 0)
    _measured: Measured = field(default_factory=Measured)

    @property
    def identity(self) -> tuple[str, Mapping[str, str]]:
        """Id and labels, by which orders mean the engine."""
        return str(self.key), self.hello.labels

    def meant_by(self, selector: Selector) -> bool:
        """Whether the selector means the engine."""
        return selector.means(*self.identity)

    def measured(self) -> Measured:
        """Figures of the session's window, worked out once a report."""
        window = self.session.window
        if self._measured_of != (window, self.reports):
            self._measured_of, self._measured = (window, self.reports), window.measure()
        return self._measured

    def refuse(self, reasons: Iterable[str] | Counter[str]) -> None:
        """Count what was refused; the first of its kind is logged."""
        new = Counter(reasons)
        for reason in new.keys() - self.refused.keys():
            log.warning("input_refused", engine=str(self.key), reason=reason, count=new[reason])
        self.refused.update(new)
