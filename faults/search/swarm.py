"""Draw a plan for ``explore`` from a seed, a run number and the coverage so far.

Each run of ``explore`` has a goal, which is the coverage cell with the fewest recent runs. A run that failed to
exercise its goal is counted as well, so an unreachable cell doesn't take all the time. The rest of a plan is drawn at
random, from half of the arms and half of the fault kinds, with up to two more faults. Plans with few features find more
defects than plans with all features, because some features hide defects of others (Groce et al., *Swarm Testing*, ISSTA
2012).
"""

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import CheckedPlan, check
from aftershock.faults.plan.expand import window_ms
from aftershock.faults.plan.model import Plan, SloEntry
from aftershock.faults.plan.model import dump as plan_as_data
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.sample_size import slo_problems
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
from aftershock.faults.sections.document import dump_yaml, load
from aftershock.faults.sections.workloads import Timing
from aftershock.faults.timeline.compile import compile_plan

ARMS_MAX = 4  # two cores bear 150 requests/s in all
FAULTS_MAX = 3
LONGEST_MS = 75_000  # of the load after the steady phase

_STEP_MS = 100
_TEMPLATE_TRIES = 4  # to fill one template for one client; few valid combinations are missed
_PLAN_TRIES = 8  # to draw a plan for one goal
_HEAL_MS_MAX = 15_000  # with a slower heal the phase of the next fault can't be planned
_LATER_PHASES: tuple[Phase, ...] = ("overlapping", "recovering")

Template = Mapping[str, Any]
"""Fields of a fault, from ``Fault.drawn``; tokens in capitals and lists of alternatives are filled in at each draw.

All tokens of a template refer to one client: its topic, the rack where it runs, and its operation (OP), so the fault
can affect it. PARTITION is one of the topic, OTHER another rack, GROUP any group.
"""
_TARGETS: Mapping[str, Sequence[str]] = {
    "BROKER": (
        "leader of TOPIC/PARTITION",
        "controller",
        "replica of TOPIC/PARTITION in rack RACK",
        "coordinator of GROUP",
        "any broker except controller",
    ),
    "CLIENT_LINK": (
        "client(RACK) -> broker",
        "client(RACK) <-> broker",
        "client(RACK) -> broker(leader of TOPIC/PARTITION)",
    ),
    "LEADER_LINK": ("client(RACK) -> broker(leader of TOPIC/0)",),
    "NODE_LINK": ("replication(RACK) -> broker", "rack(RACK) <-> rack(OTHER)"),
}

_TOKEN = re.compile(r"TOPIC|PARTITION|RACK|OTHER|GROUP|CLIENT|OP")
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
    """Set the planned start of each fault according to the fault's phase; the first fault starts at 0.

    A fault of the phase ``overlapping`` starts at a third to two thirds of the previous fault, and a fault of the phase
    ``recovering`` right after the previous fault must have healed.
    """
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
    """Return the phase in which a fault starts according to the planned times of all faults."""
    return phase_at(fault.at, [(other.at, _healed_at_ms(other, timing)) for other in others])


def _healed_at_ms(fault: Fault, timing: Timing) -> int:
    return fault.at + window_ms(fault, timing) + fault.allowance_ms


@cache
def fault_templates() -> tuple[Template, ...]:
    """Return the fault templates, one for each fault kind and type of target, in the order of the catalogue."""
    templates: list[Template] = []
    for kind, fault in KINDS.items():
        if "kubernetes" in fault.needs:  # runs of `explore` are on the Docker engine
            continue
        for fields in [*map(_parsed, fault.drawn)] or _template_from_schema(fault):
            names = [name for name, value in fields.items() if isinstance(value, str) and value in _TARGETS]
            variants = [{names[0]: text} for text in _TARGETS[fields[names[0]]]] if names else [{}]
            templates += [{"kind": kind, **fields, **variant} for variant in variants]
    return tuple(templates)


def _parsed(template: str) -> dict[str, Any]:
    return dict(load(template).data)


def _template_from_schema(fault: type[Fault]) -> list[dict[str, Any]]:
    """Build a template for a fault kind; an empty list if its schema suggests no value for a required field."""
    schema = fault.model_json_schema(by_alias=True)
    required = [name for name in schema.get("required", ()) if name not in ("kind", "at", "for")]
    fields = {
        name: _BY_NAME.get(name) or _BY_VALUE_TYPE.get(schema["properties"][name].get("x-word")) for name in required
    }
    return [] if None in fields.values() else [fields]


