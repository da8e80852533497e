"""The compiled plan: every random choice made, every time in ms from the end of ``steady``.

Rules: canonical JSON (sorted keys, one space of indent, a newline at the end), so that the same plan and seed give
the same bytes; running a timeline again repeats the same faults. Later versions may add keys; readers ignore those
they don't know.

Phases, cut from the journal's real times. Pure.

Rules (design 5.2). ``warmup`` and ``steady`` come from the run's marks. A fault's window runs from its ``intended``
line to its ``healed`` line; a fault without ``for`` from there to ``timing.fault`` after its action was done (its
``injected`` line). What failed before anything was touched has no window; what was never healed lasts to the end of
the load. ``recovery`` is all time, from the first window's start to the end of the load, that no window covers. It
belongs to the block that it follows; block 0 is what is in none: warm-up, steady, all of a plan without blocks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.model import Gate
from aftershock.faults.plan.units import format_duration

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Step:
    """One fault, its id settled and its choices drawn; how it is met and what it takes away as its kind says.

    ``parameters`` are in the plan's own words. ``entry`` is its id in the plan, before any round or block was added to
    it; ``block`` counts from 1, and is 0 where the plan has no blocks.
    """

    id: str
    kind: str
    at_ms: int
    for_ms: int | None
    parameters: Mapping[str, Any]
    draws: Mapping[str, Any]
    met_by: str
    severs: bool
    takes: str = "unknown"
    told: bool = False
    entry: str = ""
    block: int = 0

    def fault(self) -> Fault:
        """The fault as an object again."""
        lasting = {} if self.for_ms is None else {"for": format_duration(self.for_ms)}
        words = {"kind": self.kind, "at": format_duration(self.at_ms), **lasting, **self.parameters}
        # with its rounds an id may be longer than a plan may say
        return KINDS[self.kind].model_validate(words).model_copy(update={"id": self.id})


@dataclass(frozen=True)
class TimelineTiming:
    """How long the phases last, in ms."""

    warmup_min_ms: int
    warmup_max_ms: int
    steady_ms: int
    fault_ms: int
    recovery_ms: int


@dataclass(frozen=True)
class Objective:
    """One entry of the plan's ``slo``, and where it stands there."""

    text: str
    at: str
    gate: Gate = "verdict"


@dataclass(frozen=True)
class Timeline:
    """A compiled plan. ``cluster``, ``topics`` and ``workloads`` are plain data, defaults filled in.

    ``length_ms``: the end of the load, from the end of ``steady``; ``abort``: what ends it before; ``blocks_ms``: when
    each block begins, none where the plan has no blocks.
    """

    name: str
    why: str
    plan_source: str
    seed: int
    cluster: Mapping[str, Any]
    topics: tuple[Mapping[str, Any], ...]
    workloads: tuple[Mapping[str, Any], ...]
    timing: TimelineTiming
    steps: tuple[Step, ...]
    length_ms: int
    slo: tuple[Objective, ...]
    abort: tuple[str, ...] = ()
    blocks_ms: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        """The bytes of ``timeline.json``."""
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def from_json(data: bytes) -> Timeline:
    """The reverse of ``to_json``. Raises PlanError for bytes that are no timeline of a known version."""
    try:
        document = json.loads(data)
        if document["schema_version"] != SCHEMA_VERSION:
            raise PlanError(
                [f"timeline.json: schema version {document['schema_version']} is unknown here; upgrade Aftershock"]
            )
        return Timeline(
            name=document["name"],
            why=document["why"],
            plan_source=document["plan_source"],
            seed=document["seed"],
            cluster=document["cluster"],
            topics=tuple(document["topics"]),
            workloads=tuple(document["workloads"]),
            timing=TimelineTiming(**document["timing"]),
            steps=tuple(Step(**step) for step in document["steps"]),
            length_ms=document["length_ms"],
            slo=tuple(Objective(**objective) for objective in document["slo"]),
            abort=tuple(document.get("abort", ())),
            blocks_ms=tuple(document.get("blocks_ms", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError([f"timeline.json: this is no timeline ({error!r}); compile the plan again"]) from error


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
