"""Draw a plan for ``explore`` from a seed, a run number and the coverage so far: swarm testing with a goal. Pure.

A `Frame` is what all runs of a search share: a plan without faults, and the cells reachable in it. The plan's own
faults, blocks and abort conditions are left out. Of its SLOs, those that are valid for the drawn plan are kept. The
wire proxy is in front of the cluster in every run, so one warm cluster serves all runs. Faults that need the image of
another version are not drawn, nor faults on controller links, whose traffic can't be counted.

Each run has a goal: a cell with the least effort so far, not counting stale runs. The rest is the swarm: half of the
arms and half of the fault kinds, drawn, and from these kinds up to two more faults. Leaving features out finds more
than having all of them at once, since some features hide what others would show (Groce et al., *Swarm Testing*, ISSTA
2012). A run that failed to exercise a cell counts as effort, so an unreachable cell doesn't take all the time.

``words.yaml`` lists templates of each kind, in which words in capitals stand for something of the plan. All words of a
template refer to one client: its topic, and the rack where it runs, so that the fault can affect this client.

The phase of a fault decides when it starts::

    first        ├──────for──────┤
    overlapping        ├─────for─────┤             at a third to two thirds of the one before
    recovering                         ├──for──┤   right after the one before must have healed

These are planned times. How long inject and heal really take is known after the run, and so is the phase that counts.
"""

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import CheckedPlan, check
from aftershock.faults.plan.document import dump_yaml, load
from aftershock.faults.plan.model import Plan, SloEntry
from aftershock.faults.plan.model import dump as plan_as_data
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.sample_size import slo_problems
from aftershock.faults.plan.workloads import Timing
from aftershock.faults.search.coverage import (
    NO_RUNS,
    PHASES,
    Cell,
    Phase,
    Tally,
    Worker,
    can_affect,
    phase_at,
    role_of,
    workers_of,
)
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.expand import window_ms

ARMS_MAX = 4  # two cores bear them: 150 requests/s in all
FAULTS_MAX = 3
LONGEST_MS = 75_000  # of the load after the steady phase

_STEP_MS = 100
_TEMPLATE_TRIES = 4  # to fill one template for one client; few valid combinations are missed
_PLAN_TRIES = 8  # to draw a plan for one goal
_UNCOUNTED_ROLE = "controller link"
_RECOVERED_WITHIN = "30s"
_HEAL_MS_MAX = 15_000  # with a slower heal the phase of the next fault can't be planned
_LATER_PHASES: tuple[Phase, ...] = ("overlapping", "recovering")

_TEMPLATES_FILE = Path(__file__).with_name("words.yaml")
_TOKEN = re.compile(r"TOPIC|PARTITION|RACK|OTHER|GROUP|CLIENT|OP")
_DURATIONS = ["3s", "6s"]
_BY_VALUE_TYPE = {
    "ROLE": "BROKER",
    "LINK": "CLIENT_LINK",
    "DURATION": ["100ms", "1s"],
    "SIZE": ["2kB", "64KiB"],
    "RATE": "10/s",
    "BANDWIDTH": ["20kB/s", "1MB/s"],
}
_BY_NAME = {"topic": "TOPIC", "rack": "RACK", "client": "CLIENT"}


def place_faults(faults: Sequence[tuple[Fault, Phase]], timing: Timing, source: random.Random) -> list[Fault]:
    """Set the start of each fault according to its phase; the first starts at 0 whatever its phase."""
    placed: list[Fault] = []
    for fault, phase in faults:
        at_ms = 0
        if placed and phase == "overlapping":
            at_ms = placed[-1].at + int(window_ms(placed[-1], timing) * source.uniform(1 / 3, 2 / 3))
        elif placed:
            at_ms = _healed_at_ms(placed[-1], timing) + source.randint(500, 2_000)
        placed.append(fault.model_copy(update={"at": at_ms - at_ms % _STEP_MS}))
    return placed


def planned_phase(fault: Fault, others: Sequence[Fault], timing: Timing) -> Phase:
    """Return the phase in which a fault starts, by planned times."""
    return phase_at(fault.at, [(other.at, _healed_at_ms(other, timing)) for other in others])


