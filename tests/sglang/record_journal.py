"""Records the journal that the tests verify: `python tests/sglang/record_journal.py OUT.db.gz`.

A real SGLang engine on the CPU, under load that changes; a pin and its release, another policy for a while, and a
restart of the daemon. Names of this machine are replaced. To be run again when a change of policy makes the
recorded decisions others on purpose.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from controller_process import ControllerProcess, short_folder
from engine_server import EngineServer, EngineSettings, make_models
from prompts import EASY_TOKENS, HARD_TOKENS, prompts
from traffic import Traffic
from trimtab.replay.journals.verify import verify
from trimtab.store.entries import Kind
from trimtab.store.schema import FILE_NAME
from trimtabpb.v1 import admin_pb2 as pb_admin
from trimtabpb.v1 import control_pb2 as pb

ENGINE_ID = "tiny-llama"
HOST = "cpu-server"
MODELS = "/models"
BOOT_ID = "00000000-0000-4000-8000-000000000000"
OWNER = "kim@ops"
ALL = pb_admin.Selector(all=True)
TOKENS = 120
EASY = prompts(16, EASY_TOKENS, seed=1)
HARD = prompts(16, HARD_TOKENS, seed=2)


def main(out: Path) -> None:
    """Record, tidy up, and put the journal into the file."""
    with short_folder() as folder:
        models = folder / "models"
        make_models(models)
        with ControllerProcess(folder) as controller:
            environment = {"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_ENGINE_ID": ENGINE_ID}
            with EngineServer(EngineSettings(environment=environment), models, folder / "engine") as engine:
                controller.wait_connected(ENGINE_ID)
                play(controller, engine)
        journal = controller.state / FILE_NAME
        tidy_up(journal, {str(models): MODELS, str(folder): "/run/trimtab"})
        result = verify(journal)
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
        assert result.ok
        out.write_bytes(gzip.compress(journal.read_bytes(), 9, mtime=0))
        print(f"{out.name}: {out.stat().st_size} bytes, {journal.stat().st_size} unpacked")


def play(controller: ControllerProcess, engine: EngineServer) -> None:
    """About a minute of load, with orders in it."""
    with Traffic(engine, EASY, TOKENS, 2):
        time.sleep(10)
        with controller.admin() as admin:
            admin.pin(pb_admin.PinRequest(selector=ALL, any_plain=True, reason="p99 of chat is up", owner=OWNER))
        time.sleep(5)
        with controller.admin() as admin:
            admin.unpin(pb_admin.UnpinRequest(selector=ALL, owner=OWNER))
        time.sleep(5)
    with Traffic(engine, HARD, TOKENS, 6):
        time.sleep(8)
        set_policy(controller, "ucb")
        time.sleep(7)
        set_policy(controller, "goodput", random_share="0.1")
        time.sleep(5)
    with Traffic(engine, EASY, TOKENS, 12):
        time.sleep(6)
        controller.stop()
        controller.start()
        controller.wait_connected(ENGINE_ID)
        time.sleep(12)


def set_policy(controller: ControllerProcess, name: str, **parameters: str) -> None:
    """Another policy decides from now on."""
    request = pb_admin.SetPolicyRequest(selector=ALL, policy=name, parameters=parameters, owner=OWNER)
    with controller.admin() as admin:
        admin.set_policy(request)


def tidy_up(journal: Path, names: dict[str, str]) -> None:
    """Take this machine's names out, and make the file as small as it can be."""
    with sqlite3.connect(journal, isolation_level=None) as db:
        rewrite(db, Kind.HELLO, lambda payload: hello(payload, names))
        for kind in (Kind.CHECKPOINT, Kind.RESUMED):
            rewrite(db, kind, lambda payload: state(payload, names))
        for run, settings in db.execute("SELECT run, settings FROM runs").fetchall():
            values = (replaced(settings, names), BOOT_ID, run)
            db.execute("UPDATE runs SET settings = ?, boot_id = ? WHERE run = ?", values)
        db.execute("PRAGMA journal_mode = DELETE").fetchone()
        db.execute("VACUUM")
    db.close()


def rewrite(db: sqlite3.Connection, kind: Kind, change: Callable[[bytes], bytes]) -> None:
    """Change the content of every entry of this kind."""
    for seq, packed, payload in db.execute(
        "SELECT seq, packed, payload FROM entries WHERE kind = ?", (kind,)
    ).fetchall():
        content = change(zlib.decompress(payload) if packed else payload)
        db.execute("UPDATE entries SET payload = ? WHERE seq = ?", (zlib.compress(content) if packed else content, seq))


def hello(payload: bytes, names: dict[str, str]) -> bytes:
    """The Hello without this machine's names."""
    message = pb.Hello.FromString(payload)
    message.topology.host = HOST
    message.speculation.model = replaced(message.speculation.model, names)
    message.speculation.draft_model = replaced(message.speculation.draft_model, names)
    return message.SerializeToString()


def state(payload: bytes, names: dict[str, str]) -> bytes:
    """The state without this machine's names."""
    content: dict[str, Any] = msgspec.json.decode(payload)
    key = content["state"]["info"]["cost_key"]
    key["model"], key["draft_model"] = replaced(key["model"], names), replaced(key["draft_model"], names)
    content["hello"] = hello(msgspec.convert(content["hello"], bytes), names)
    return msgspec.json.encode(content)


def replaced(text: str, names: dict[str, str]) -> str:
    """The text with other names in place of this machine's."""
    for name, other in names.items():
        text = text.replace(name, other)
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
