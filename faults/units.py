"""Durations, rates, sizes and bandwidths as plans write them: ``50ms``, ``60/s``, ``10kB``, ``100kB/s``.

Rules: a unit is required (only a size may be a bare number, of bytes), parsing is exact, and what is parsed dumps
back to text of the same kind, so that Plan -> YAML -> Plan is the identity. Decimal prefixes are decimal (1 kB = 1000
B).
"""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_BYTES_PER = {"B": 1, "kB": 1_000, "MB": 1_000_000, "KiB": 1_024, "MiB": 1_048_576}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h)")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*/\s*s")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(B|kB|MB|KiB|MiB)?")
_BYTE_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(B|kB|MB|KiB|MiB)\s*/\s*s")
# what each is, for the schema and the catalogue, which know them by `x-word`
DURATION_SAID = "50ms, 4s, 1.5s, 2m"
RATE_SAID = "60/s"
SIZE_SAID = "bytes: 1000, 10kB, 1MB, 64KiB"
BANDWIDTH_SAID = "100kB/s"
DAY_MS = 24 * _MS_PER["h"]


def parse_duration_ms(value: object) -> int:
    """``"1.5s"`` -> 1500. Whole milliseconds, a day at most; raises a pydantic error that says what would do."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _refused("duration", value, "give a number with its unit: 50ms, 4s, 1.5s or 2m")
    ms = Decimal(match[1]) * _MS_PER[match[2]]
    if ms != int(ms):
        raise _refused("duration", value, "give a whole number of milliseconds")
    if ms > DAY_MS:
        raise _refused("duration", value, "give a day at most (24h)")
    return int(ms)


def parse_rate_per_s(value: object) -> float:
    """``"60/s"`` -> 60.0. Raises a pydantic error that says what would do; 0 is for the plan's check to refuse."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _refused("rate", value, "give a number per second: 60/s or 0.5/s")
    return float(match[1])


def parse_size_bytes(value: object) -> int:
    """``1000``, ``"1000"`` or ``"1kB"`` -> 1000. Raises a pydantic error that says what would do."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = Decimal(match[1]) * _BYTES_PER[match[2] or "B"] if match else Decimal("0.5")
    if size != int(size):
        raise _refused("size", value, "give whole bytes, or a number with its unit: 1000, 10kB, 1MB or 64KiB")
    return int(size)


def parse_bytes_per_s(value: object) -> int:
    """``"100kB/s"`` -> 100000. Raises a pydantic error that says what would do."""
    match = _BYTE_RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    rate = Decimal(match[1]) * _BYTES_PER[match[2]] if match else Decimal("0.5")
    if rate != int(rate):
        raise _refused("bandwidth", value, "give bytes per second with their unit: 100kB/s or 1.5MB/s")
    return int(rate)


def format_duration(ms: int) -> str:
    """The shortest of our notations: ``4s``, else ``1500ms``."""
    return f"{ms // 1000}s" if ms % 1000 == 0 else f"{ms}ms"


def format_rate(per_s: float) -> str:
    """``60/s``; parses back to the very same float."""
    return f"{per_s:.6f}".rstrip("0").rstrip(".") + "/s"


def format_bytes_per_s(rate: int) -> str:
    """``100kB/s`` where it is whole kilobytes, else ``1500B/s``."""
    return f"{rate // 1000}kB/s" if rate % 1000 == 0 else f"{rate}B/s"


def _refused(what: str, value: object, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(
        "unit", "{value} is no {what}: {remedy}", {"value": value, "what": what, "remedy": remedy}
    )


Duration = Annotated[
    int,
    BeforeValidator(parse_duration_ms),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$", "x-word": "DURATION", "description": DURATION_SAID}
    ),
]
Rate = Annotated[
    float,
    BeforeValidator(parse_rate_per_s),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*/\s*s$", "x-word": "RATE", "description": RATE_SAID}),
]
ByteRate = Annotated[
    int,
    BeforeValidator(parse_bytes_per_s),
    PlainSerializer(format_bytes_per_s, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\d+(\.\d+)?\s*([kM]i?)?B\s*/\s*s$",
            "x-word": "BANDWIDTH",
            "description": BANDWIDTH_SAID,
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[kMKi]*B?$"}],
            "x-word": "SIZE",
            "description": SIZE_SAID,
        }
    ),
]
