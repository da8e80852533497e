"""What a coordinator that was killed had answered, and what its successors know, by the run's own checks of commits.

The unit is the kill that was witnessed and met.
"""

from dataclasses import replace

import pyarrow.compute as pc

from aftershock.results.trials.kept import kept
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Judged

FAULT = "coordinator"


def survived(part: Part, rule: str) -> Judged:
    """Whether acknowledged commits are in the log (``lost``), and no group went back there (``backward``)."""
    proven, _ = part.run.trials()
    found = kept(part, [rule], "commit", of=len(proven or ()))
    return replace(found, why=f"{found.why}; {_under_way(part)} under way at the kills")


def _under_way(part: Part) -> int:
    """Commits that were sent before a kill and ended after it."""
    rows = part.outcomes(("sent_us", "done_us"), pc.field("op") == "commit")
    sent, done = rows["sent_us"].fill_null(0).to_numpy(), rows["done_us"].fill_null(0).to_numpy()
    return sum(int(((sent < each["start_us"]) & (done >= each["start_us"])).sum()) for each in part.phases(FAULT))
