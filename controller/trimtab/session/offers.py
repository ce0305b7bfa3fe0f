"""What can the engine be told to run?"""

from __future__ import annotations

from trimtab.domain import EngineInfo, Mode, ModeKind
from trimtab.errors import NoSuchModeError, NotOfferedError

# Cheapest first. Cold plain harms the acceptance of running requests: it is only taken by name.
SAFE_PLAIN = (ModeKind.PLAIN_NATIVE, ModeKind.PLAIN_WARM)


class Offers:
    """What an engine said of itself, and the questions that this answers without consequences.

    Attributes:
        info: Its last Hello, or None before the first.
    """

    def __init__(self) -> None:
        self.info: EngineInfo | None = None

    def known(self) -> EngineInfo:
        """What the engine said of itself; `NotOfferedError` before its first Hello."""
        if self.info is None:
            raise NotOfferedError("the engine has not said yet what it offers")
        return self.info

    def offered(self) -> str:
        """The modes on offer, for people."""
        return ", ".join(map(str, self.known().modes)) or "nothing"

    def check_acts(self) -> None:
        """Raise `NotOfferedError`, saying why, if the engine only observes."""
        info = self.known()
        if not info.acts:
            raise NotOfferedError(f"{info.key} only observes: {'; '.join(info.observe_reasons) or 'no reason given'}")

    def check_mode(self, mode: Mode) -> None:
        """Raise `NotOfferedError`, saying what is offered, unless the engine can run this mode."""
        self.check_acts()
        info = self.known()
        if mode not in info.modes:
            raise NoSuchModeError(f"{info.key} does not offer {mode}; it offers {self.offered()}")

    def cheapest_plain(self) -> Mode:
        """The cheapest safe kind of plain decoding that the engine offers, or `NotOfferedError`."""
        info = self.known()
        for kind in SAFE_PLAIN:
            if Mode(kind) in info.modes:
                return Mode(kind)
        self.check_acts()
        raise NoSuchModeError(f"{info.key} offers no plain decoding; it offers {self.offered()}")
