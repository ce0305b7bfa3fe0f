"""What `mode_forcer` is told to run, as a lease.

The word is one of

    plain_native                        a mode, until further notice
    plain_native 500 speculate(3)       a mode for so many decode launches, then another
    1 speculate(3), 64 plain_native     a mode for each band of batch sizes
    shuffle 7 3                         all modes in turns: seed, and launches between two draws
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trimtab_sglang.lease import Lease, Mode, TableEntry


def lease_of(word: str, modes: Mapping[str, Mode], version: int) -> Lease:
    """The lease that a word asks for.

    Args:
        word: See above.
        modes: What the engine offers, by name.
        version: Of the lease.

    Raises:
        ValueError: The word has another form.
        KeyError: It names a mode that the engine does not offer.
    """
    match word.split():
        case [mode]:
            return Lease(version, (TableEntry(1, modes[mode]),))
        case ["shuffle", seed, dwell]:
            first, *others = modes.values()
            share = 1 / len(modes)
            entry = TableEntry(1, first, 1 - share * len(others), tuple((mode, share) for mode in others))
            return Lease(version, (entry,), exploration_seed=int(seed), exploration_dwell_steps=int(dwell))
        case [mode, launches, then] if launches.isdigit():
            return Lease(version, (TableEntry(1, modes[mode]),), life_steps=int(launches), then=modes[then])
    bands = [re.fullmatch(r"(\d+) (\S+)", part.strip()) for part in word.split(",")]
    found = [(int(band[1]), modes[band[2]]) for band in bands if band]
    if len(found) != len(bands):
        raise ValueError(f"not a mode, a table or a shuffle: {word}")
    # Without a running mean: the batch size of a load that swings is what it is at once.
    return Lease(version, tuple(TableEntry(size, mode) for size, mode in found), smoothing=1.0)