def _healed_at_ms(fault: Fault, timing: Timing) -> int:
    return fault.at + window_ms(fault, timing) + fault.allowance_ms


@dataclass(frozen=True)
class FaultTemplate:
    """Fields of a fault with its target role chosen; tokens and lists of alternatives are filled in at each draw."""

    kind: str
    fields: Mapping[str, Any]


@cache
def _templates_document() -> Mapping[str, Any]:
    return dict(load(_TEMPLATES_FILE).data)


@cache
def fault_templates() -> tuple[FaultTemplate, ...]:
    """Return the templates of every kind, in the order of the catalogue, one for each target a word may stand for."""
    document = _templates_document()
    targets: Mapping[str, list[str]] = document["targets"]
    templates: list[FaultTemplate] = []
    for kind, fault in KINDS.items():
        for fields in document["kinds"].get(kind) or _template_from_schema(fault):
            names = [name for name, value in fields.items() if isinstance(value, str) and value in targets]
            if not names:
                templates.append(FaultTemplate(kind, dict(fields)))
            else:
                name = names[0]
                templates += [FaultTemplate(kind, {**fields, name: text}) for text in targets[fields[name]]]
    return tuple(templates)


def _template_from_schema(fault: type[Fault]) -> list[dict[str, Any]]:
    """Build a template for the required fields of a kind; none if the schema doesn't tell a suitable value."""
    schema = fault.model_json_schema(by_alias=True)
    required = [name for name in schema.get("required", ()) if name not in ("kind", "at", "for")]
    fields = {
        name: _BY_NAME.get(name) or _BY_VALUE_TYPE.get(schema["properties"][name].get("x-word")) for name in required
    }
    return [] if None in fields.values() else [fields]


def companion_of(kind: str) -> FaultTemplate | None:
    """Return the template of the fault that must be in force too, or no traffic meets a fault of this kind."""
    fields = _templates_document()["company"].get(kind)
    if not fields:
        return None
    return FaultTemplate(fields["kind"], {name: value for name, value in fields.items() if name != "kind"})


def fill_template(template: FaultTemplate, worker: Worker, plan: Plan, source: random.Random) -> dict[str, Any] | None:
    """Draw a fault as a plan's YAML has it, without ``at``; None if the plan has nothing that a token stands for."""
    partitions = next(topic.partitions for topic in plan.topics if topic.name == worker.topic)
    options: dict[str, list[str]] = {
        "TOPIC": [worker.topic],
        "PARTITION": [str(number) for number in range(partitions)],
        "RACK": [worker.rack],
        "OTHER": [rack for rack in plan.cluster.racks if rack != worker.rack],
        "GROUP": [group for workload in plan.workloads for group in workload.consumer_groups],
        "CLIENT": [f"{worker.workload}/{worker.arm}"],
        "OP": [worker.op],
    }
    values = {token: source.choice(choices) for token, choices in options.items() if choices}
    fields = {name: _filled(value, values, source) for name, value in template.fields.items()}
    if any(_TOKEN.search(text) for text in _texts(fields)):
        return None
    if KINDS[template.kind].for_rule == "needed" and "for" not in fields:
        fields["for"] = source.choice(_DURATIONS)
    return {"kind": template.kind, **fields}


def _filled(value: Any, tokens: Mapping[str, str], source: random.Random) -> Any:
    """Replace tokens, and a list by one of its items; an item that is a list itself is kept as the value."""
    if isinstance(value, list):
        choice = source.choice(value)
        return choice if isinstance(choice, list) else _filled(choice, tokens, source)
    if isinstance(value, dict):
        return {key: _filled(inner, tokens, source) for key, inner in value.items()}
    if isinstance(value, str):
        return _TOKEN.sub(lambda token: tokens.get(token[0], token[0]), value)
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


@dataclass(frozen=True)
class FaultRole:
    """Fault kind and role: the coordinates of a cell that a template decides."""

    fault: str
    role: str


