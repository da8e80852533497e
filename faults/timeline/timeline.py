"""Timeline, the compiled plan with every random choice made, and the phases of the finished run.

Times in a timeline are in ms from the end of ``steady``. A timeline is stored as canonical JSON, so that one plan and
seed give equal bytes.

The phases of a finished run are computed from the journal's actual times (design 5.2), except ``warmup`` and
``steady``, which come from the run's marks. A fault's window runs from its ``intended`` line to its ``healed`` line;
for a fault without ``for``, until ``timing.fault`` after its ``injected`` line. A fault that failed before it changed
anything has no window; a fault that was never healed lasts to the end of the load. ``recovery`` is all time after the
start of the first window that no window covers, up to the end of the load. A ``recovery`` belongs to the block
(repetition of all faults) before it. Block 0 contains ``warmup``, ``steady``, and all faults of a plan without blocks.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.model import Gate
from aftershock.faults.sections.units import format_duration

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Step:
    """One fault of a timeline; ``draws`` has its random choices, ``parameters`` its parameters in the plan.

    Six fields describe the kind of the fault. ``met_by`` is the type of target whose traffic is exposed, ``severs`` is
    True if the fault drops traffic, ``takes`` is what clients can't use, and ``told`` is True if the fault closes
    connections; otherwise ``silence`` says until when requests stay unanswered. ``delay_ms`` is by how much a round
    trip is late at most. ``entry`` is the fault's id in the plan, without rounds and blocks, and ``block`` the number
    of the repetition of all faults, 0 for a plan without ``blocks``.
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
    silence: str | None = None
    delay_ms: int = 0
    entry: str = ""
    block: int = 0

    def fault(self) -> Fault:
        duration = {} if self.for_ms is None else {"for": format_duration(self.for_ms)}
        data = {"kind": self.kind, "at": format_duration(self.at_ms), **duration, **self.parameters}
        # with round numbers, an id may be longer than the limit for ids in plans
        return KINDS[self.kind].model_validate(data).model_copy(update={"id": self.id})


@dataclass(frozen=True)
class TimelineTiming:
    """Lengths of the phases, in ms."""

    warmup_min_ms: int
    warmup_max_ms: int
    steady_ms: int
    fault_ms: int
    recovery_ms: int


@dataclass(frozen=True)
class Objective:
    """SLO of a plan; ``at`` is the position of the SLO in the plan file."""

    text: str
    at: str
    gate: Gate = "verdict"
    advice: str = ""


@dataclass(frozen=True)
class Timeline:
    """A compiled plan. ``cluster``, ``topics`` and ``workloads`` are data of the plan, with defaults filled in.

    ``length_ms`` is the time from the end of ``steady`` to the end of the load. ``abort`` has the conditions that end
    the load early. ``blocks_ms`` has the start of each block (repetition of all faults), and is empty without blocks.
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
        """Return the content of ``timeline.json``."""
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def from_json(data: bytes) -> Timeline:
    """Read a timeline from JSON; raise PlanError for data that is not a timeline of this schema version."""
    try:
        document = json.loads(data)
        if (version := document["schema_version"]) != SCHEMA_VERSION:
            raise PlanError([f"timeline.json: the schema version {version} is unknown; upgrade Aftershock"])
        parts: dict[str, Any] = {
            "topics": tuple(document["topics"]),
            "workloads": tuple(document["workloads"]),
            "timing": TimelineTiming(**document["timing"]),
            "steps": tuple(Step(**step) for step in document["steps"]),
            "slo": tuple(Objective(**objective) for objective in document["slo"]),
            "abort": tuple(document.get("abort", ())),
            "blocks_ms": tuple(document.get("blocks_ms", ())),
        }
        plain = ("name", "why", "plan_source", "seed", "cluster", "length_ms")
        return Timeline(**{name: document[name] for name in plain}, **parts)
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError([f"timeline.json: not a valid timeline ({error!r}); compile the plan again"]) from error


@dataclass(frozen=True)
class Marks:
    """Start and end of a run's load, and starts of its steady and fault phases, in us since the run's origin."""

    load_start_us: int
    steady_start_us: int
    faults_start_us: int
    load_end_us: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Phase:
    """Phase of a run, a row of ``phases.json``; ``entry`` is the fault's id in the plan, without rounds and blocks."""

    name: str
    fault: str | None
    block: int
    start_us: int
    end_us: int
    entry: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def phases(journal: Iterable[Mapping[str, Any]], marks: Marks, timeline: Timeline) -> list[Phase]:
    """Return the phases warmup, steady, one ``fault`` for each fault, and ``recovery``, sorted by start."""
    lines = list(journal)
    windows = []
    for step in timeline.steps:
        times = {line["state"]: line["t_us"] for line in lines if line["fault"] == step.id}  # the last of each state
        if "intended" not in times:
            continue
        if step.for_ms is None and "injected" in times:
            end_us = times["injected"] + timeline.timing.fault_ms * 1000
        else:
            end_us = times.get("healed", max(marks.load_end_us, times["intended"]))
        windows.append(Phase("fault", step.id, step.block, times["intended"], end_us, step.entry or step.id))
    windows.sort(key=lambda window: window.start_us)
    recoveries = []
    block, covered_us = 0, windows[0].start_us if windows else marks.load_end_us
    for window in windows:
        if covered_us < window.start_us:
            recoveries.append(Phase("recovery", None, block, covered_us, window.start_us))
        block, covered_us = window.block, max(covered_us, window.end_us)
    if covered_us < marks.load_end_us:
        recoveries.append(Phase("recovery", None, block, covered_us, marks.load_end_us))
    before = [
        Phase("warmup", None, 0, marks.load_start_us, marks.steady_start_us),
        Phase("steady", None, 0, marks.steady_start_us, marks.faults_start_us),
    ]
    return sorted([*before, *windows, *recoveries], key=lambda phase: phase.start_us)
