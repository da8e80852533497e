"""Phases, cut from the journal's real times. Pure.

Rules (design 5.2). ``warmup`` and ``steady`` come from the run's marks. A fault's window runs from its ``intended``
line to its ``healed`` line; a fault without ``for`` from there to ``timing.fault`` after its action was done (its
``injected`` line). What failed before anything was touched has no window; what was never healed lasts to the end of
the load. ``recovery`` is all time, from the first window's start to the end of the load, that no window covers. It
belongs to the block that it follows; block 0 is what is in none: warm-up, steady, all of a plan without blocks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aftershock.faults.timeline import Step, Timeline


@dataclass(frozen=True)
class Marks:
    """The run's own times, in us since its origin."""

    load_start_us: int
    steady_start_us: int
    faults_start_us: int
    load_end_us: int

    def as_json(self) -> dict[str, int]:
        """The fields as they are."""
        return asdict(self)


@dataclass(frozen=True)
class Phase:
    """One row of ``phases.json``; start inclusive, end exclusive. ``entry``: the fault's id in the plan."""

    name: str
    fault: str | None
    block: int
    start_us: int
    end_us: int
    entry: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as they are."""
        return asdict(self)


def phases(journal: Iterable[Mapping[str, Any]], marks: Marks, timeline: Timeline) -> list[Phase]:
    """The rows of ``phases.json``, sorted by start: warmup, steady, a ``fault`` row each, ``recovery`` rows."""
    lines = list(journal)
    windows = [window for step in timeline.steps for window in _window(step, lines, marks, timeline.timing.fault_ms)]
    before = [
        Phase("warmup", None, 0, marks.load_start_us, marks.steady_start_us),
        Phase("steady", None, 0, marks.steady_start_us, marks.faults_start_us),
    ]
    return sorted([*before, *windows, *_recovery(windows, marks.load_end_us)], key=lambda phase: phase.start_us)


def _window(step: Step, lines: list[Mapping[str, Any]], marks: Marks, fault_ms: int) -> Iterator[Phase]:
    times = {line["state"]: line["t_us"] for line in lines if line["fault"] == step.id}  # the last of each state
    if "intended" not in times:
        return
    if step.for_ms is None and "injected" in times:
        end_us = times["injected"] + fault_ms * 1000
    else:
        end_us = times.get("healed", max(marks.load_end_us, times["intended"]))
    yield Phase("fault", step.id, step.block, times["intended"], end_us, step.entry or step.id)


def _recovery(windows: list[Phase], load_end_us: int) -> Iterator[Phase]:
    if not windows:
        return
    block, reached_us = 0, min(window.start_us for window in windows)
    for window in sorted(windows, key=lambda window: window.start_us):
        if reached_us < window.start_us:
            yield Phase("recovery", None, block, reached_us, window.start_us)
        block, reached_us = window.block, max(reached_us, window.end_us)
    if reached_us < load_end_us:
        yield Phase("recovery", None, block, reached_us, load_end_us)
