"""When each fault of a drawn plan strikes, so that it strikes in the phase that is wanted of it.

::

    first        ├──────for──────┤
    overlapping        ├─────for─────┤             at a third to two thirds of the one before
    recovering                         ├──for──┤   right after the one before must have healed

Times are the plan's; how long inject and heal really take is known afterwards, and so is the phase that counts.

What may be said of each kind: ``words.yaml``, in which words in capitals stand for something of the plan.

Everything said in one saying is about one client, so its topic is the one that the client uses, and its rack the one
where it stands: a fault that is drawn for a client can meet it.

What a search keeps from run to run: a plan without faults. And what can be reached in it: its cells.

Rules: a plan's own faults, blocks and abort conditions are left out, and of its SLOs those are kept that hold for what
is drawn. The wire proxy stands before the cluster of every run, so that one warm cluster serves them all. A fault that
needs another version's image is not drawn, nor one on controller links, whose traffic nobody can count.

A plan from a seed, a number and what was exercised before: swarm testing with a goal. Pure.

Each run has a goal: a cell that was exercised least of all, lately. Around it comes the swarm: half of the arms and
half of the kinds, drawn; and from these up to two faults more. Leaving features out finds more than having all of them
at once, since some hide what others would show (Groce et al., *Swarm Testing*, ISSTA 2012). A cell that was tried in
vain counts like one that was exercised, so that what can't be reached here doesn't take all the time there is.
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
from aftershock.faults.plan.check import Checked, check
from aftershock.faults.plan.document import dump, load
from aftershock.faults.plan.model import Plan, SloEntry
from aftershock.faults.plan.model import dump as plan_as_data
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.sample_size import objectives
from aftershock.faults.plan.workloads import Timing
from aftershock.faults.search.coverage import (
    NOTHING,
    PHASES,
    Cell,
    Phase,
    Tally,
    Worker,
    meets,
    role_of,
    struck,
    workers_of,
)
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.expand import window_ms

_STEP_MS = 100


def placed(faults: Sequence[tuple[Fault, Phase]], timing: Timing, source: random.Random) -> list[Fault]:
    """The faults with their times; the first strikes at once, whatever is wanted of it."""
    found: list[Fault] = []
    for fault, phase in faults:
        at_ms = _at_ms(found[-1], phase, timing, source) if found else 0
        found.append(fault.model_copy(update={"at": at_ms - at_ms % _STEP_MS}))
    return found


def planned(fault: Fault, others: Sequence[Fault], timing: Timing) -> Phase:
    """The phase in which a fault strikes by plan."""
    return struck(fault.at, [(other.at, _over_ms(other, timing)) for other in others])


def _at_ms(before: Fault, phase: Phase, timing: Timing, source: random.Random) -> int:
    if phase == "overlapping":
        return before.at + int(window_ms(before, timing) * source.uniform(1 / 3, 2 / 3))
    return _over_ms(before, timing) + source.randint(500, 2_000)


def _over_ms(fault: Fault, timing: Timing) -> int:
    return fault.at + window_ms(fault, timing) + fault.allowance_ms


_PAGE_FILE = Path(__file__).with_name("words.yaml")
_TOKEN = re.compile(r"TOPIC|PARTITION|RACK|OTHER|GROUP|CLIENT|OP")
_LASTS = ["3s", "6s"]
_BY_WORD = {
    "ROLE": "BROKER",
    "LINK": "CLIENT_LINK",
    "DURATION": ["100ms", "1s"],
    "SIZE": ["2kB", "64KiB"],
    "RATE": "10/s",
    "BANDWIDTH": ["20kB/s", "1MB/s"],
}
_BY_NAME = {"topic": "TOPIC", "rack": "RACK", "client": "CLIENT"}


@dataclass(frozen=True)
class Saying:
    """One way to say a fault, whom it hits already chosen; what it still leaves open is drawn each time."""

    kind: str
    words: Mapping[str, Any]


@cache
def _page() -> Mapping[str, Any]:
    return dict(load(_PAGE_FILE).data)


@cache
def sayings() -> tuple[Saying, ...]:
    """All of every kind, in the catalogue's order; a kind that nothing can be said of has none."""
    page = _page()
    return tuple(
        Saying(kind, words)
        for kind, fault in KINDS.items()
        for said in page["kinds"].get(kind) or _by_schema(fault)
        for words in _aimed(said, page["targets"])
    )


def companion(kind: str) -> Saying | None:
    """What has to happen while a fault of this kind is in force, or nothing meets it."""
    said = _page()["company"].get(kind)
    return Saying(said["kind"], {name: value for name, value in said.items() if name != "kind"}) if said else None


def say(saying: Saying, about: Worker, plan: Plan, source: random.Random) -> dict[str, Any] | None:
    """One fault as a plan says it, without ``at``; None where the plan has nothing that a word could stand for."""
    try:
        names = {token: source.choice(options) for token, options in _options(about, plan).items()}
    except IndexError:
        return None
    said = {name: _drawn(value, names, source) for name, value in saying.words.items()}
    if any(_TOKEN.search(text) for text in _texts(said)):
        return None
    if KINDS[saying.kind].for_rule == "needed" and "for" not in said:
        said["for"] = source.choice(_LASTS)
    return {"kind": saying.kind, **said}


