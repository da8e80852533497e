"""Durations (``50ms``), rates (``60/s``), sizes (``10kB``), bandwidths (``100kB/s``) and ranges in plans.

A value needs a unit, except a size in bytes. The prefixes k and M are decimal (1 kB = 1000 B). A parsed value is
written back with its unit, so that conversion of a plan to YAML and back gives an equal plan.

A range, a mapping with the key ``range`` and a list like ``[20ms, 200ms]``, may replace any value of a fault except its
kind and its id, and the ``at`` and ``wait`` of a composed element. The compiler draws a value from a range, both ends
included.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_BYTES_PER = {"B": 1} | {"kB": 10**3, "MB": 10**6, "GB": 10**9} | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h)")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*/\s*s")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(B|kB|MB|GB|KiB|MiB|GiB)?")
_BYTE_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(B|kB|MB|KiB|MiB)\s*/\s*s")
# descriptions for the JSON schema and the catalogue, which refer to these types by `x-word`
DURATION_EXAMPLES = "50ms, 4s, 1.5s, 2m"
SHIFT_EXAMPLES = "5s, -1h"
PERCENT_EXAMPLES = "5%, 0.5%"
RATE_EXAMPLES = "60/s"
SIZE_EXAMPLES = "bytes: 1000, 10kB, 1MB, 64KiB"
BANDWIDTH_EXAMPLES = "100kB/s"
RATE_MAX = 1_000_000  # per second; one worker process reaches a tenth of it
DAY_MS = 24 * _MS_PER["h"]
SHIFT_DAYS_MAX = 30


def parse_duration_ms(value: object, days_max: int = 1) -> int:
    """Parse a duration, ``"1.5s"`` -> 1500, of whole ms and at most a day; raise ValueError with the valid forms."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value} is not a duration: give a number with its unit: 50ms, 4s, 1.5s or 2m")
    ms = Decimal(match[1]) * _MS_PER[match[2]]
    if ms != int(ms):
        raise ValueError(f"{value} is not a duration: give a whole number of milliseconds")
    if ms > days_max * DAY_MS:
        raise ValueError(f"{value} is not a duration: give {24 * days_max}h at most")
    return int(ms)


def parse_shift_ms(value: object) -> int:
    """Parse a duration of up to 30 days with a sign, ``"-1h"`` -> -3600000; raise ValueError with the valid forms."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.startswith("-"):
        return -parse_duration_ms(text[1:], SHIFT_DAYS_MAX)
    return parse_duration_ms(text.removeprefix("+") if isinstance(text, str) else text, SHIFT_DAYS_MAX)


def parse_percent(value: object) -> float:
    """Parse a percentage, ``"5 %"`` -> 0.05; raise ValueError with the valid forms."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004
        raise ValueError(f"{value} is not a percentage: give a number above 0 with its sign: 5% or 0.5%")
    return float(match[1]) / 100


def parse_rate_per_s(value: object) -> float:
    """Parse a rate, ``"60/s"`` -> 60.0; raise ValueError with the valid forms."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value} is not a rate: give a number per second: 60/s or 0.5/s")
    if (rate := float(match[1])) > RATE_MAX:
        raise ValueError(f"{value} exceeds the highest rate: give {RATE_MAX}/s at most")
    return rate


def parse_size_bytes(value: object) -> int:
    """Parse a size, ``1000``, ``"1000"`` or ``"1kB"`` -> 1000; raise ValueError with the valid forms."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = Decimal(match[1]) * _BYTES_PER[match[2] or "B"] if match else Decimal("0.5")
    if size != int(size):
        raise ValueError(f"{value} is not a size: give whole bytes, or a number with a unit: 1000, 10kB, 1MB or 64KiB")
    return int(size)


def parse_bytes_per_s(value: object) -> int:
    """Parse a bandwidth, ``"100kB/s"`` -> 100000; raise ValueError with the valid forms."""
    match = _BYTE_RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    rate = Decimal(match[1]) * _BYTES_PER[match[2]] if match else Decimal("0.5")
    if rate != int(rate):
        raise ValueError(f"{value} is not a bandwidth: give bytes per second with their unit: 100kB/s or 1.5MB/s")
    return int(rate)


