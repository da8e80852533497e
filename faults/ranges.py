"""``{range: [20ms, 200ms]}`` in the place of a value: the compiler draws what it will be, both ends included.

Rules: both ends are of one sort (durations, rates, sizes, bandwidths or plain numbers), low to high; a range may stand
for any value of a fault but its kind and its id, and for ``at`` and ``wait`` of what faults are composed of. Each range
draws from a stream of its own. What a plan must keep is checked at every corner: at each combination of the ends.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, TypeGuard

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.faults.units import (
    format_bytes_per_s,
    format_duration,
    format_rate,
    parse_bytes_per_s,
    parse_duration_ms,
    parse_rate_per_s,
    parse_size_bytes,
)

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
