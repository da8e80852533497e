"""What a coordinator that was killed had answered, and what its successors know, by the run's own checks of commits.

The unit is the kill that was witnessed and met.
"""

import pyarrow.compute as pc

from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen

FAULT = "coordinator"


def survived(part: Part, rule: str) -> Judged:
    """Whether acknowledged commits are in the log (``lost``), and no group went back there (``backward``)."""
    proven, _ = part.run.trials()
    checks = [
        each for each in part.run.verdict.checks if each.id == f"integrity/{rule}" and each.subject.endswith(" commit")
    ]
    counts = [each.observed for each in checks if each.observed is not None]
    broken = sum(counts) if len(counts) == len(checks) > 0 else None
    why = f"of {sum(each.n for each in checks)} commits; {_under_way(part)} under way at the kills"
    return seen(None if broken is None else not broken, Estimate(broken, None, None, len(proven or ()), "commits"), why)


def _under_way(part: Part) -> int:
    """Commits that were sent before a kill and ended after it."""
    rows = part.outcomes(("sent_us", "done_us"), pc.field("op") == "commit")
    sent, done = rows["sent_us"].fill_null(0).to_numpy(), rows["done_us"].fill_null(0).to_numpy()
    return sum(int(((sent < each["start_us"]) & (done >= each["start_us"])).sum()) for each in part.phases(FAULT))
