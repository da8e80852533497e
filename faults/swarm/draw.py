"""A plan from a seed, a number and what was exercised before: swarm testing with a goal. Pure.

Each run has a goal: a cell that was exercised least of all, lately. Around it comes the swarm: half of the arms and
half of the kinds, drawn; and from these up to two faults more. Leaving features out finds more than having all of them
at once, since some hide what others would show (Groce et al., *Swarm Testing*, ISSTA 2012). A cell that was tried in
vain counts like one that was exercised, so that what can't be reached here doesn't take all the time there is.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aftershock.errors import PlanError
from aftershock.faults.check import check
from aftershock.faults.compile import compile_plan
from aftershock.faults.coverage.cell import Cell, Phase
from aftershock.faults.coverage.tally import NOTHING, Tally
from aftershock.faults.coverage.worker import Worker, workers_of
from aftershock.faults.document import dump
from aftershock.faults.draft import draft_of
from aftershock.faults.fault import Fault
from aftershock.faults.feed import objectives
from aftershock.faults.plan import Plan
from aftershock.faults.plan import dump as plan_as_data
from aftershock.faults.slo_entry import SloEntry
from aftershock.faults.swarm.frame import Aim, Frame
from aftershock.faults.swarm.placing import placed
from aftershock.faults.swarm.words import companion

ARMS_MAX = 4  # what two cores bear: 150 requests/s in all
FAULTS_MAX = 3
LONGEST_MS = 75_000  # of the load after steady
_TRIES = 8  # around one goal
_CALM = "30s"
_SLOW_MS = 15_000  # a heal that may take longer leaves no telling when it is over
_LATER: tuple[Phase, ...] = ("overlapping", "recovering")


@dataclass(frozen=True)
class Drawn:
    """A plan as YAML, checked and compiled with its seed once; the cell that it was drawn for."""

    text: str
    seed: int
    number: int
    goal: Cell


def draw(frame: Frame, tallies: Mapping[Cell, Tally], seed: int, number: int) -> Drawn:
    """The plan of this number. Raises PlanError where none can be drawn."""
    source = random.Random(f"{seed}/{number}")  # noqa: S311 -- repeatable on purpose
    for goal in _least(frame.cells, tallies, source):
        for _ in range(_TRIES):
            if plan := _around(goal, frame, tallies, source):
                named = plan.model_copy(update={"name": f"explore-{seed}-{number}", "why": _why(goal)})
                return Drawn(dump(plan_as_data(named)), seed, number, goal)
    raise PlanError([f"seed {seed}: no plan can be drawn in this frame; give it more time, topics or clients"])


def _why(goal: Cell) -> str:
    return f"Drawn by explore, to see {goal.fault} on {goal.role} while {goal.phase}, with {goal.workload}."


def _least(cells: Sequence[Cell], tallies: Mapping[Cell, Tally], source: random.Random) -> list[Cell]:
    """Those with the least effort first, in an order that is drawn."""
    return sorted(cells, key=lambda cell: (_effort(tallies.get(cell, NOTHING)), source.random()))


def _effort(tally: Tally) -> int:
    return tally.fresh + tally.tried


def _around(goal: Cell, frame: Frame, tallies: Mapping[Cell, Tally], source: random.Random) -> Plan | None:
    about = source.choice([worker for worker in frame.workers if worker.label == goal.workload])
    plan = _with_arms(frame.plan, about, source)
    drawn = list(_sequence(goal, about, frame, plan, tallies, source))
    faults = [(fault, phase) for fault, phase in drawn if fault is not None]
    if len(faults) < len(drawn):
        return None
    whole = plan.model_copy(update={"faults": tuple(placed(faults, plan.timing, source))})
    return _with_slos(whole, frame) if _runs(whole) else None


def _with_arms(plan: Plan, about: Worker, source: random.Random) -> Plan:
    """The plan with this client's arm and about half of the others."""
    names = [(workload.name, arm) for workload in plan.workloads for arm in workload.arms]
    own = (about.workload, about.arm)
    others = [name for name in names if name != own and source.random() < 1 / 2]
    kept = {own, *source.sample(others, min(len(others), ARMS_MAX - 1))}
    workloads = [
        workload.model_copy(
            update={"arms": {arm: said for arm, said in workload.arms.items() if (workload.name, arm) in kept}}
        )
        for workload in plan.workloads
    ]
    return plan.model_copy(update={"workloads": tuple(workload for workload in workloads if workload.arms)})


def _sequence(
    goal: Cell, about: Worker, frame: Frame, plan: Plan, tallies: Mapping[Cell, Tally], source: random.Random
) -> Iterator[tuple[Fault | None, Phase]]:
    """The goal, something before it where it needs that, its company, and more after it; None can't be said of them."""
    crew = workers_of(plan)
    kinds = sorted({aim.fault for aim in frame.aims if not companion(aim.fault)})
    swarm = [kind for kind in kinds if source.random() < 1 / 2] or kinds

    def one(phase: Phase) -> tuple[Fault | None, Phase]:
        return _said(_one(frame, crew, tallies, source, swarm, phase), crew, frame, plan, source), phase

    before, company = goal.phase != "steady", companion(goal.fault)
    if before:
        yield one("steady")
    aim = Aim(goal.fault, goal.role)
    said = _said(aim, [about], frame, plan, source) or _said(aim, crew, frame, plan, source)  # who else may meet it too
    yield said, goal.phase
    if company:
        yield frame.fault(company, about, plan, source), "overlapping"
    for _ in range(source.randint(0, FAULTS_MAX - 1 - before - bool(company))):
        yield one(source.choice(_LATER))


def _one(
    frame: Frame,
    crew: Sequence[Worker],
    tallies: Mapping[Cell, Tally],
    source: random.Random,
    swarm: Sequence[str],
    phase: Phase,
) -> Aim:
    """One of the swarm, the likelier the less its cells were exercised with these clients."""
    aims = [aim for aim in frame.aims if aim.fault in swarm]
    labels = {worker.label for worker in crew}
    efforts = [
        min(_effort(tallies.get(Cell(aim.fault, aim.role, phase, label), NOTHING)) for label in labels) for aim in aims
    ]
    return source.choices(aims, [1 / (1 + effort) ** 2 for effort in efforts])[0]


def _said(aim: Aim, crew: Collection[Worker], frame: Frame, plan: Plan, source: random.Random) -> Fault | None:
    """The fault, about any of these clients; None where it can't be said of them."""
    ways = [(saying, of) for saying, of in frame.aims[aim] if of in crew]
    return frame.fault(*source.choice(ways), plan, source) if ways else None


def _runs(plan: Plan) -> bool:
    """Whether it can be run, in the time that a run may take."""
    if any(fault.allowance_ms > _SLOW_MS for fault in plan.faults[:-1] if isinstance(fault, Fault)):
        return False
    try:
        check(plan)
        return compile_plan(plan, 0, "", ()).length_ms <= LONGEST_MS
    except PlanError:
        return False


def _with_slos(plan: Plan, frame: Frame) -> Plan:
    """With those of the frame's SLOs that it can feed, and recovery from each fault, which is looked at and no more."""
    ids = draft_of(plan).faults.ids.values()
    asked = [*frame.slo, *(SloEntry(slo=f"recovery < {_CALM} after {fault}", gate="report") for fault in ids)]
    fed = [each for each in asked if not any(objectives(draft_of(plan.model_copy(update={"slo": (each,)}))))]
    return plan.model_copy(update={"slo": tuple(fed)})
