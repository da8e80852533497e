"""Weaker faults: a delay half as long, a bandwidth twice as wide, one way of a link instead of both.

Only where a kind's words have one meaning wherever they are used; a new kind's other parameters stay as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at, without
from aftershock.faults.minimise.steps import name_of, units
from aftershock.faults.units import (
    format_bytes_per_s,
    format_duration,
    parse_bytes_per_s,
    parse_duration_ms,
    parse_size_bytes,
)

_DELAY_MS_MIN = 10
_NEEDLESS = ("jitter", "ramp_to", "spikes")


def weaker(document: Document) -> Iterator[Candidate]:
    """Of each fault: what it can do without, one way instead of two, then half the strength."""
    for loc in units(document):
        fault, name = value_at(document, loc), name_of(document, loc)
        for word in _NEEDLESS:
            if word in fault:
                yield Candidate(f"{name} without {word}", without(document, (*loc, word)))
        for word, value in _milder(fault):
            said = f"{name}: {word} {value}, not {fault[word]}"
            yield Candidate(said, changed(document, {(*loc, word): value}))


def _milder(fault: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word, half in _HALVES.items():
        if isinstance(fault.get(word), str | int | float) and (value := half(fault[word])) is not None:
            yield word, value


def _one_way(link: str) -> str | None:
    return link.replace("<->", "->") if "<->" in link else None


def _half_delay(delay: str) -> str | None:
    half_ms = parse_duration_ms(delay) // 2
    return format_duration(half_ms) if half_ms >= _DELAY_MS_MIN else None


_HALVES: Mapping[str, Callable[[Any], Any]] = {
    "link": _one_way,
    "delay": _half_delay,
    "probability": lambda odds: odds / 2,
    "rate": lambda rate: format_bytes_per_s(2 * parse_bytes_per_s(rate)),
    "cpus": lambda cpus: 2 * cpus,
    "memory": lambda size: 2 * parse_size_bytes(size),
    "bytes": lambda size: 2 * parse_size_bytes(size),
}