def _options(about: Worker, plan: Plan) -> dict[str, list[str]]:
    partitions = next(topic.partitions for topic in plan.topics if topic.name == about.topic)
    groups = [group for workload in plan.workloads for group in workload.consumer_groups]
    others = [rack for rack in plan.cluster.racks if rack != about.rack]
    found: dict[str, list[str]] = {
        "TOPIC": [about.topic],
        "PARTITION": [str(number) for number in range(partitions)],
        "RACK": [about.rack],
        "OTHER": others,
        "GROUP": groups,
        "CLIENT": [f"{about.workload}/{about.arm}"],
        "OP": [about.op],
    }
    return {token: options for token, options in found.items() if options}


def _drawn(value: Any, names: Mapping[str, str], source: random.Random) -> Any:
    if isinstance(value, list):
        chosen = source.choice(value)
        return chosen if isinstance(chosen, list) else _drawn(chosen, names, source)
    if isinstance(value, dict):
        return {key: _drawn(inner, names, source) for key, inner in value.items()}
    if isinstance(value, str):
        return _TOKEN.sub(lambda token: names.get(token[0], token[0]), value)
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _aimed(said: Mapping[str, Any], targets: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """One for each target that a word may stand for."""
    places = [name for name, value in said.items() if isinstance(value, str) and value in targets]
    if not places:
        yield dict(said)
    for text in targets[said[places[0]]] if places else ():
        yield {**said, places[0]: text}


def _by_schema(fault: type[Fault]) -> list[dict[str, Any]]:
    """What is needed, as far as the schema tells what would do; nothing where it doesn't."""
    schema = fault.model_json_schema(by_alias=True)
    needed = [name for name in schema.get("required", ()) if name not in ("kind", "at", "for")]
    fields = {name: _BY_NAME.get(name) or _BY_WORD.get(schema["properties"][name].get("x-word")) for name in needed}
    return [] if None in fields.values() else [fields]


_TRIES = 4  # of one saying about one client, which leaves little to chance
_UNCOUNTED = "controller link"


@dataclass(frozen=True)
class Aim:
    """A fault and whom it hits: the half of a cell that a saying decides."""

    fault: str
    role: str


@dataclass(frozen=True)
class Frame:
    """``plan``: without faults and SLOs; ``aims``: how each can be said, of which clients; ``cells``: all, sorted."""

    plan: Plan
    slo: tuple[str | SloEntry, ...]
    workers: tuple[Worker, ...]
    aims: Mapping[Aim, tuple[tuple[Saying, Worker], ...]]
    cells: tuple[Cell, ...]

    def fault(self, saying: Saying, about: Worker, plan: Plan, source: random.Random) -> Fault | None:
        """One, for a plan that has this client; None if it isn't valid there."""
        return _valid(say(saying, about, plan, source), plan)


def frame_of(checked: Checked) -> Frame:
    """The frame that a plan gives. Raises PlanError where nothing can be drawn in it."""
    if checked.plan.cluster.attach:
        raise PlanError([f"{checked.source}: explore launches its own clusters; take `attach` from the frame"])
    cluster = checked.plan.cluster.model_copy(update={"wire_proxy": True})
    bare = {"cluster": cluster, "faults": (), "blocks": 1, "abort": (), "slo": ()}
    plan = checked.plan.model_copy(update=bare)
    workers = workers_of(plan)
    found: dict[Aim, list[tuple[Saying, Worker]]] = {}
    cells: set[Cell] = set()
    for aim, saying, about, fault in _reached(plan, workers):
        found.setdefault(aim, []).append((saying, about))
        met = {worker.label for worker in workers if meets(fault, worker)}
        cells |= {Cell(aim.fault, aim.role, phase, label) for phase in PHASES for label in met}
    if not cells:
        raise PlanError([f"{checked.source}: no kind of fault fits this plan, so there is nothing to explore"])
    return Frame(
        plan, checked.plan.slo, workers, {aim: tuple(ways) for aim, ways in found.items()}, tuple(sorted(cells))
    )


def _reached(plan: Plan, workers: tuple[Worker, ...]) -> Iterator[tuple[Aim, Saying, Worker, Fault]]:
    source = random.Random(0)  # noqa: S311 -- repeatable on purpose
    for saying in sayings():
        for about in workers:
            tries = (_valid(say(saying, about, plan, source), plan) for _ in range(_TRIES))
            fault = next((each for each in tries if each), None)
            if fault and meets(fault, about) and not fault.kafka_versions() and role_of(fault) != _UNCOUNTED:
                yield Aim(fault.kind, role_of(fault)), saying, about, fault


def _valid(said: dict[str, Any] | None, plan: Plan) -> Fault | None:
    if said is None:
        return None
    try:
        fault = KINDS[said["kind"]].model_validate(said)
        check(plan.model_copy(update={"faults": (fault,)}))
    except (ValidationError, PlanError):
        return None
    return fault


ARMS_MAX = 4  # what two cores bear: 150 requests/s in all
FAULTS_MAX = 3
LONGEST_MS = 75_000  # of the load after steady
_DRAW_TRIES = 8  # around one goal
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
        for _ in range(_DRAW_TRIES):
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
