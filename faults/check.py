"""Is this plan one that can be run? Every problem at once, each as ``file:line:column: what, and what to do``.

A plan from YAML is first read part by part (``draft``), then what its parts say of each other is judged
(``crosscheck``, ``conflicts``, ``feed``), also when some part could not be read. A plan built in Python is judged by
the same code, with positions like ``plan.faults[2].topic``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.attached import attached
from aftershock.faults.changes import apply_changes
from aftershock.faults.conflicts import conflicts, grey_failures, surprises
from aftershock.faults.crosscheck import crosscheck
from aftershock.faults.document import Document, dump, load
from aftershock.faults.draft import Draft, draft_of, read_draft
from aftershock.faults.feed import objectives, toothless
from aftershock.faults.plan import Plan
from aftershock.faults.problem import Places, Problem, PythonPlaces, worded


@dataclass(frozen=True)
class Checked:
    """A plan that can be run. ``source``: the file's name; ``text``: the plan as it will run, in YAML.

    ``places``: where each part of it stands.
    """

    plan: Plan
    source: str
    text: str
    slo_positions: tuple[str, ...]
    warnings: tuple[str, ...]
    places: Places


def load_plan(source: Path | str, changes: Sequence[str] = ()) -> Checked:
    """Read, change (``key=value`` each, see ``changes``) and check a plan file (Path) or text (str).

    Raises PlanError with all of its problems, sorted by line.
    """
    document = load(source)
    apply_changes(document, changes)
    plan = _checked(document)
    text = _rewritten(document, changes) if changes else document.text
    slo_positions = tuple(document.position(("slo", index)) for index in range(len(plan.slo)))
    return Checked(plan, document.name, text, slo_positions, tuple(warnings(plan, document)), document)


def _checked(document: Document) -> Plan:
    draft, problems = read_draft(document.data)
    problems += _judged(draft)
    if problems:
        raise PlanError(worded(problems, document))
    try:
        return Plan.model_validate(document.data)
    except ValidationError as error:  # what no part of the draft stands for; a net, so that nobody meets a traceback
        details = "; ".join(f"{detail['loc']}: {detail['msg']}" for detail in error.errors())
        raise PlanError([f"{document.position(())}: the plan is not valid ({details}); mend it"]) from error


def check(plan: Plan, places: Places | None = None) -> None:
    """Check a plan that is an object already. Raises PlanError with all of its problems."""
    problems = _judged(draft_of(plan))
    if problems:
        raise PlanError(worded(problems, places or PythonPlaces()))


def warnings(plan: Plan, places: Places | None = None) -> list[str]:
    """What is allowed but may surprise, worded like a problem: faults too short to notice, SLOs that can't fail."""
    draft = draft_of(plan)
    return worded([*grey_failures(draft), *surprises(draft), *toothless(draft)], places or PythonPlaces())


def _rewritten(document: Document, changes: Sequence[str]) -> str:
    return f"# {document.name}, changed by: {' '.join(map(repr, changes))}\n{dump(document.data)}"


def _judged(draft: Draft) -> list[Problem]:
    return [*crosscheck(draft), *attached(draft), *conflicts(draft), *objectives(draft)]
