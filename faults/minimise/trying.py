"""How a search asks: it yields a candidate, is sent whether that fails the same way, and so on till it returns.

Rules. What `plan check` or the compiler would refuse is not asked about: it doesn't fail, and costs nothing. Each
change of a reduction is asked about once, also when another has been accepted in between: what had no chance before
seldom has one afterwards, and a run is dear.
"""

from collections.abc import Generator
from typing import TypeVar

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.check import check
from aftershock.faults.compile import compile_plan
from aftershock.faults.minimise.candidate import Candidate, Document, Reduction
from aftershock.faults.plan import Plan
from aftershock.faults.timeline import Timeline

T = TypeVar("T")
Search = Generator[Candidate, bool, T]


def refused(document: Document, seed: int) -> str:
    """Why such a plan can't be run with this seed; nothing where it can."""
    try:
        compiled(document, seed)
    except PlanError as error:
        return error.problems[0]
    return ""


def compiled(document: Document, seed: int) -> Timeline:
    """What it comes to with this seed. PlanError where it can't be run."""
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise PlanError([f"plan: {detail['loc']}: {detail['msg']}" for detail in error.errors()]) from error
    check(plan)
    return compile_plan(plan, seed, str(document["name"]), [""] * len(plan.slo))


def fails(candidate: Candidate, seed: int) -> Search[bool]:
    """Whether it can be run and then fails the same way."""
    return not refused(candidate.document, seed) and (yield candidate)


def reduced(document: Document, reduction: Reduction, seed: int) -> Search[Document]:
    """The document with every change of the reduction that keeps it failing."""
    asked: set[str] = set()
    while True:
        for candidate in reduction(document):
            if candidate.said in asked:
                continue
            asked.add(candidate.said)
            if (yield from fails(candidate, seed)):
                document = candidate.document
                break
        else:
            return document
