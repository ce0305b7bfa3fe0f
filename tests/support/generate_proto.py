"""Generates the Python code of the protocol: `python tests/support/generate_proto.py proto`.

The versions are fixed in pyproject.toml: code of a newer generator would not load beside the protobuf that
older SGLang releases bring.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parents[2] / "proto"
PACKAGE = Path("trimtabpb", "v1")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(into: Path) -> None:
    """Write the code of every .proto file below `into`, laid out as it is committed."""
    into.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in (PROTO_ROOT / PACKAGE).glob("*.proto"))
    outputs = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        *(f"--{name}={into.resolve()}" for name in outputs),
    ]
    # protoc finds the plugins of mypy-protobuf on the path; they lie beside this interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run([*command, *sources], cwd=PROTO_ROOT, env={**os.environ, "PATH": path}, check=True)


def generated_files(root: Path) -> dict[str, str]:
    """The generated files below `root` by name."""
    return {path.name: path.read_text() for pattern in GENERATED for path in (root / PACKAGE).glob(pattern)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY")
    generate(Path(sys.argv[1]))