def companion_of(kind: str) -> Template | None:
    """Return a template of the second fault that a fault of this kind needs, so that traffic meets the fault."""
    template = KINDS[kind].drawn_with
    return _parsed(template) if template else None


def _filled(value: Any, tokens: Mapping[str, str], source: random.Random) -> Any:
    """Replace placeholders in a fault template, and each list by an item drawn from it, which may itself be a list."""
    if isinstance(value, list):
        choice = source.choice(value)
        return choice if isinstance(choice, list) else _filled(choice, tokens, source)
    if isinstance(value, dict):
        return {key: _filled(inner, tokens, source) for key, inner in value.items()}
    if isinstance(value, str):
        return _TOKEN.sub(lambda token: tokens.get(token[0], token[0]), value)
    return value


class FaultRole(NamedTuple):
    """Fault kind and role of a coverage cell; a fault template determines both."""

    fault: str
    role: str


@dataclass(frozen=True)
class Frame:
    """The fault-free plan to which each run of ``explore`` adds faults, and the reachable coverage cells, sorted.

    The faults, blocks and abort conditions of the user's plan are omitted; the SLOs are kept. Every run uses the wire
    proxy, so that one cluster serves all runs. Faults that need the image of another Kafka version are not drawn, nor
    faults on controller links, whose traffic can't be counted. ``templates`` has the fault templates of each role, each
    with a client that the fault affects. ``without_disks`` has the fault kinds that are invalid beside the plan's
    ``disks``, which are in memory, such as ``power_loss``; a run with such a goal has no ``disks``.
    """

    plan: Plan
    slo: tuple[str | SloEntry, ...]
    workers: tuple[Worker, ...]
    templates: Mapping[FaultRole, tuple[tuple[Template, Worker], ...]]
    cells: tuple[Cell, ...]
    without_disks: frozenset[str]

    def plan_for(self, kind: str) -> Plan:
        """Return the fault-free plan of a run whose goal has this fault kind."""
        return _without_disks(self.plan) if kind in self.without_disks else self.plan


def _without_disks(plan: Plan) -> Plan:
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"disks": None})})


def frame_of(checked: CheckedPlan) -> Frame:
    """Build the frame of ``explore`` from the user's plan; raise PlanError if no fault can be drawn for the plan."""
    if checked.plan.cluster.attach:
        raise PlanError([f"{checked.source}: explore launches its own clusters; remove `attach` from the plan"])
    cluster = checked.plan.cluster.model_copy(update={"wire_proxy": True})
    bare = {"cluster": cluster, "faults": (), "blocks": 1, "abort": (), "slo": ()}
    plan = checked.plan.model_copy(update=bare)
    workers = workers_of(plan)
    source = random.Random(0)  # noqa: S311 -- repeatable on purpose
    templates: dict[FaultRole, list[tuple[Template, Worker]]] = {}
    cells: set[Cell] = set()
    without_disks: set[str] = set()

    def fault_of(template: Template, worker: Worker, base: Plan) -> Fault | None:
        tries = (_draw_fault(template, worker, base, source) for _ in range(_TEMPLATE_TRIES))
        return next(filter(None, tries), None)

    for template in fault_templates():
        for worker in workers:
            fault = fault_of(template, worker, plan)
            if fault is None and (fault := fault_of(template, worker, _without_disks(plan))):
                without_disks.add(fault.kind)
            if fault is None or not can_affect(fault, worker) or fault.kafka_versions():
                continue
            role = role_of(fault)
            if role == "controller link":
                continue
            templates.setdefault(FaultRole(fault.kind, role), []).append((template, worker))
            labels = {affected.label for affected in workers if can_affect(fault, affected)}
            cells |= {Cell(fault.kind, role, phase, label) for phase in PHASES for label in labels}
    if not cells:
        raise PlanError([f"{checked.source}: explore can add no fault to this plan; add topics and clients"])
    by_role = {role: tuple(pairs) for role, pairs in templates.items()}
    return Frame(plan, checked.plan.slo, workers, by_role, tuple(sorted(cells)), frozenset(without_disks))


