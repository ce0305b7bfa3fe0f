import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.cli.duration import format_duration, parse_duration_s, parse_time_ns
from trimtab.errors import TrimtabError


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400), ("1.5h", 5400), (" 5m ", 300)]
)
def test_a_length_of_time_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "-5m", "1w", "10 m", "1h30m", "31d", "0.5s", "١s", "inf"])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(TrimtabError, match=r"write it as 30s, 10m, 2h or 1d") as caught:
        parse_duration_s(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.1, "0.0s"), (0.44, "0.4s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m00s"),
        (598, "9m58s"), (3599.6, "1h00m"), (7500, "2h05m"), (86_400, "1d00h"), (273_600, "3d04h"),
    ],
)  # fmt: skip
def test_a_length_of_time_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e8))
def test_every_length_of_time_fits_a_column(seconds: float) -> None:
    assert len(format_duration(seconds)) <= 8


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-02", 24 * HOUR_NS), ("1970-01-01T01:00", HOUR_NS), ("1970-01-01T01:00:00.5Z", HOUR_NS + 500_000_000),
        ("1970-01-01T03:00+02:00", HOUR_NS), ("90m", 98 * HOUR_NS + HOUR_NS // 2), ("2d", 52 * HOUR_NS),
    ],
)  # fmt: skip
def test_a_moment_is_a_time_or_so_long_ago(text: str, ns: int) -> None:
    assert parse_time_ns("--since", text, now_ns=100 * HOUR_NS) == ns


@pytest.mark.parametrize("text", ["", "noon", "2h ago", "-1h", "14:00", "2026-13-01"])
def test_what_is_no_moment_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(TrimtabError, match=r"--since .* is no time: write it as 2026-11-30T14:00 \(UTC\), or as 2h"):
        parse_time_ns("--since", text)
