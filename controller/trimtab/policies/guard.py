"""Is speculation doing harm that the model does not see? Then decode plainly for a while."""

from __future__ import annotations

import math
from collections.abc import Sequence

HARMFUL_SHARE = 0.9
WINDOW_MS = 2_000.0
FIRST_HOLD_MS = 5_000.0
LONGEST_HOLD_MS = 300_000.0


class Guard:
    """Compares emitted tokens while drafting with what plain would have emitted in the same time.

    It closes when the measured tokens of `WINDOW_MS` of time in drafting modes stay under `HARMFUL_SHARE` of the
    plain estimate, and opens again after a time that doubles with every closing. Every millisecond counts alike:
    by tokens, a few steps of a large batch would outweigh a second of a small one.
    """

    def __init__(self) -> None:
        self._worth_ms = 0.0
        self._weight_ms = 0.0
        self._hold_ms = FIRST_HOLD_MS
        self._left_ms = 0.0

    @property
    def closed(self) -> bool:
        """Whether only plain is allowed."""
        return self._left_ms > 0

    def add(self, decode_ms: float, tokens: float, plain_tokens: float) -> None:
        """Take in a report in which a drafting mode was in force: what it emitted, and what plain would have."""
        if self.closed or plain_tokens <= 0:
            return
        self.fade(decode_ms)
        self._worth_ms += decode_ms * tokens / plain_tokens
        self._weight_ms += decode_ms
        if self._weight_ms < WINDOW_MS / 2:
            return
        if self._worth_ms < HARMFUL_SHARE * self._weight_ms:
            self._left_ms, self._hold_ms = self._hold_ms, min(LONGEST_HOLD_MS, 2 * self._hold_ms)
            self._worth_ms = self._weight_ms = 0.0
        else:
            self._hold_ms = max(FIRST_HOLD_MS, self._hold_ms * math.exp(-decode_ms / LONGEST_HOLD_MS))

    def fade(self, decode_ms: float) -> None:
        """Let decoding time pass: what was seen before it says less."""
        keep = math.exp(-decode_ms / WINDOW_MS)
        self._worth_ms *= keep
        self._weight_ms *= keep

    def wait(self, passed_ms: float) -> None:
        """Let time pass while closed."""
        self._left_ms = max(0.0, self._left_ms - passed_ms)

    def state(self) -> list[float]:
        """Plain values for a snapshot."""
        return [self._worth_ms, self._weight_ms, self._hold_ms, self._left_ms]

    def set_state(self, state: Sequence[float]) -> None:
        """Go on from a `state`."""
        self._worth_ms, self._weight_ms, self._hold_ms, self._left_ms = map(float, state)
