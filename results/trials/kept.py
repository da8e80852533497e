"""Whether the clients' promises were kept: what a trial takes from the run's own integrity checks."""

from collections.abc import Collection

from aftershock.results.check import Status
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen


def kept(part: Part, rules: Collection[str]) -> Judged:
    """One that failed contradicts; one that is open, or that there is none, leaves it open."""
    checks = [each for each in part.run.verdict.checks if each.id.removeprefix("integrity/") in rules]
    failed = [each for each in checks if each.status is Status.FAIL]
    decided = bool(checks) and all(each.status is Status.PASS for each in checks)
    why = failed[0].why if failed else f"{len(checks)} checks, of {sum(each.n for each in checks)} observations"
    ours = Estimate(float(len(failed)), None, None, len(checks), "checks failed")
    return seen(False if failed else decided or None, ours, why)
