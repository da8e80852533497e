"""What a search keeps from run to run: a plan without faults. And what can be reached in it: its cells.

Rules: a plan's own faults, blocks and abort conditions are left out, and of its SLOs those are kept that hold for what
is drawn. The wire proxy stands before the cluster of every run, so that one warm cluster serves them all. A fault that
needs another version's image is not drawn, nor one on controller links, whose traffic nobody can count.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.check import Checked, check
from aftershock.faults.coverage.cell import PHASES, Cell
from aftershock.faults.coverage.role import role_of
from aftershock.faults.coverage.worker import Worker, meets, workers_of
from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS
from aftershock.faults.plan import Plan
from aftershock.faults.slo_entry import SloEntry
from aftershock.faults.swarm.words import Saying, say, sayings

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
