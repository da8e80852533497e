"""Durations, rates, sizes and bandwidths: exact parsing and formatting, and refusals with a remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.faults.sections.units import (
    format_bytes_per_s,
    format_duration,
    format_rate,
    parse_bytes_per_s,
    parse_duration_ms,
    parse_rate_per_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("50ms", 50), ("4s", 4000), ("2m", 120_000), ("1.5s", 1500), ("0s", 0), (" 3 s ", 3000), ("1h", 3_600_000)],
)
def test_durations(text: str, ms: int) -> None:
    """Every notation of the design parses exactly."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "value", [10, 1.5, "10", "s", "-1s", "1.0001s", "0.5ms", "25h", True, None, "1 minute", "1e3s"]
)
def test_no_durations(value: object) -> None:
    """Durations without a unit, negative, finer than a millisecond or longer than a day are refused with a remedy."""
    with pytest.raises(ValueError, match="is not a duration: give"):
        parse_duration_ms(value)


@given(st.integers(0, 86_400_000))
def test_duration_round_trip(ms: int) -> None:
    """A formatted duration parses back to the same value."""
    assert parse_duration_ms(format_duration(ms)) == ms


@given(st.integers(0, 1_000_000_000_000))
def test_rate_round_trip(millionths: int) -> None:
    """A formatted rate parses back to the same float."""
    rate = parse_rate_per_s(f"{millionths // 1_000_000}.{millionths % 1_000_000:06d}/s")
    assert parse_rate_per_s(format_rate(rate)) == rate


@pytest.mark.parametrize("value", [60, "60", "60/m", "/s", "-1/s", None])
def test_no_rates(value: object) -> None:
    """A rate without a unit is refused."""
    with pytest.raises(ValueError, match="is not a rate: give a number per second"):
        parse_rate_per_s(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("10kB", 10_000),
        ("1MB", 1_000_000),
        ("2KiB", 2048),
        ("1.5kB", 1500),
        ("2GiB", 2**31),
    ],
)
def test_sizes(value: object, size: int) -> None:
    """A size may be a bare number of bytes; prefixes are decimal or binary as written."""
    assert parse_size_bytes(value) == size


@pytest.mark.parametrize("value", [True, -1, 1.5, "1.5", "0.0001kB", "1TB", "kB", None])
def test_no_sizes(value: object) -> None:
    """Fractions of a byte and unknown units are refused."""
    with pytest.raises(ValueError, match="is not a size: give"):
        parse_size_bytes(value)


@pytest.mark.parametrize(
    ("text", "rate"), [("100kB/s", 100_000), ("1.5MB/s", 1_500_000), ("1 KiB / s", 1024), ("1500B/s", 1500)]
)
def test_bandwidths(text: str, rate: int) -> None:
    """Bandwidths are whole bytes per second, and their text parses back to the same value."""
    assert parse_bytes_per_s(text) == rate
    assert parse_bytes_per_s(format_bytes_per_s(rate)) == rate


@pytest.mark.parametrize("value", [100_000, "100kB", "100/s", "1kb/s", "0.0001kB/s", "-1kB/s", None])
def test_no_bandwidths(value: object) -> None:
    """A bandwidth without both units, or with fractions of a byte, is refused with a remedy."""
    with pytest.raises(ValueError, match="is not a bandwidth: give bytes per second"):
        parse_bytes_per_s(value)
