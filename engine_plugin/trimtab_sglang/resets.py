"""What makes everything learned of an engine out of date: other weights, other adapters, memory given back.

The scheduler thread counts; the link thread reads, and tells the controller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Resets:
    """Written by the scheduler thread alone.

    Attributes:
        count: How often it happened since the engine started.
        reason: The last of them; empty before the first.
        weight_version: Of the weights since, where somebody said.
    """

    count: int = 0
    reason: str = ""
    weight_version: str = ""

    def note(self, reason: str, weight_version: object = None) -> None:
        """It happened."""
        self.reason = reason
        if weight_version is not None:
            self.weight_version = str(weight_version)
        # Last, so that whoever sees the new count sees the rest.
        self.count += 1
