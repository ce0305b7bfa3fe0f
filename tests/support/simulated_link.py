"""A link between two machines that delays, drops, doubles and overtakes, as a script tells it to."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class Way:
    """One direction of the link: what is under way on it, and what the next messages meet with.

    Attributes:
        delay_ms: How long a message takes.
        drop: So many messages from now on are lost.
        double: So many messages from now on arrive twice, the second time `delay_ms` later.
        hold: So many messages from now on wait until another one has overtaken them.
    """

    delay_ms: int = 1
    drop: int = 0
    double: int = 0
    hold: int = 0
    _under_way: list[tuple[int, int, bytes]] = field(default_factory=list)
    _held: list[bytes] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def send(self, message: bytes, now_ms: int) -> str:
        """Put a message on its way; what becomes of it if it is not simply delivered."""
        if self.drop:
            self.drop -= 1
            return "lost"
        if self.hold:
            self.hold -= 1
            self._held.append(message)
            return "held"
        self._put(message, now_ms + self.delay_ms)
        for late in self._held:
            self._put(late, now_ms + self.delay_ms)
        self._held.clear()
        if self.double:
            self.double -= 1
            self._put(message, now_ms + 2 * self.delay_ms)
            return "doubled"
        return ""

    def arrived(self, now_ms: int) -> list[bytes]:
        """The messages that are there by now, in the order of their arrival."""
        ripe = sorted(entry for entry in self._under_way if entry[0] <= now_ms)
        self._under_way = [entry for entry in self._under_way if entry[0] > now_ms]
        return [message for _, _, message in ripe]

    def next_ms(self) -> int | None:
        """When the next message arrives; None if none is under way."""
        return min((at_ms for at_ms, _, _ in self._under_way), default=None)

    def clear(self) -> None:
        """The stream is cut: what is under way is lost."""
        self._under_way.clear()
        self._held.clear()

    def _put(self, message: bytes, at_ms: int) -> None:
        self._under_way.append((at_ms, next(self._order), message))
