from pathlib import Path

import pytest

from support.console_blocks import commands_of, missing_line

PAGE = """\
# Title
```console
$ trimtab engines
ENGINE  STATE
llama-a ...
$ true
```
```python
$ not a command
```
```console sglang exit=2
$ false
```
"""


def test_commands_carry_what_is_expected_of_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    engines, true, false = commands_of(page)
    assert (engines.line, engines.expected, engines.place) == (
        "trimtab engines", ("ENGINE  STATE", "llama-a ..."), "page.md:3",
    )  # fmt: skip
    assert (true.line, true.expected, true.exit_code) == ("true", (), 0)
    assert (false.line, false.tags, false.exit_code) == ("false", frozenset({"sglang", "exit=2"}), 2)


@pytest.mark.parametrize("block", ["```console\noutput first\n```\n", "```console later\n$ true\n```\n"])
def test_a_block_that_nothing_would_run_is_an_error(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        commands_of(page)


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ((), None),
        (("a b", "c ... e"), None),
        (("a  b",), None),
        (("c", "a"), "a"),
        (("c ... f",), "c ... f"),
        (("a.b",), "a.b"),
    ],
)
def test_expected_lines_come_in_order_with_gaps_for_dots(expected: tuple[str, ...], missing: str | None) -> None:
    assert missing_line(expected, "x a   b\n\nc d e\n") == missing
