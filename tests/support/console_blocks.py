"""The commands of a Markdown page: what an operator types, and what the page says comes back.

    ```console TAG...
    $ command
    expected line, `...` stands for anything
    ```

Tags: `sglang` needs the engine's environment, `background` goes on running, `exit=N` is the exit status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```console([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KNOWN_TAGS = re.compile(r"sglang|background|exit=\d+")


@dataclass(frozen=True)
class Command:
    """One line after a `$`.

    Attributes:
        expected: Lines that must come back, in this order, other lines may lie between.
        place: Page and line, for messages.
    """

    line: str
    expected: tuple[str, ...]
    tags: frozenset[str]
    place: str

    @property
    def exit_code(self) -> int:
        """The exit status that the page promises."""
        return next((int(tag.removeprefix("exit=")) for tag in self.tags if tag.startswith("exit=")), 0)


def commands_of(page: Path) -> list[Command]:
    """Every command of the page, from top to bottom."""
    text = page.read_text()
    found: list[Command] = []
    for block in BLOCK.finditer(text):
        tags = frozenset(block[1].split())
        first = text[: block.start(2)].count("\n") + 1
        found += _commands(block[2].splitlines(), tags, page.name, first)
    return found


def _commands(lines: list[str], tags: frozenset[str], page: str, first: int) -> list[Command]:
    unknown = [tag for tag in tags if not KNOWN_TAGS.fullmatch(tag)]
    assert not unknown, f"{page}:{first}: unknown tags {unknown}"
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"{page}:{first}: a console block begins with a command"
    return [
        Command(lines[start][2:], tuple(lines[start + 1 : end]), tags, f"{page}:{first + start}")
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
    ]


def missing_line(expected: tuple[str, ...], output: str) -> str | None:
    """The first expected line that does not come in its turn; runs of blanks count as one."""
    lines = iter(" ".join(line.split()) for line in output.splitlines())
    for line in expected:
        pattern = re.compile(".*".join(re.escape(" ".join(part.split())) for part in line.split("...")))
        if not any(pattern.search(candidate) for candidate in lines):
            return line
    return None
