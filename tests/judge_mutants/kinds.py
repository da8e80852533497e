"""Kinds of edits: what is planted, and what the judge must say about it.

A kind is a function that plants one edit at a random place of a draft and returns the ``Plant``, or None if the run has
no place for it. A *defect* is unexplained by construction: no fault, change of leader, assignment or setting of the run
can have caused it, by the table of explanations in docs/VERDICT.md. A *harmless* edit changes evidence in a way that a
correct run can produce.

A defect is **caught** if a check gets a worse status than in the verdict on the unedited run, and

* its id begins with one of ``checks``,
* it is about the client (arm) and operation in which the defect was planted, or about no client (log, replicas, run),
* its new status is FAIL, or also INCONCLUSIVE if ``status`` is INCONCLUSIVE: what the evidence leaves open.

An edit whose evidence can't be read at all (EvidenceError) is caught if ``error`` is set. A harmless edit is **blamed**
if any check of any client becomes FAIL, or INCONCLUSIVE unless ``unknown`` is set: the edit then removes an optional
field, without which a rule may say that it can't tell. SLOs do not count if ``slo`` is False: ``lost == 0`` counts what
is permitted too. A check of an arm that a defect does not touch (``touched``) and that becomes FAIL is **false blame**
of another client.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from random import Random

from aftershock.tests.judge_mutants.anatomy import Anatomy
from aftershock.tests.judge_mutants.draft import Draft

FAMILIES = (
    *("records", "order", "deliveries", "commits", "ownership", "load", "times", "replicas", "obligations"),
    *("documents", "harmless"),
)


@dataclass(frozen=True)
class Plant:
    """One planted edit. ``touched`` are the arms whose evidence the edit changes; None means all arms."""

    place: str
    checks: tuple[str, ...] = ()
    arm: str | None = None
    side: str | None = None
    status: str = "FAIL"
    error: bool = False
    unknown: bool = False
    slo: bool = True
    touched: frozenset[str] | None = None


Planter = Callable[[Anatomy, Draft, Random], Plant | None]


@dataclass(frozen=True)
class Kind:
    name: str
    family: str
    what: str
    plant: Planter

    @property
    def harmless(self) -> bool:
        return self.family == "harmless"


_KINDS: dict[str, Kind] = {}


def kind(family: str, what: str) -> Callable[[Planter], Planter]:
    """Register a planter under its name; ``what`` is the row in the published table."""

    def register(plant: Planter) -> Planter:
        name = plant.__name__.replace("_", "-")
        if name in _KINDS or family not in FAMILIES:
            raise ValueError(f"{name}: the kind exists already, or {family!r} is no family")
        _KINDS[name] = Kind(name, family, what, plant)
        return plant

    return register


def kinds() -> Mapping[str, Kind]:
    """Return all kinds by name, in the order of the families' modules."""
    for family in FAMILIES:
        import_module(f"aftershock.tests.judge_mutants.families.{family}")
    return _KINDS
