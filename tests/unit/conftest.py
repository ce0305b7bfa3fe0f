"""What the unit tests share."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more of the machine than of the code: benchmarks look at that.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")
