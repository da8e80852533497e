"""Less time: every ``for`` and every phase half as long, again and again, down to what can still be seen."""

from collections.abc import Iterator

from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at
from aftershock.faults.minimise.steps import name_of, units
from aftershock.faults.plan import Timing
from aftershock.faults.problem import Loc
from aftershock.faults.units import format_duration, parse_duration_ms

FOR_MS_MIN = 500
PHASE_MS_MIN = 2_000
_PHASES = ("recovery", "steady", "fault")


def shorter(document: Document) -> Iterator[Candidate]:
    """The phases, all faults at once, then each."""
    halves = dict(_phases(document))
    if halves:
        yield Candidate(f"phases: {_said(halves)}", changed(document, halves))
    fors = dict(_fors(document))
    if len(fors) > 1:
        yield Candidate(f"every fault half as long: {_said(fors)}", changed(document, fors))
    for loc, half in fors.items():
        said = f"{name_of(document, loc[:-1])} for {half}, not {value_at(document, loc)}"
        yield Candidate(said, changed(document, {loc: half}))


def _phases(document: Document) -> Iterator[tuple[Loc, str]]:
    timing = Timing.model_validate(document.get("timing") or {})
    for phase in _PHASES:
        if (half := _half(getattr(timing, phase), PHASE_MS_MIN)) is not None:
            yield ("timing", phase), half


def _fors(document: Document) -> Iterator[tuple[Loc, str]]:
    for loc in units(document):
        lasts = value_at(document, (*loc, "for"))
        if isinstance(lasts, str) and (half := _half(parse_duration_ms(lasts), FOR_MS_MIN)) is not None:
            yield (*loc, "for"), half


def _half(ms: int, least_ms: int) -> str | None:
    """Half of it, in steps of 100 ms; None where that is too short."""
    half_ms = ms // 200 * 100
    return format_duration(half_ms) if half_ms >= least_ms else None


def _said(halves: dict[Loc, str]) -> str:
    return ", ".join(f"{loc[-1] if loc[-1] != 'for' else loc[1]} {half}" for loc, half in halves.items())
