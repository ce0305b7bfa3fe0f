"""Profile files: what they say, what comes back of what was written, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain import PLAIN_COLD, PLAIN_WARM, CostKey, Mode, minor_version, modes_of, speculate
from trimtab.errors import DataError
from trimtab.policies.profile import ContextCost, CostProfile, ProfilePoint, profile_of
from trimtab.profile_file import KeyContent, content_of, keyed_profile, read_key, read_mode, read_profile, write_profile

KEY = CostKey(model="/models/8b", device_name="NVIDIA H200", tp_size=1, sglang_version="0.5")


def test_a_profile_file_lists_points_by_batch_size_and_context(tmp_path: Path) -> None:
    path = tmp_path / "hand.json"
    path.write_text(
        '{"made_by": "hand", "key": {"model": "/models/8b", "tp_size": 2}, "points": ['
        '{"batch_size": 8, "context_tokens": 9000, "ms": {"plain_warm": 7, "plain_cold": 6.5, "speculate(3)": 9.5}},'
        '{"batch_size": 8, "context_tokens": 1000, "ms": {"plain_warm": 5, "speculate(3)": 6}}]}'
    )
    found = read_profile(path)
    assert found.name == "hand.json"
    assert found.key == CostKey(model="/models/8b", tp_size=2)
    profile = found.profile
    assert profile.step_ms(speculate(3), 5, 500) == 6.0
    assert profile.step_ms(speculate(3), 5, 2000) == 9.5
    assert profile.step_ms(PLAIN_COLD, 8, 2000) == 6.5
    assert profile.step_ms(PLAIN_WARM, 8, 1000) == 5.0


def test_context_comes_on_top_of_the_points(tmp_path: Path) -> None:
    path = tmp_path / "hand.json"
    path.write_text(
        '{"points": [{"batch_size": 8, "ms": {"plain_warm": 5, "speculate(3)": 6}}],'
        '"context": {"reference_tokens": 500, "ms_per_token": 0.0001, "ms_per_longest_token": 0.001}}'
    )
    profile = read_profile(path).profile
    assert profile.step_ms(PLAIN_WARM, 8) == profile.step_ms(PLAIN_WARM, 8, 0) == 5.0, "nobody has no context: unknown"
    assert profile.step_ms(PLAIN_WARM, 8, 500) == 5.0
    assert profile.step_ms(PLAIN_WARM, 8, 1500) == pytest.approx(5 + 0.0001 * 8000 + 0.001 * 1000)
    assert profile.step_ms(speculate(3), 4, 1500, 2500) == pytest.approx(6 + 0.0001 * 4000 + 0.001 * 2000)
    assert profile.step_ms(speculate(2), 4, 0) > 0


def test_a_context_far_below_the_reference_leaves_a_time_above_zero() -> None:
    profile = profile_of([ProfilePoint(8, {PLAIN_WARM: 5.0})], ContextCost(100_000, 0.001))
    assert profile.step_ms(PLAIN_WARM, 8, 1) == 0.5


PROFILES = st.builds(
    profile_of,
    st.lists(
        st.builds(
            ProfilePoint,
            st.integers(1, 512),
            st.fixed_dictionaries({mode: st.floats(0.1, 500) for mode in modes_of([0, 1, 3])}),
            st.none() | st.integers(0, 10_000),
        ),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.builds(ContextCost, st.floats(0, 1e5), st.floats(0, 1e-2), st.floats(0, 1e-2)),
)


@given(PROFILES, st.integers(1, 600), st.none() | st.integers(0, 20_000))
def test_what_is_written_comes_back_to_five_digits(profile: CostProfile, size: int, context: int | None) -> None:
    back = keyed_profile("p", content_of(profile, KEY), "p")
    assert back.key == KEY
    for mode in modes_of([0, 1, 3]):
        assert back.profile.step_ms(mode, size, context) == pytest.approx(
            profile.step_ms(mode, size, context), rel=1e-4 * (1 if context is None else 1e3), abs=1e-3
        )


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    content = content_of(profile_of([ProfilePoint(8, {PLAIN_WARM: 5.0})]), KEY)
    path = tmp_path / "p.json"
    write_profile(path, content)
    assert read_profile(path).key == KEY
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        write_profile(tmp_path / "nowhere" / "p.json", content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write_profile(tmp_path / "folder", content)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "p.json"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        ("{}", "is not a profile: Object missing required field `points`"),
        ('{"points": []}', "is not a profile: .*length >= 1"),
        ('{"points": [{"batch_size": 0, "ms": {"plain_warm": 5}}]}', r"Expected `int` >= 1 - at `\$.points\[0\]"),
        ('{"points": [{"batch_size": 1, "ms": {"plain_warm": 0}}]}', "Expected `float` > 0"),
        ('{"points": [{"batch_size": 1, "ms": {"fast": 5}}]}', "unknown mode 'fast'; there are: plain_warm, "),
        ('{"points": [{"batch_size": 1, "ms": {"speculate(0)": 5}}]}', r"unknown mode 'speculate\(0\)'"),
        ('{"key": {"modell": "x"}, "points": [{"batch_size": 1, "ms": {"plain_warm": 5}}]}', "unknown field `modell`"),
        ('{"points": [{"batch_size": 1, "ms": {"plain_warm": 5}}], "context": {"reference_tokens": 1}}',
         "missing required field `ms_per_token`"),
    ],
)  # fmt: skip
def test_a_bad_profile_file_is_one_error(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=problem) as caught:
        read_profile(path)
    assert caught.value.place == str(path)


@given(st.sampled_from(modes_of([0, 1, 7, 64])) | st.sampled_from([PLAIN_COLD, PLAIN_WARM]))
def test_every_mode_is_read_as_it_is_printed(mode: Mode) -> None:
    assert read_mode("here", str(mode)) == mode


def test_a_file_keeps_every_field_of_a_key() -> None:
    assert KeyContent.__struct_fields__ == tuple(field.name for field in fields(CostKey))


def test_an_exact_content_keeps_every_digit() -> None:
    profile = profile_of([ProfilePoint(8, {PLAIN_WARM: 5.123456789})], ContextCost(500.25, 0.00001234567))
    assert keyed_profile("p", content_of(profile, KEY, exact=True), "here").profile == profile
    assert keyed_profile("p", content_of(profile, KEY), "here").profile.points[0].ms[PLAIN_WARM] == 5.1235


def test_a_key_is_read_from_text_and_a_wrong_field_is_named() -> None:
    assert read_key("--key", [("tp_size", "8"), ("model", "m")]) == CostKey(model="m", tp_size=8)
    with pytest.raises(DataError, match=r"--key: .*`gpu`; the fields of a key are: model, weight_version, "):
        read_key("--key", [("gpu", "H200")])
    with pytest.raises(DataError, match="--key: Expected `int`"):
        read_key("--key", [("tp_size", "two")])


ENGINE = CostKey("/models/8b", "v1", "/models/8b-eagle", "NVIDIA H200", "fa3", "bfloat16", "auto", 1, "0.5.23")


@pytest.mark.parametrize(
    ("key", "unlike"),
    [
        (CostKey(), ()),
        (ENGINE, ()),
        (KEY, ()),
        (CostKey(model="/models/70b"), ("model",)),
        (CostKey(model="/models/70b", device_name="NVIDIA H100", tp_size=2), ("model", "device_name", "tp_size")),
        (CostKey(sglang_version="0.5.23"), ()),
        (CostKey(sglang_version="0.5.2"), ("sglang_version",)),
        (CostKey(sglang_version="0.6"), ("sglang_version",)),
    ],
)
def test_a_key_holds_where_everything_that_it_states_is_so(key: CostKey, unlike: tuple[str, ...]) -> None:
    assert key.unlike(ENGINE) == unlike


def test_what_an_engine_does_not_say_is_unlike_what_a_key_states() -> None:
    assert KEY.unlike(CostKey()) == ("model", "device_name", "tp_size", "sglang_version")


@pytest.mark.parametrize(
    ("version", "minor"),
    [("0.5.23", "0.5"), ("0.5.16.post1", "0.5"), ("1.0", "1.0"), ("embedded", "embedded"), ("", "")],
)
def test_the_minor_version_is_the_first_two_parts(version: str, minor: str) -> None:
    assert minor_version(version) == minor