def format_duration(ms: int) -> str:
    """Format a duration in whole seconds if possible (``4s``), else as ``1500ms``."""
    return f"{ms // 1000}s" if ms % 1000 == 0 else f"{ms}ms"


def format_length(ms: int) -> str:
    """Format a length for people, as ``45 s``, ``2 min 10 s`` or ``12 h 1 min``."""
    seconds = round(ms / 1000)
    if seconds >= 3_600:  # noqa: PLR2004
        parts = ((seconds // 3_600, "h"), (seconds % 3_600 // 60, "min"))
    else:
        parts = ((seconds // 60, "min"), (seconds % 60, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or f"{ms} ms"


def format_shift(ms: int) -> str:
    """Format a duration that may be negative, as ``-4s``."""
    return f"-{format_duration(-ms)}" if ms < 0 else format_duration(ms)


def format_percent(share: float) -> str:
    """Format a share as ``5%``."""
    return f"{100 * share:g}%"


def format_rate(per_s: float) -> str:
    """Format a rate as ``60/s``, so that it parses back to the same float."""
    return f"{per_s:.6f}".rstrip("0").rstrip(".") + "/s"


def format_size(size_bytes: int) -> str:
    """Format a size in the largest unit that gives a whole number, as ``128MiB`` or ``10kB``."""
    fits = (unit for unit, count in _BYTES_PER.items() if size_bytes and size_bytes % count == 0)
    unit = max(fits, key=_BYTES_PER.__getitem__, default="B")
    return f"{size_bytes // _BYTES_PER[unit]}{unit}"


def format_bytes_per_s(rate: int) -> str:
    """Format a bandwidth as ``100kB/s`` for whole kilobytes, else as ``1500B/s``."""
    return f"{rate // 1000}kB/s" if rate % 1000 == 0 else f"{rate}B/s"


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$"}
_SHIFT_SCHEMA = {"type": "string", "pattern": r"^[+-]?\d+(\.\d+)?\s*(ms|s|m|h)$"}
_PERCENT_SCHEMA = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"}
_RATE_SCHEMA = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*/\s*s$"}
_BYTE_RATE_SCHEMA = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([kM]i?)?B\s*/\s*s$"}
_SIZE_SCHEMA = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[kMGKi]*B?$"}]
}
Duration = Annotated[
    int,
    BeforeValidator(parse_duration_ms),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({**_DURATION_SCHEMA, "x-word": "DURATION", "description": DURATION_EXAMPLES}),
]
Shift = Annotated[
    int,
    BeforeValidator(parse_shift_ms),
    PlainSerializer(format_shift, return_type=str),
    WithJsonSchema({**_SHIFT_SCHEMA, "x-word": "SHIFT", "description": SHIFT_EXAMPLES}),
]
Rate = Annotated[
    float,
    BeforeValidator(parse_rate_per_s),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema({**_RATE_SCHEMA, "x-word": "RATE", "description": RATE_EXAMPLES}),
]
Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(format_percent, return_type=str),
    WithJsonSchema({**_PERCENT_SCHEMA, "x-word": "PERCENT", "description": PERCENT_EXAMPLES}),
]
ByteRate = Annotated[
    int,
    BeforeValidator(parse_bytes_per_s),
    PlainSerializer(format_bytes_per_s, return_type=str),
    WithJsonSchema({**_BYTE_RATE_SCHEMA, "x-word": "BANDWIDTH", "description": BANDWIDTH_EXAMPLES}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    WithJsonSchema({**_SIZE_SCHEMA, "x-word": "SIZE", "description": SIZE_EXAMPLES}),
]


RANGE = "range"
RANGES_MAX = 4  # per fault: 16 corners
RANGE_HELP = "`range` takes two values of one type, low to high: [20ms, 200ms], [1, 5], [10/s, 50/s] or [1kB, 1MB]"
Place = tuple[str | int, ...]
"""Path to a value inside a fault's data: ``("move", "from")``."""


@dataclass(frozen=True)
class ValueType:
    """Type of the values of a range; ``whole`` is True if the compiler draws only whole numbers."""

    name: str
    read: Callable[[Any], float]
    write: Callable[[Any], Any]
    whole: bool = True


def plain_number(value: object, types: tuple[type, ...] = (int, float)) -> float:
    """Return ``value`` if it is a number of one of these types (not a bool); raise ValueError otherwise."""
    if type(value) in types:
        return value  # type: ignore[return-value]
    raise ValueError(f"{value} is not a number")


DURATION = ValueType("duration", parse_duration_ms, format_duration)
VALUE_TYPES = (
    ValueType("integer", partial(plain_number, types=(int,)), int),
    ValueType("number", plain_number, float, whole=False),
    DURATION,
    ValueType("rate", parse_rate_per_s, format_rate, whole=False),
    ValueType("size", parse_size_bytes, lambda size: f"{size}B"),
    # drawn bandwidths are rounded to whole kB/s
    ValueType("bandwidth", parse_bytes_per_s, lambda rate: format_bytes_per_s(round(rate / 1000) * 1000)),
)


@dataclass(frozen=True)
class Range:
    """Range of values from ``low`` to ``high``; ``ends`` has both in the plan's notation, such as ``20ms``."""

    value_type: ValueType
    low: float
    high: float
    ends: tuple[Any, Any]

    def value(self, share: float) -> float:
        """Return the value at a fraction of the range, from 0 (low) to 1 (high), in ms, bytes or per second."""
        if self.value_type.whole:
            return int(self.low) + int(share * (self.high - self.low + 1))
        return round(self.low + share * (self.high - self.low), 3)

    def plan_value(self, share: float) -> Any:
        """Return the value at a fraction of the range, from 0 (low) to 1 (high), in a plan's notation."""
        return self.value_type.write(self.value(share))


def is_range(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return True for a range, that is a value in a plan's data which the compiler will draw."""
    return isinstance(value, Mapping) and set(value) == {RANGE}


def parse_range(value: Mapping[str, Any]) -> Range:
    """Parse a mapping with the key ``range`` and a list ``[low, high]``; raise ValueError with the valid forms."""
    ends = value[RANGE]
    if not isinstance(ends, list | tuple) or len(ends) != 2:  # noqa: PLR2004 -- two ends
        raise ValueError(RANGE_HELP)
    for value_type in VALUE_TYPES:
        try:
            low, high = map(value_type.read, ends)
        except ValueError:
            continue
        if low > high:
            raise ValueError(f"the range starts at {ends[0]} and ends at the lower {ends[1]}: swap the two values")
        return Range(value_type, low, high, (ends[0], ends[1]))
    raise ValueError(RANGE_HELP)


def ranges_in(data: object, place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield every range in a fault's data, with its location."""
    if is_range(data):
        yield place, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from ranges_in(value, (*place, key))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from ranges_in(value, (*place, index))


def fill_ranges(data: Any, values: Mapping[Place, Any], place: Place = ()) -> Any:
    """Return a fault's data with each range replaced by the value in ``values`` for the range's location."""
    if place in values:
        return values[place]
    if isinstance(data, Mapping):
        return {key: fill_ranges(value, values, (*place, key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [fill_ranges(value, values, (*place, index)) for index, value in enumerate(data)]
    return data


def corners(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a fault's data at every combination of the ends of its ranges; raise ValueError for an invalid range."""
    ranges = list(ranges_in(data))
    if len(ranges) > RANGES_MAX:
        raise ValueError(
            f"{len(ranges)} ranges in one fault exceed the limit of {RANGES_MAX}: use single values instead"
        )
    ends_at = {place: parse_range(value).ends for place, value in ranges}
    return [fill_ranges(data, dict(zip(ends_at, ends, strict=True))) for ends in product(*ends_at.values())]


def _parse_moment(value: object) -> int | Range:
    if not is_range(value):
        return value if isinstance(value, Range) else parse_duration_ms(value)
    moment = parse_range(value)
    if moment.value_type is not DURATION:
        raise ValueError("give two durations: [1s, 5s]")
    return moment


RANGE_SCHEMA = {
    "type": "object",
    "properties": {RANGE: {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": ["string", "number"]}}},
    "required": [RANGE],
    "additionalProperties": False,
    "description": "range of two values of one type, low to high; the compiler draws a value from the range",
}
Moment = Annotated[
    int | Range,
    PlainValidator(_parse_moment),
    PlainSerializer(lambda value: {RANGE: [*value.ends]} if isinstance(value, Range) else format_duration(value)),
    WithJsonSchema({"anyOf": [_DURATION_SCHEMA, RANGE_SCHEMA]}),
]
"""A duration in ms, or a range of durations."""
