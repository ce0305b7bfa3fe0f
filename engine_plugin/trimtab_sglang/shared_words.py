"""Memory that the ranks of one host share: who gave up and why, and what every rank chose at its last steps.

A word is 64 bits. Every word has one rank that writes it, the marks at the beginning excepted, which are only ever
set. So nobody locks or waits, and a reader that meets a half-written step looks again later. The file has no name
any more once all ranks have it: it goes with the last of them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimtab_sglang.lease import Mode, ModeKind

WORD = 8
# Steps that a rank remembers. Ranks are a step or two apart, the reader some hundred milliseconds behind.
REMEMBERED = 1024
TEXT_BYTES = 248
MASK = 0xFFFF_FFFF_FFFF_FFFF
# Of the FNV-1a hash; http://www.isthe.com/chongo/tech/comp/fnv/
FNV_PRIME = 0x0000_0100_0000_01B3
FNV_BASIS = 0xCBF2_9CE4_8422_2325

# Marks.
GAVE_UP, DYING, HEARD = 0, 1, 2
HEADER_WORDS = 8
# Of a rank: its newest step, whether it gave up, the length of its reason, the reason, then its steps as pairs of
# (what was chosen, digest).
NEWEST, RAISED, TEXT_LENGTH, TEXT = 0, 1, 2, 3
STEPS = TEXT + TEXT_BYTES // WORD
RANK_WORDS = STEPS + 2 * REMEMBERED

KINDS = tuple(ModeKind)
MAX_BATCH = 0xF_FFFF


@dataclass(frozen=True, slots=True)
class RankStep:
    """What a rank chose at a decode step, and its digest of all steps up to it."""

    rank: int
    step: int
    mode: Mode
    batch_size: int
    digest: int


class SharedWords:
    """The words of all ranks, as one rank sees them."""

    def __init__(self, memory: mmap.mmap, ranks: int) -> None:
        self.ranks = ranks
        self._memory = memory
        self._words = memoryview(memory).cast("Q")

    @classmethod
    def create(cls, ranks: int, folder: Path | None = None) -> tuple[SharedWords, Path]:
        """New words, all zero, and the file by which other ranks find them; `OSError` if there is no place for it."""
        descriptor, path = tempfile.mkstemp(prefix="trimtab-ranks-", dir=folder or shared_folder())
        try:
            os.ftruncate(descriptor, size_of(ranks))
            return cls(mmap.mmap(descriptor, size_of(ranks)), ranks), Path(path)
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path, ranks: int) -> SharedWords:
        """The words that another rank created; `OSError` or `ValueError` if they are not there."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), size_of(ranks)), ranks)

    # -- marks -----------------------------------------------------------------------------------

    def mark(self, mark: int) -> None:
        """Set a mark for all ranks."""
        self._words[mark] = 1

    def marked(self, mark: int) -> bool:
        """Whether any rank has set it."""
        return self._words[mark] != 0

    def give_up(self, rank: int, reason: str) -> None:
        """This rank cannot go on by itself: the rank that speaks must make all fall back together."""
        text = reason.encode()[:TEXT_BYTES]
        at = self._of(rank)
        begin = (at + TEXT) * WORD
        self._memory[begin : begin + len(text)] = text
        self._words[at + TEXT_LENGTH] = len(text)
        self._words[at + RAISED] = 1
        self._words[GAVE_UP] = 1

    def given_up(self) -> list[tuple[int, str]]:
        """The ranks that gave up, and why."""
        return [(rank, self._reason(rank)) for rank in range(self.ranks) if self._words[self._of(rank) + RAISED]]

    def _reason(self, rank: int) -> str:
        at = self._of(rank)
        begin = (at + TEXT) * WORD
        return bytes(self._memory[begin : begin + self._words[at + TEXT_LENGTH]]).decode(errors="replace")

    # -- steps -----------------------------------------------------------------------------------

    def noter(self, rank: int) -> Callable[[int, Mode | None, int, int], bool]:
        """What notes a choice of this rank: `note(step, mode, steps, batch_size)`, a few hundred nanoseconds.

        `mode` None stands for the engine's own policy, which chose `steps`. True: a rank that chose this step before
        has another digest, unless it is writing it down at this moment (`parted` looks again). Of two ranks that part
        the later one finds out, before it does anything that the other could not take part in.
        """
        words, at = self._words, self._of(rank)
        newest, first = at + NEWEST, at + STEPS
        others = [self._of(other) + STEPS for other in self._compared_with(rank)]
        digest, last_code = FNV_BASIS, 0
        last_mode: Mode | None = None

        def note(step: int, mode: Mode | None, steps: int, batch_size: int) -> bool:
            nonlocal digest, last_mode, last_code
            if mode is None:
                code = steps
            elif mode is last_mode:
                code = last_code
            else:
                last_mode, last_code = mode, code_of(mode)
                code = last_code
            chosen = (step & 0xFFFF_FFFF) << 32 | code << 20 | (batch_size if batch_size <= MAX_BATCH else MAX_BATCH)
            digest = (digest ^ chosen) * FNV_PRIME & MASK
            place = 2 * (step % REMEMBERED)
            slot = first + place
            # The newest step comes last: whoever reads it finds the rest.
            words[slot + 1] = digest
            words[slot] = chosen
            words[newest] = step
            for other in others:
                slot = other + place
                if words[slot + 1] != digest and words[slot] >> 32 == step & 0xFFFF_FFFF:
                    return True
            return False

        return note

    def parted(self, rank: int, step: int) -> bool:
        """Whether this rank and one that it is compared with have chosen this step with different digests."""
        own = self._at(rank, step)
        found = [self._at(other, step) for other in self._compared_with(rank)]
        return own is not None and any(other is not None and other.digest != own.digest for other in found)

    def _compared_with(self, rank: int) -> list[int]:
        """Rank 0 with all, every other with rank 0: that finds any that parts, and costs the others least."""
        return [other for other in range(self.ranks) if other != rank] if rank == 0 else [0]

    def at_same_step(self) -> tuple[RankStep, ...]:
        """Every rank at the newest step that all of them have chosen; empty before it and where one is half written."""
        step = min(self._words[self._of(rank) + NEWEST] for rank in range(self.ranks))
        if not step:
            return ()
        found = tuple(self._at(rank, step) for rank in range(self.ranks))
        return tuple(rank_step for rank_step in found if rank_step is not None) if all(found) else ()

    def size_at(self, rank: int, step: int) -> int | None:
        """The batch size that this rank noted at a step; None if that is too long ago."""
        found = self._at(rank, step)
        return None if found is None else found.batch_size

    def _at(self, rank: int, step: int) -> RankStep | None:
        slot = self._of(rank) + STEPS + 2 * (step % REMEMBERED)
        chosen = self._words[slot]
        digest = self._words[slot + 1]
        if chosen >> 32 != step & 0xFFFF_FFFF or self._words[slot] != chosen:
            return None
        return RankStep(rank, step, mode_of(chosen >> 20 & 0xFFF), chosen & MAX_BATCH, digest)

    def _of(self, rank: int) -> int:
        return HEADER_WORDS + rank * RANK_WORDS


def disagree(ranks: tuple[RankStep, ...]) -> bool:
    """Whether these ranks, all at one step, have chosen differently at it or before."""
    return len({rank.digest for rank in ranks}) > 1


def code_of(mode: Mode) -> int:
    """A number below 4096 for a mode; that of `speculate(k)` and of SGLang's own k steps is k."""
    if mode.kind in (ModeKind.SPECULATE, ModeKind.PLAIN_WARM):
        return mode.steps
    return KINDS.index(mode.kind) << 8


def mode_of(code: int) -> Mode:
    """The mode of a number."""
    if code >> 8:
        return Mode(KINDS[code >> 8])
    return Mode(ModeKind.SPECULATE, code) if code else Mode(ModeKind.PLAIN_WARM)


def size_of(ranks: int) -> int:
    """Bytes that the words of so many ranks take."""
    return (HEADER_WORDS + ranks * RANK_WORDS) * WORD


def shared_folder() -> Path:
    """Memory that looks like a folder, or else the folder for temporary files."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