def _draw_fault(template: Template, worker: Worker, plan: Plan, source: random.Random) -> Fault | None:
    """Draw a fault without ``at`` that affects a client; None if the drawn fault isn't valid in the plan."""
    partitions = min(topic.partitions for topic in plan.topics if topic.name in worker.topics)
    options: dict[str, list[str]] = {
        "TOPIC": [*worker.topics],
        "PARTITION": [str(number) for number in range(partitions)],
        "RACK": [worker.rack],
        "OTHER": [rack for rack in plan.cluster.racks if rack != worker.rack],
        "GROUP": [group for workload in plan.workloads for group in workload.consumer_groups],
        "CLIENT": [f"{worker.workload}/{worker.arm}"],
        "OP": [worker.op],
    }
    tokens = {token: source.choice(choices) for token, choices in options.items() if choices}
    fields = {name: _filled(value, tokens, source) for name, value in template.items()}
    if _TOKEN.search(str(fields)):  # the plan has nothing that the token stands for
        return None
    if KINDS[fields["kind"]].for_rule == "needed" and "for" not in fields:
        fields["for"] = source.choice(["3s", "6s"])
    try:
        fault = KINDS[fields["kind"]].model_validate(fields)
        check(plan.model_copy(update={"faults": (fault,)}))
    except (ValidationError, PlanError):
        return None
    return fault


@dataclass(frozen=True)
class DrawnPlan:
    """Plan of one run of ``explore`` as YAML text; ``goal`` is the coverage cell to exercise."""

    text: str
    seed: int
    number: int
    goal: Cell


def draw_plan(frame: Frame, tallies: Mapping[Cell, Tally], seed: int, number: int) -> DrawnPlan:
    """Draw the plan of the run with this number; raise PlanError if no valid plan can be drawn."""
    source = random.Random(f"{seed}/{number}")  # noqa: S311 -- repeatable on purpose
    # cells of equal effort come in random order
    for goal in sorted(frame.cells, key=lambda cell: (_effort(tallies.get(cell, NO_RUNS)), source.random())):
        for _ in range(_PLAN_TRIES):
            if plan := _draw_for_goal(goal, frame, tallies, source):
                why = f"Drawn by explore, to see {goal.fault} on {goal.role} while {goal.phase}, with {goal.workload}."
                complete = plan.model_copy(update={"name": f"explore-{seed}-{number}", "why": why})
                return DrawnPlan(dump_yaml(plan_as_data(complete)), seed, number, goal)
    why = "explore can add no fault to the given plan; give the plan more time, topics or clients"
    raise PlanError([f"seed {seed}: {why}"])


def _effort(tally: Tally) -> int:
    return tally.fresh + tally.tried


def _draw_for_goal(goal: Cell, frame: Frame, tallies: Mapping[Cell, Tally], source: random.Random) -> Plan | None:
    """Draw a plan that should exercise a coverage cell; None if the drawn plan can't run."""
    worker = source.choice([worker for worker in frame.workers if worker.label == goal.workload])
    plan = _draw_arms(frame.plan_for(goal.fault), worker, source)
    drawn = list(_draw_sequence(goal, worker, frame, plan, tallies, source))
    faults = [(fault, phase) for fault, phase in drawn if fault is not None]
    if len(faults) < len(drawn):
        return None
    placed = place_faults(faults, plan.timing, source)
    if any(fault.allowance_ms > _HEAL_MS_MAX for fault in placed[:-1]):
        return None
    plan = plan.model_copy(update={"faults": tuple(placed)})
    try:
        check(plan)
        if compile_plan(plan, 0, "", ()).length_ms > LONGEST_MS:
            return None
    except PlanError:
        return None
    # the frame's SLOs that have enough samples, and recovery after each fault, which is only reported
    ids = draft_of(plan).faults.ids.values()
    slos = [*frame.slo, *(SloEntry(slo=f"recovery < 30s after {fault}", gate="report") for fault in ids)]
    valid = [slo for slo in slos if not any(slo_problems(draft_of(plan.model_copy(update={"slo": (slo,)}))))]
    return plan.model_copy(update={"slo": tuple(valid)})


def _draw_arms(plan: Plan, worker: Worker, source: random.Random) -> Plan:
    """Return the plan with the arm of ``worker`` and a random half of the plan's other arms."""
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
    """Draw a goal's fault, an earlier fault if the goal's phase needs one, and up to two further faults.

    Yields None in place of a drawn fault that isn't valid for the plan's clients.
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
