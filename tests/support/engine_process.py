"""An embedded engine with the real plugin and link, as a process of its own that does what a test writes to it.

Run as a script it decodes until its standard input ends; each line there is one of these words:

    fork-exit, fork-_exit   fork; the child decodes a little and leaves by sys.exit or os._exit; print how that went
    end                     leave in good order
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CHILD_WITHIN_S = 10.0


class EngineProcess:
    """The process. Entering starts it.

    Args:
        target: Its controller's address.
        environ: More environment variables.
    """

    def __init__(self, target: str, **environ: str) -> None:
        environment = {**os.environ, "TRIMTAB_CONTROLLER": target, "TRIMTAB_ENGINE_ID": "engine-1", **environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.engine_process"], cwd=TESTS, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def do(self, word: str) -> str:
        """Tell it a word; the line that it answers with."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, number: int | None = None, within_s: float = 10.0) -> tuple[int, float]:
        """End it, by a signal or in good order: exit status and seconds it took."""
        began = time.monotonic()
        if number is not None:
            self.process.send_signal(number)
        else:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.stdin = None
        return self.process.wait(within_s), time.monotonic() - began


def main() -> int:
    """Decode and obey."""
    from support.hooked_engine import PAUSE_S, EmbeddedEngine
    from trimtab_sglang.settings import read_settings

    engine = EmbeddedEngine(read_settings(), linked=True)
    os.register_at_fork(after_in_child=engine.plugin.leave_behind)
    words: list[str] = []
    over = threading.Event()
    threading.Thread(target=_listen, args=(words, over), daemon=True).start()
    engine.admit(2)
    while not over.is_set():
        engine.decode()
        time.sleep(PAUSE_S)
        if words:
            print(_fork(engine, words.pop(0)), flush=True)
    return 0


def _listen(words: list[str], over: threading.Event) -> None:
    while line := sys.stdin.readline():
        words.append(line.strip())
    over.set()


def _fork(engine: object, word: str) -> str:
    from support.hooked_engine import EmbeddedEngine

    assert isinstance(engine, EmbeddedEngine)
    child = os.fork()
    if not child:
        engine.decode(20)
        _leave(word, fine=engine.plugin.link is None and engine.plugin.fuse.blown)
    deadline = time.monotonic() + CHILD_WITHIN_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return f"child ended with {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "child hung"


def _leave(word: str, fine: bool) -> None:
    status = 0 if fine else 3
    if word == "fork-_exit":
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    sys.exit(main())
