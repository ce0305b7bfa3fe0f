"""The entry points where the controller's packages are missing."""

from __future__ import annotations

import sys

import pytest

from trimtab.cli import entry


@pytest.mark.parametrize("program", ["trimtab", "trimtabd"])
def test_without_the_extras_one_line_says_how_to_get_them(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("trimtab.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        getattr(entry, program)()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"{program}: typer is not installed: pip install 'trimtab[controller]'\n"


def test_the_entry_points_run_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trimtab", "--version"])
    with pytest.raises(SystemExit) as stopped:
        entry.trimtab()
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("trimtab ")
