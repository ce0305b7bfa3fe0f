"""Files that were damaged in any way either import or are one clear error; nothing else changes on disk."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.step_rows import MadeUpEngine
from support.trace_files import TRACES, rows_of, write_rows
from trimtab.domain import speculate
from trimtab.errors import DataError
from trimtab.replay.traces.csv_writer import write_csv
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.summary import summarize

DAMAGES_EACH = 60
INSERTED = (
    b"-1", b"nan", b"inf", b"1e400", b"99999999999999999999", b"", b'"', b",", b"\n", b"\0", b"[1,2", b"speculate(99)",
    b"\xff", b"\x1c", b"true", b"null", b"{}",
)  # fmt: skip


def step_log(folder: Path) -> bytes:
    text = gzip.decompress((TRACES / "llama8b_fa3_ctx64.csv.gz").read_bytes())
    return b"".join(text.splitlines(keepends=True)[:120])


def zipped_step_log(folder: Path) -> bytes:
    return gzip.compress(step_log(folder))


def server_log(folder: Path) -> bytes:
    text = gzip.decompress((TRACES / "sglang_0.5.23_fixed.log.gz").read_bytes())
    return b"".join(text.splitlines(keepends=True)[:120])


def trace(folder: Path) -> bytes:
    path = write_rows(folder / "made.parquet", MadeUpEngine(1).report(lambda size: speculate(3), 60))
    content = path.read_bytes()
    path.unlink()
    return content


def step_rows(folder: Path) -> bytes:
    (folder / "made.parquet").write_bytes(trace(folder))
    write_csv(folder / "made.parquet", folder / "made.csv")
    content = (folder / "made.csv").read_bytes()
    for name in ("made.parquet", "made.csv"):
        (folder / name).unlink()
    return content


def json_lines(folder: Path) -> bytes:
    (folder / "made.parquet").write_bytes(trace(folder))
    rows = rows_of(folder / "made.parquet")
    (folder / "made.parquet").unlink()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def damaged(content: bytes, rng: random.Random) -> bytes:
    """One to three things that go wrong with files."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at:]
            case 2:
                found[at : at + rng.randrange(8)] = rng.choice(INSERTED)
            case 3:
                lines = bytes(found).split(b"\n")
                lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                found = bytearray(b"\n".join(lines))
            case _:
                del found[at : at + rng.randrange(40)]
    return bytes(found)


def problem_of(file: Path, out: Path) -> str:
    """Why the file cannot be imported; empty if it could."""
    try:
        import_traces([file], out)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", [step_log, zipped_step_log, server_log, trace, step_rows, json_lines])
def test_a_damaged_file_imports_or_is_one_error_that_names_it(tmp_path: Path, make: Callable[[Path], bytes]) -> None:
    content, rng, refused = make(tmp_path), random.Random(make.__name__), 0
    file, out = tmp_path / "damaged", tmp_path / "out.parquet"
    for _ in range(DAMAGES_EACH):
        file.write_bytes(damaged(content, rng))
        out.write_bytes(b"what was there")
        if problem := problem_of(file, out):
            refused += 1
            assert str(file) in problem
            assert out.read_bytes() == b"what was there"
        else:
            assert summarize(out).rows > 0
        assert {path.name for path in tmp_path.iterdir()} == {"damaged", "out.parquet"}
    assert refused > 0
