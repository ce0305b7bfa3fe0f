"""An SGLang plugin for tests: lets native plain fail in the midst of its work.

TRIMTAB_TEST_FAULT is `native:N` (the Nth native round fails as the target's forward begins) or `catch_up:N` (the Nth
catch-up fails after its first chunk).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULT = "TRIMTAB_TEST_FAULT"


def install(folder: Path) -> dict[str, str]:
    """Make it an entry point that lies on the path of one engine; environment variables for that engine."""
    info = folder / "plain_faults-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain_faults\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nplain_faults = plain_faults:register\n")
    (folder / "plain_faults.py").write_text(Path(__file__).read_text())
    return {"PYTHONPATH": str(folder)}


def register() -> None:
    """SGLang's entry point."""
    from trimtab_sglang.plain_start import DeviceRounds

    kind, number = os.environ[FAULT].split(":")
    setattr(DeviceRounds, kind, _failing(getattr(DeviceRounds, kind), kind, int(number)))


def _failing(method: Callable[..., Any], kind: str, number: int) -> Callable[..., Any]:
    calls = 0

    def call(rounds: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            _break(rounds, kind)
        return method(rounds, *args, **kwargs)

    return call


def _break(rounds: Any, kind: str) -> None:
    """From here on what the method works with fails, as on a device that gave up."""
    if kind == "native":
        from trimtab_sglang import native_round

        vars(native_round)["_as_decode"] = _fail
        return
    extend, chunks = rounds._catch_up._extend, 0

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal chunks
        chunks += 1
        return _fail() if chunks > 1 else extend(*args, **kwargs)

    rounds._catch_up._extend = second_fails


def _fail(*_args: Any) -> Any:
    raise RuntimeError("a fault made by a test")