@dataclass(frozen=True)
class Frame:
    """``plan``: without faults and SLOs; ``templates``: those of each role, with their clients; ``cells``: sorted."""

    plan: Plan
    slo: tuple[str | SloEntry, ...]
    workers: tuple[Worker, ...]
    templates: Mapping[FaultRole, tuple[tuple[FaultTemplate, Worker], ...]]
    cells: tuple[Cell, ...]


def frame_of(checked: CheckedPlan) -> Frame:
    """Build the frame of a plan. Raise PlanError if no fault can be drawn in it."""
    if checked.plan.cluster.attach:
        raise PlanError([f"{checked.source}: explore launches its own clusters; remove `attach` from the frame"])
    cluster = checked.plan.cluster.model_copy(update={"wire_proxy": True})
    bare = {"cluster": cluster, "faults": (), "blocks": 1, "abort": (), "slo": ()}
    plan = checked.plan.model_copy(update=bare)
    workers = workers_of(plan)
    source = random.Random(0)  # noqa: S311 -- repeatable on purpose
    templates: dict[FaultRole, list[tuple[FaultTemplate, Worker]]] = {}
    cells: set[Cell] = set()
    for template in fault_templates():
        for worker in workers:
            tries = (_draw_fault(template, worker, plan, source) for _ in range(_TEMPLATE_TRIES))
            fault = next(filter(None, tries), None)
            if fault is None or not can_affect(fault, worker) or fault.kafka_versions():
                continue
            if (role := role_of(fault)) == _UNCOUNTED_ROLE:
                continue
            templates.setdefault(FaultRole(fault.kind, role), []).append((template, worker))
            labels = {affected.label for affected in workers if can_affect(fault, affected)}
            cells |= {Cell(fault.kind, role, phase, label) for phase in PHASES for label in labels}
    if not cells:
        raise PlanError([f"{checked.source}: no fault kind fits this plan; give it topics and clients to explore"])
    by_role = {role: tuple(pairs) for role, pairs in templates.items()}
    return Frame(plan, checked.plan.slo, workers, by_role, tuple(sorted(cells)))


def _draw_fault(template: FaultTemplate, worker: Worker, plan: Plan, source: random.Random) -> Fault | None:
    """Draw a fault for this client, or None if the drawn fault isn't valid in the plan."""
    fields = fill_template(template, worker, plan, source)
    if fields is None:
        return None
    try:
        fault = KINDS[fields["kind"]].model_validate(fields)
        check(plan.model_copy(update={"faults": (fault,)}))
    except (ValidationError, PlanError):
        return None
    return fault


@dataclass(frozen=True)
class DrawnPlan:
    """``text``: YAML that passed the check and was compiled once with its seed; ``goal``: cell that it aims at."""

    text: str
    seed: int
    number: int
    goal: Cell


def draw_plan(frame: Frame, tallies: Mapping[Cell, Tally], seed: int, number: int) -> DrawnPlan:
    """Draw the plan of this number. Raise PlanError if no valid plan can be drawn."""
    source = random.Random(f"{seed}/{number}")  # noqa: S311 -- repeatable on purpose
    # cells of equal effort come in random order
    for goal in sorted(frame.cells, key=lambda cell: (_effort(tallies.get(cell, NO_RUNS)), source.random())):
        for _ in range(_PLAN_TRIES):
            if plan := _draw_for_goal(goal, frame, tallies, source):
                why = f"Drawn by explore, to see {goal.fault} on {goal.role} while {goal.phase}, with {goal.workload}."
                complete = plan.model_copy(update={"name": f"explore-{seed}-{number}", "why": why})
                return DrawnPlan(dump_yaml(plan_as_data(complete)), seed, number, goal)
    raise PlanError([f"seed {seed}: no valid plan can be drawn from this frame; give it more time, topics or clients"])


def _effort(tally: Tally) -> int:
    return tally.fresh + tally.tried


