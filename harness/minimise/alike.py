"""Whether a run failed the same way: the same checks FAIL. Pure."""

from collections.abc import Sequence
from typing import Literal

from aftershock.results.check import Check, Status
from aftershock.results.shown import sentence
from aftershock.results.verdict import Verdict

Word = Literal["fails", "passes", "undecided", "broke"]


def alike(verdict: Verdict, checks: Sequence[str]) -> tuple[Word, str]:
    """The word, and the reason: ``fails`` where all of these checks do, each for whichever arm.

    ``undecided``: one could not be judged, so that the run says nothing.
    """
    judged = {name: [check for check in verdict.gating if check.id == name] for name in checks}
    statuses = {name: _status(found) for name, found in judged.items()}
    if all(status is Status.FAIL for status in statuses.values()):
        return "fails", next(check.why for check in judged[checks[0]] if check.status is Status.FAIL)
    open_ = [check for found in judged.values() for check in found if check.status is Status.INCONCLUSIVE]
    # a check that passed decides: what is open beside it can't make the run fail the same way
    if open_ and Status.PASS not in statuses.values():
        return "undecided", f"{open_[0].id}: {open_[0].why}"
    return "passes", sentence(verdict)


def _status(found: Sequence[Check]) -> Status:
    """FAIL if any arm's does; else what is left open, else PASS, also where nobody is judged any more."""
    statuses = {check.status for check in found}
    return next((each for each in (Status.FAIL, Status.INCONCLUSIVE) if each in statuses), Status.PASS)
