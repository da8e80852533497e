"""Durations, rates, sizes and bandwidths as plans write them: ``50ms``, ``60/s``, ``10kB``, ``100kB/s``.

Rules: a unit is required (only a size may be a bare number, of bytes), parsing is exact, and what is parsed dumps
back to text of the same kind, so that Plan -> YAML -> Plan is the identity. Decimal prefixes are decimal (1 kB = 1000
B).

``{range: [20ms, 200ms]}`` in the place of a value: the compiler draws what it will be, both ends included.

Rules: both ends are of one sort (durations, rates, sizes, bandwidths or plain numbers), low to high; a range may stand
for any value of a fault but its kind and its id, and for ``at`` and ``wait`` of what faults are composed of. Each range
draws from a stream of its own. What a plan must keep is checked at every corner: at each combination of the ends.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema
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


RANGE = "range"
RANGES_MAX = 4  # of one fault: 16 corners
HELP = "`range` takes two values of one sort, low to high: [20ms, 200ms], [1, 5], [10/s, 50/s] or [1kB, 1MB]"
_DECIMALS = 3
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Sort:
    """One sort of values: how its text is read, how a value is written, whether only whole ones are drawn."""

    name: str
    read: Callable[[Any], float]
    write: Callable[[Any], Any]
    whole: bool = True


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value} is no number")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value} is no whole number")


DURATION = Sort("duration", parse_duration_ms, format_duration)
SORTS = (
    Sort("whole number", _whole, int),
    Sort("number", _number, float, whole=False),
    DURATION,
    Sort("rate", parse_rate_per_s, format_rate, whole=False),
    Sort("size", parse_size_bytes, lambda size: f"{size}B"),
    Sort("bandwidth", parse_bytes_per_s, lambda rate: format_bytes_per_s(round(rate / 1000) * 1000)),  # whole kB/s
)


@dataclass(frozen=True)
class Range:
    """Everything from ``low`` to ``high``; ``ends`` are as the plan writes them."""

    sort: Sort
    low: float
    high: float
    ends: tuple[Any, Any]

    def value(self, share: float) -> float:
        """The value at ``share`` in [0, 1) of the way, in ms, bytes or a second."""
        if self.sort.whole:
            return int(self.low) + int(share * (self.high - self.low + 1))
        return round(self.low + share * (self.high - self.low), _DECIMALS)

    def said(self, share: float) -> Any:
        """The same, as a plan writes it."""
        return self.sort.write(self.value(share))


def is_range(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether this stands for a value that is yet to be drawn."""
    return isinstance(value, Mapping) and set(value) == {RANGE}


def parse(value: Mapping[str, Any]) -> Range:
    """Raises ValueError with a sentence that shows what would do."""
    ends = value[RANGE]
    if not isinstance(ends, list | tuple) or len(ends) != 2:  # noqa: PLR2004 -- two ends
        raise ValueError(HELP)
    for sort in SORTS:
        try:
            low, high = map(sort.read, ends)
        except (ValueError, PydanticCustomError):
            continue
        if low > high:
            raise ValueError(f"{ends[0]} is more than {ends[1]}: swap them")
        return Range(sort, low, high, (ends[0], ends[1]))
    raise ValueError(HELP)


def ranges_in(words: object, place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Every range in a fault's words, with its place there."""
    if is_range(words):
        yield place, words
    elif isinstance(words, Mapping):
        for key, value in words.items():
            yield from ranges_in(value, (*place, key))
    elif isinstance(words, list | tuple):
        for index, value in enumerate(words):
            yield from ranges_in(value, (*place, index))


def filled(words: Any, values: Mapping[Place, Any], place: Place = ()) -> Any:
    """The words with each range replaced by the value at its place."""
    if place in values:
        return values[place]
    if isinstance(words, Mapping):
        return {key: filled(value, values, (*place, key)) for key, value in words.items()}
    if isinstance(words, list | tuple):
        return [filled(value, values, (*place, index)) for index, value in enumerate(words)]
    return words


def corners(words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The words at every combination of the ends of their ranges. Raises ValueError for a range that is none."""
    found = {place: parse(value).ends for place, value in ranges_in(words)}
    return [filled(words, dict(zip(found, ends, strict=True))) for ends in product(*found.values())]


def _moment(value: object) -> int | Range:
    if not is_range(value):
        return value if isinstance(value, Range) else parse_duration_ms(value)
    try:
        found = parse(value)
    except ValueError as error:
        raise PydanticCustomError("refused", "{sentence}", {"sentence": str(error)}) from error
    if found.sort is not DURATION:
        raise PydanticCustomError("refused", "{sentence}", {"sentence": "give two durations: [1s, 5s]"})
    return found


def _said(moment: int | Range) -> Any:
    return {RANGE: list(moment.ends)} if isinstance(moment, Range) else format_duration(moment)


SCHEMA = {
    "type": "object",
    "properties": {RANGE: {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": ["string", "number"]}}},
    "required": [RANGE],
    "additionalProperties": False,
    "description": "two values of one sort, low to high; the compiler draws one",
}
Moment = Annotated[
    int | Range,
    PlainValidator(_moment),
    PlainSerializer(_said),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$"}, SCHEMA]}),
]
"""A duration in ms, or a range of them."""