def _draw_for_goal(goal: Cell, frame: Frame, tallies: Mapping[Cell, Tally], source: random.Random) -> Plan | None:
    worker = source.choice([worker for worker in frame.workers if worker.label == goal.workload])
    plan = _draw_arms(frame.plan, worker, source)
    drawn = list(_draw_sequence(goal, worker, frame, plan, tallies, source))
    faults = [(fault, phase) for fault, phase in drawn if fault is not None]
    if len(faults) < len(drawn):
        return None
    complete = plan.model_copy(update={"faults": tuple(place_faults(faults, plan.timing, source))})
    return _with_slos(complete, frame) if _is_runnable(complete) else None


def _draw_arms(plan: Plan, worker: Worker, source: random.Random) -> Plan:
    """Return the plan with this client's arm and about half of the other arms."""
    names = [(workload.name, arm) for workload in plan.workloads for arm in workload.arms]
    own = (worker.workload, worker.arm)
    others = [name for name in names if name != own and source.random() < 1 / 2]
    members = {own, *source.sample(others, min(len(others), ARMS_MAX - 1))}
    workloads = []
    for workload in plan.workloads:
        arms = {name: arm for name, arm in workload.arms.items() if (workload.name, name) in members}
        if arms:
            workloads.append(workload.model_copy(update={"arms": arms}))
    return plan.model_copy(update={"workloads": tuple(workloads)})


def _draw_sequence(
    goal: Cell, worker: Worker, frame: Frame, plan: Plan, tallies: Mapping[Cell, Tally], source: random.Random
) -> Iterator[tuple[Fault | None, Phase]]:
    """Draw the faults: one before the goal unless its phase is steady, the goal, its companion, then more.

    A fault is None if it isn't valid for the plan's clients.
    """
    workers = workers_of(plan)
    labels = {client.label for client in workers}
    kinds = sorted({role.fault for role in frame.templates if not companion_of(role.fault)})
    swarm = [kind for kind in kinds if source.random() < 1 / 2] or kinds

    def fault_of(role: FaultRole, clients: Collection[Worker]) -> Fault | None:
        pairs = [(template, client) for template, client in frame.templates[role] if client in clients]
        return _draw_fault(*source.choice(pairs), plan, source) if pairs else None

    def from_swarm(phase: Phase) -> tuple[Fault | None, Phase]:
        # the less its cells were exercised with these clients, the likelier a role is drawn
        choices = [role for role in frame.templates if role.fault in swarm]
        efforts = [
            min(_effort(tallies.get(Cell(role.fault, role.role, phase, label), NO_RUNS)) for label in labels)
            for role in choices
        ]
        role = source.choices(choices, [1 / (1 + effort) ** 2 for effort in efforts])[0]
        return fault_of(role, workers), phase

    has_predecessor, companion = goal.phase != "steady", companion_of(goal.fault)
    if has_predecessor:
        yield from_swarm("steady")
    role = FaultRole(goal.fault, goal.role)
    # a template of another client may affect this one too
    yield fault_of(role, [worker]) or fault_of(role, workers), goal.phase
    if companion:
        yield _draw_fault(companion, worker, plan, source), "overlapping"
    for _ in range(source.randint(0, FAULTS_MAX - 1 - has_predecessor - bool(companion))):
        yield from_swarm(source.choice(_LATER_PHASES))


def _is_runnable(plan: Plan) -> bool:
    if any(fault.allowance_ms > _HEAL_MS_MAX for fault in plan.faults[:-1] if isinstance(fault, Fault)):
        return False
    try:
        check(plan)
        return compile_plan(plan, 0, "", ()).length_ms <= LONGEST_MS
    except PlanError:
        return False


def _with_slos(plan: Plan, frame: Frame) -> Plan:
    """Add the frame's SLOs that have enough samples, and recovery after each fault, which is only reported."""
    faults = draft_of(plan).faults.ids.values()
    recoveries = [SloEntry(slo=f"recovery < {_RECOVERED_WITHIN} after {fault}", gate="report") for fault in faults]
    valid = [
        slo
        for slo in (*frame.slo, *recoveries)
        if not any(slo_problems(draft_of(plan.model_copy(update={"slo": (slo,)}))))
    ]
    return plan.model_copy(update={"slo": tuple(valid)})
