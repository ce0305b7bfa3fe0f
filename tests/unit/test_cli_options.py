import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import typer.main

from trimtab.cli import main, pinning
from trimtab.cli.options import pairs, selector
from trimtab.errors import TrimtabError
from trimtabpb.v1 import admin_pb2, control_pb2


@pytest.mark.parametrize(
    ("engine", "everything", "labels", "expected"),
    [
        ("llama-a", False, None, admin_pb2.Selector(engine_ids=["llama-a"])),
        (None, True, None, admin_pb2.Selector(all=True)),
        (None, False, ["team=chat", "zone=a=b"], admin_pb2.Selector(labels={"team": "chat", "zone": "a=b"})),
    ],
)
def test_engines_are_chosen_by_id_all_or_labels(
    engine: str | None, everything: bool, labels: list[str] | None, expected: admin_pb2.Selector
) -> None:
    assert selector(engine, everything, labels) == expected


@pytest.mark.parametrize(
    ("engine", "everything", "labels"),
    [(None, False, None), ("llama-a", True, None), ("llama-a", False, ["k=v"]), (None, True, ["k=v"])],
)
def test_anything_but_one_way_of_choosing_is_refused(
    engine: str | None, everything: bool, labels: list[str] | None
) -> None:
    with pytest.raises(TrimtabError, match="say which engines"):
        selector(engine, everything, labels)


@pytest.mark.parametrize("text", ["team", "=chat", ""])
def test_a_pair_without_key_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(TrimtabError, match=r"--label .* must be key=value"):
        pairs("--label", [text])


def test_an_empty_value_is_a_value() -> None:
    assert pairs("-p", ["mode="]) == {"mode": ""}


@pytest.mark.parametrize(
    ("plain", "steps", "kind", "drafts"),
    [
        ("native", None, control_pb2.Mode.KIND_PLAIN_NATIVE, 0),
        ("cold", None, control_pb2.Mode.KIND_PLAIN_COLD, 0),
        ("warm", None, control_pb2.Mode.KIND_PLAIN_WARM, 0),
        (None, "3", control_pb2.Mode.KIND_SPECULATE, 3),
    ],
)
def test_a_pin_names_one_mode(
    plain: str | None, steps: str | None, kind: control_pb2.Mode.Kind.ValueType, drafts: int
) -> None:
    assert pinning.target(plain, steps) == {"mode": control_pb2.Mode(kind=kind, steps=drafts)}


@pytest.mark.parametrize(("steps", "low", "high"), [("1-3", 1, 3), ("0-5", 0, 5), (" 2-2 ", 2, 2)])
def test_a_pin_names_a_range_of_steps(steps: str, low: int, high: int) -> None:
    assert pinning.target(None, steps) == {"range": control_pb2.StepRange(min_steps=low, max_steps=high)}


def test_plain_alone_leaves_the_kind_to_the_controller() -> None:
    assert pinning.target(pinning.CHEAPEST, None) == {"any_plain": True}


@pytest.mark.parametrize(
    ("plain", "steps", "advice"),
    [
        (None, None, "say which mode"),
        ("warm", "3", "only one of these"),
        ("hot", None, "use native, cold, warm"),
        (None, "0", "use --plain"),
        (None, "-1", "a number of drafts, as in 3, or a range, as in 1-3"),
        (None, "many", "a number of drafts, as in 3, or a range, as in 1-3"),
        (None, "3-1", "write the smaller number first"),
    ],
)
def test_a_pin_without_one_clear_mode_is_refused_with_advice(plain: str | None, steps: str | None, advice: str) -> None:
    with pytest.raises(TrimtabError, match=advice):
        pinning.target(plain, steps)


@pytest.mark.parametrize(
    ("arguments", "plain", "engine"),
    [
        (["llama-a", "--plain"], pinning.CHEAPEST, "llama-a"),
        (["--plain", "llama-a"], pinning.CHEAPEST, "llama-a"),
        (["--plain=warm", "llama-a"], "warm", "llama-a"),
        (["--all", "--plain", "--for", "10m"], pinning.CHEAPEST, None),
        (["--plain", "--", "--plain"], pinning.CHEAPEST, "--plain"),
        (["llama-a", "--steps", "3"], None, "llama-a"),
    ],
)
def test_plain_stands_alone_or_carries_a_kind(arguments: list[str], plain: str | None, engine: str | None) -> None:
    parsed = parameters_of("pin", arguments)
    assert (parsed["plain"], parsed["engine"]) == (plain, engine)


@pytest.mark.parametrize(
    "command_line",
    [
        [],
        ["pin"],
        ["pin", "llama-a", "--plain", "--for", "10"],
        ["pin", "llama-a", "--steps", "many"],
        ["fly"],
        ["engines", "--wings"],
        ["show"],
        ["policy", "-p", "a=1"],
        ["policy", "--all", "--shadow"],
        ["policy", "--all", "--canary"],
        ["policy", "--all", "--set", "ucb", "--canary", "--shadow"],
        ["policy", "--all", "--set", "ucb", "--share", "0.5"],
        ["policy", "--all", "--set", "ucb", "--canary", "--share", "1.5"],
        ["policy", "--promote", "--withdraw"],
        ["freeze"],
        ["engines", "--controller", "somewhere"],
        ["engines", "--controller", "unix:/nonexistent/trimtabd.sock"],
        ["--controller", "127.0.0.1:1", "engines"],
        ["top", "--once", "--controller", "unix:/nonexistent/trimtabd.sock"],
        ["pin", "--all", "--plain", "--controller", "unix:/nonexistent/trimtabd.sock"],
    ],
)
def test_whatever_goes_wrong_is_one_line_on_stderr_and_exit_status_2(
    command_line: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = 2 if command_line else 0
    with pytest.raises(SystemExit) as caught:
        main.main(command_line)
    assert caught.value.code == expected
    out, err = capsys.readouterr()
    if expected:
        assert out == ""
        assert err.startswith("trimtab: ")
        assert err.count("\n") == 1
    else:
        assert "Usage: trimtab" in out
        assert err == ""


def test_a_dead_daemon_is_named_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["engines", "--controller", "unix:/nonexistent/trimtabd.sock"])
    assert capsys.readouterr().err == (
        "trimtab: no controller answers at unix:/nonexistent/trimtabd.sock: start trimtabd, "
        "or name another with --controller or TRIMTAB_CONTROLLER\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "environment", "named"),
    [
        ([], [], {"TRIMTAB_CONTROLLER": "unix:/no/env"}, "unix:/no/env"),
        (["--controller", "unix:/no/before"], [], {"TRIMTAB_CONTROLLER": "unix:/no/env"}, "unix:/no/before"),
        (["--controller", "unix:/no/before"], ["--controller", "unix:/no/after"], {}, "unix:/no/after"),
        ([], [], {}, "unix:/no/default"),
    ],
)
def test_the_nearest_word_on_the_controllers_address_counts(
    before: list[str],
    after: list[str],
    environment: dict[str, str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRIMTAB_CONTROLLER", raising=False)
    monkeypatch.setattr("trimtab.config.default_socket_path", lambda: "/no/default")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main.main([*before, "engines", *after])
    assert f"answers at {named}:" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from trimtab.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'grpc', 'numpy', 'msgspec', 'google.protobuf'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "80"}
    )
    assert (result.returncode, result.stderr) == (0, "[]\n")


def parameters_of(command: str, arguments: list[str]) -> dict[str, Any]:
    group: Any = typer.main.get_command(main.app)
    context = group.commands[command].make_context(command, arguments)
    return dict(context.params)
