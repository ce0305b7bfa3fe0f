"""`[[profile]]` entries of the daemon's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from trimtab.config import Settings, load_profiles, load_tables, make_settings, render_settings
from trimtab.domain import PLAIN_WARM, CostKey, speculate
from trimtab.errors import ConfigError
from trimtab.policies.profile import ContextCost

PROFILE = """{"key": {"model": "/models/8b", "device_name": "NVIDIA H200", "weight_version": "v1"},
"points": [{"batch_size": 8, "ms": {"plain_warm": 5.5, "speculate(3)": 6.5}}]}"""
SETTINGS = """
[[profile]]
file = "profiles/8b.json"
key = { weight_version = "v2", sglang_version = "0.5" }

[[profile]]
name = "by hand"
[profile.key]
model = "/models/70b"
device_name = "NVIDIA H200"
tp_size = 8
[[profile.points]]
batch_size = 1
ms = { plain_warm = 12.0, "speculate(3)" = 14.5 }
[[profile.points]]
batch_size = 16
ms = { plain_warm = 13.0, "speculate(3)" = 17.5 }
[profile.context]
reference_tokens = 1000
ms_per_token = 0.00002
"""


@pytest.fixture
def settings_path(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "8b.json").write_text(PROFILE)
    path = tmp_path / "trimtabd.toml"
    path.write_text(SETTINGS)
    return path


def test_profiles_come_from_files_beside_the_settings_or_stand_in_them(settings_path: Path) -> None:
    from_file, by_hand = load_profiles(make_settings(load_tables(settings_path)))
    assert from_file.name == "8b.json"
    assert from_file.key == CostKey("/models/8b", "v2", device_name="NVIDIA H200", sglang_version="0.5")
    assert from_file.profile.step_ms(speculate(3), 8) == 6.5
    assert by_hand.name == "by hand"
    assert by_hand.key == CostKey("/models/70b", device_name="NVIDIA H200", tp_size=8)
    assert by_hand.profile.step_ms(PLAIN_WARM, 2) == 13.0
    assert by_hand.profile.context == ContextCost(1000, 0.00002)


def test_settings_with_profiles_are_printed_as_ones_that_mean_the_same(settings_path: Path) -> None:
    settings = make_settings(load_tables(settings_path))
    assert make_settings(msgspec.toml.decode(render_settings(settings))) == settings


def test_without_profiles_there_are_none() -> None:
    assert load_profiles(Settings()) == ()


POINTS = [{"batch_size": 1, "ms": {"plain_warm": 5.0}}]
KEY = {"model": "m", "device_name": "d"}
BAD: dict[str, tuple[Any, str]] = {
    "no list": ({"file": "x"}, "profile: must be written [[profile]]"),
    "no table": (["x"], "profile[0]: must be a table"),
    "unknown key": ([{"path": "x"}], "profile[0].path: unknown key; known are: context, file, key, name, points"),
    "unknown field of the key": (
        [{"key": {"gpu": "x"}}], "profile[0].key: object contains unknown field `gpu`",
    ),
    "neither": ([{"key": KEY}], "profile[0]: needs either a file or points"),
    "both": ([{"key": KEY, "file": "x", "points": POINTS}], "profile[0]: needs either a file or points"),
    "no file": ([{"file": "/no.json"}], "profile[0].file: /no.json: cannot be read: No such file or directory"),
    "unknown mode": (
        [{"key": KEY, "points": [{"batch_size": 1, "ms": {"fast": 1.0}}]}],
        "profile[0]: profile[0].points: unknown mode 'fast'; there are: plain_warm, plain_cold, plain_native and "
        "speculate(K)",
    ),
    "for every model": (
        [{"points": POINTS, "key": {"device_name": "d"}}],
        "profile[0].key.model: is missing: the profile would be taken for every engine",
    ),
    "for every GPU": (
        [{"points": POINTS, "key": KEY}, {"points": POINTS, "key": {"model": "m"}}],
        "profile[1].key.device_name: is missing: the profile would be taken for every engine",
    ),
    "time of nothing": (
        [{"key": KEY, "points": [{"batch_size": 1, "ms": {"plain_warm": 0.0}}]}],
        "profile[0].points[0].ms[...]: expected `float` > 0.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("profile", "words"), BAD.values(), ids=BAD)
def test_an_entry_that_cannot_be_used_is_named(profile: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profiles(make_settings({"profile": profile}))
    assert str(caught.value) == words
