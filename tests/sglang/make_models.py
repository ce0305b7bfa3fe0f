"""Builds every tiny model below the folder that is given. Runs in the engine environment (torch, safetensors)."""

from __future__ import annotations

import sys
from pathlib import Path

import qwen3_models
import tiny_models

if __name__ == "__main__":
    tiny_models.build(Path(sys.argv[1]))
    qwen3_models.build(Path(sys.argv[1]))
