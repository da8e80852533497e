"""Driving a run once more because the host, not the cluster, left it undecided.

Rules: never after a FAIL, and never where a count of records is open: what was lost is not to be rolled for again. What
is repeated is the *run*, from its evidence (plan, seed, expectations), alone on the host; the test's Python is not.
"""

import shutil
from pathlib import Path

from rich.console import Console

from aftershock.harness.run import prepare
from aftershock.harness.suite import leased_run
from aftershock.harness.suite.chaos import EXPECTATIONS, beginning
from aftershock.harness.suite.session import Entry, Suite
from aftershock.results.check import Check, Status
from aftershock.results.files import read_json
from aftershock.results.verdict import Verdict

_STARVED = ("harness/host", "harness/generator", "harness/generator-commit")
_FOLLOWS = ("harness/warmup",)  # latency does not settle on a host that is starved


def starved(verdict: Verdict) -> bool:
    """Whether nothing but a starved host, or the load generator that it starved, left a run undecided."""
    undecided = [check for check in verdict.gating if check.status is not Status.PASS]
    return any(map(_starvation, undecided)) and all(map(_by_the_host, undecided))


def _starvation(check: Check) -> bool:
    """Seen, and not just unseen: a host watched for too short a time would be again."""
    return check.id in _STARVED and check.n >= check.minimum


def _by_the_host(check: Check) -> bool:
    """Left open by the host's trouble and nothing else; a broken count of records never is."""
    measured = check.kind in ("slo", "compare") and check.why.startswith(_STARVED)
    return check.status is Status.INCONCLUSIVE and (_starvation(check) or check.id in _FOLLOWS or measured)


def repeat(home: Path, entry: Entry, suite: Suite) -> Path:
    """Drive the run in ``home`` again, with the host to itself; gives the new run's directory.

    Raises what driving a run raises.
    """
    facts = read_json(home / "run.json")
    job = prepare(home / "plan.yaml", (), facts["seed"], _silent, rehearse=facts["rehearse"], allow_exec=True)
    begin = beginning(suite, entry.test, job, f"--aftershock-seed={facts['seed']}", repeats=entry.run_id)
    quiet = Console(quiet=True)  # no test is there to be shown it with
    again = leased_run.drive(leased_run.Errand(job, "latency", suite, entry.test, begin, quiet))
    again.tell(plan_file=facts.get("plan_file"))
    if (home / EXPECTATIONS).exists():
        shutil.copy(home / EXPECTATIONS, again.path)
        again.seal()
    return again.path


def _silent(_: str) -> None:
    """What the first run said of the plan need not be said again."""
