"""Which faults were in force when, as the journal has it: those of the plan, and those injected by hand meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence import Evidence

BY_HAND = "injected_by_hand"


@dataclass(frozen=True)
class Force:
    """One fault. ``window_us`` is what counts as its time: of the plan's faults as ``phases.json`` cut it.

    ``injected_us`` and ``healed_us`` are None where that never happened; in a rehearsal nothing is injected.
    """

    fault: str
    kind: str
    lines: tuple[Mapping[str, Any], ...]
    window_us: tuple[int, int] | None
    injected_us: int | None
    healed_us: int | None
    by_hand: bool
    rehearsed: bool

    @property
    def targets(self) -> Mapping[str, Any]:
        """What it was resolved to, by the last line that says."""
        return next((line["targets"] for line in reversed(self.lines) if line.get("targets")), {})

    def overlaps(self, start_us: int, end_us: int) -> bool:
        """Whether its time and this one meet."""
        return self.window_us is not None and self.window_us[0] < end_us and start_us < self.window_us[1]

    def in_force_us(self, start_us: int, end_us: int) -> int:
        """How long of this time it was in force, from injected to healed."""
        if self.injected_us is None or self.rehearsed:
            return 0
        until_us = end_us if self.healed_us is None else min(end_us, self.healed_us)
        return max(0, until_us - max(start_us, self.injected_us))


def forces(evidence: Evidence) -> tuple[Force, ...]:
    """The plan's faults in its order, also those that never began, then what else the journal has."""
    named = dict.fromkeys(str(step["id"]) for step in evidence.steps)
    named |= dict.fromkeys(str(line["fault"]) for line in evidence.journal)
    return tuple(_force(evidence, fault) for fault in named)


def _force(evidence: Evidence, fault: str) -> Force:
    lines = tuple(line for line in evidence.journal if line["fault"] == fault)
    kinds = [step["kind"] for step in evidence.steps if step["id"] == fault] + [line.get("kind") for line in lines]
    injected_us, healed_us = (_first_us(lines, state) for state in ("injected", "healed"))
    return Force(
        fault=fault,
        kind=str(next((kind for kind in kinds if kind), "fault")),
        lines=lines,
        window_us=_window(evidence, fault, lines, healed_us),
        injected_us=injected_us,
        healed_us=healed_us,
        by_hand=fault in set(_by_hand(evidence.events)),
        rehearsed=bool(evidence.run.get("rehearse")),
    )


def _first_us(lines: Sequence[Mapping[str, Any]], state: str) -> int | None:
    return next((line["t_us"] for line in lines if line["state"] == state), None)


def _window(
    evidence: Evidence, fault: str, lines: Sequence[Mapping[str, Any]], healed_us: int | None
) -> tuple[int, int] | None:
    """One that was never healed lasts to the end of the load."""
    if cut := evidence.window_of(fault):
        return cut.start_us, cut.end_us
    if not lines:
        return None
    ended_us = max((phase.end_us for phase in evidence.phases), default=lines[-1]["t_us"])
    return lines[0]["t_us"], healed_us or max(ended_us, lines[-1]["t_us"])


def _by_hand(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for event in events:
        if event.get("event") == BY_HAND and isinstance(event.get("fault"), Mapping):
            yield str(event["fault"].get("id"))
