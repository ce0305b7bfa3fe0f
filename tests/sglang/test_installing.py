"""The runbooks for installing and rolling back, followed to the letter beside a real SGLang server."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller_process import short_folder
from engine_server import COMMON_ARGUMENTS, ENGINE_PYTHON, START_TIMEOUT_S, free_port
from support.command_line import trimtab
from support.console_blocks import Command
from support.runbook_operator import Operator, ended, settings_of, wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROCEDURES = Path(__file__).resolve().parents[2] / "runbooks" / "procedures"
# SGLang's configuration files do not take `disable-cuda-graph`.
WITHOUT_GRAPHS = {"cuda-graph-backend-decode": "disabled", "cuda-graph-backend-prefill": "disabled"}
DRAFT_ON_THE_PAGE = "/models/llama-a-eagle"


class SglangOperator(Operator):
    """Types what needs SGLang where SGLang is, and starts its server for real."""

    def __init__(self, folder: Path, models: Path) -> None:
        super().__init__(folder)
        self._models = models / "cycle"
        self._port = free_port()
        self._beside_server = {
            **self.environment,
            "PATH": f"{ENGINE_PYTHON.parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def adapted(self, name: str, content: str) -> str:
        """The page's file, with the flags that the server has without Trimtab."""
        content = super().adapted(name, content)
        if name != "server.yaml":
            return content
        assert DRAFT_ON_THE_PAGE in content
        present = {
            **COMMON_ARGUMENTS,
            **WITHOUT_GRAPHS,
            "port": str(self._port),
            "model-path": str(self._models / "target"),
        }
        del present["disable-cuda-graph"]
        lines = [f"{flag}: {value or 'true'}\n" for flag, value in present.items()]
        return content.replace(DRAFT_ON_THE_PAGE, str(self._models / "draft")) + "".join(lines)

    def start_server(self, command: Command) -> None:
        """Start the server, wait until it serves, and until its plugin has connected unless that is off."""
        process = self.start(command.line, self._beside_server, "server")
        self.server.callback(ended, process)
        log = self.folder / "server.log"
        wait_until(self._serves, process, log, START_TIMEOUT_S)
        settings = settings_of(command.line)
        if settings.get("TRIMTAB_MODE") != "off":
            wait_until(lambda: settings["TRIMTAB_ENGINE_ID"] in trimtab(self.target, "engines").out, process, log)

    def run_beside_server(self, command: Command) -> None:
        """Type it in the server's environment."""
        self.type(command, self._beside_server)

    def _serves(self) -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
            return True
        return False


@pytest.fixture
def operator(models: Path) -> Iterator[SglangOperator]:
    with short_folder() as folder, SglangOperator(folder, models) as operator:
        yield operator


def test_a_server_is_put_under_trimtab_and_taken_out_again_as_the_pages_say(operator: SglangOperator) -> None:
    operator.follow(PROCEDURES / "install-beside-a-server.md")
    log = (operator.folder / "server.log").read_text()
    assert "trimtab acts beside SGLang" in log
    assert "trimtab is connected to controller" in log
    operator.follow(PROCEDURES / "roll-back.md")
    assert "trimtab acts" not in (operator.folder / "server.log").read_text()
