"""SGLang plugins for one engine alone, without installing anything: entry points in a folder on its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Names the folder that an engine's plugins share with whoever started it.
FOLDER = "TRIMTAB_GPU_FOLDER"
TRIMTAB = {"trimtab": "trimtab_sglang.plugin:register"}


def install(folder: Path, plugins: Mapping[str, str]) -> None:
    """Have every interpreter with the folder on its path find these plugins.

    Args:
        folder: On the path; made if it is not there.
        plugins: `module:function` by name.
    """
    info = folder / "trimtab_measured-0.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trimtab_measured\nVersion: 0.1\n")
    points = [f"{name} = {where}" for name, where in plugins.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *points, ""]))
