"""Sequential test of whether a failure is reproducible, Wald's probability ratio test (1945) with ``RUNS_MAX`` runs.

The two hypotheses are that a plan fails the same way in 20 % of all runs or fewer (a flake), or in 80 % or more
(steady). Each failing run adds log 4 to the evidence for a steady failure, each passing run subtracts log 4. The test
ends when the evidence leaves +-log 9 (nominal error rates of 10 %), which is when failing or passing runs lead by two.
Without a decision after ``RUNS_MAX`` runs, the failure counts as a flake. The test calls a plan that fails in 20 % of
its runs steady in 5.8 % of cases, a plan that fails in 80 % a flake in 6.9 %, and a plan that fails in 50 % steady in
47 %.

**Interval of the failure rate.** The test ends when outcomes agree, so the share of failed runs is more extreme than
the failure rate, and an interval for a fixed number of runs does not keep its level: Wilson's 95 % interval covers the
rate in 87 % of cases at a rate of 0.3 or 0.7. The interval here is exact for the test as it stops (Jennison and
Turnbull 1983): results are ordered by stage (Armitage 1957; Siegmund 1978), so an early end for *steady* is the
strongest evidence for a high rate, then a later one; at the same number of runs more failures are more. The ends of the
interval are the rates at which results as extreme as the observed one have a probability of 2.5 % on either side, as
Clopper and Pearson (1934) have it. The order does not depend on stages that were not reached, so the interval also
holds if a time budget ends the repetition before the test does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

P_FLAKE, P_STEADY = 0.2, 0.8
ERROR_RATE = 0.1  # nominal, of both types (Wald's bounds); the exact rates are lower
RUNS_MAX = 8
MISS_RATE = 0.05
CONFIDENCE = 0.95
_HALVINGS = 40  # of the range of a failure rate, for an end of the interval

Word = Literal["steady", "flake"]


@dataclass(frozen=True)
class Repeats:
    """Results of ``n`` runs of a plan, of which ``failed`` runs failed the same way."""

    failed: int = 0
    n: int = 0

    def after(self, *, failed: bool) -> "Repeats":
        return Repeats(self.failed + failed, self.n + 1)

    @property
    def word(self) -> Word | None:
        """Result of the sequential test; None while another run is needed."""
        passed = self.n - self.failed
        evidence = self.failed * math.log(P_STEADY / P_FLAKE) + passed * math.log((1 - P_STEADY) / (1 - P_FLAKE))
        bound = math.log((1 - ERROR_RATE) / ERROR_RATE)
        if evidence >= bound:
            return "steady"
        return "flake" if evidence <= -bound or self.n >= RUNS_MAX else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of a plan's failure rate, exact for runs that end with the test or before it."""
        tail = (1 - CONFIDENCE) / 2
        low = _rate_at(lambda rate: _as_many_failures(self, rate) > tail)
        # failures and passes mirror each other
        high = 1 - _rate_at(lambda rate: _as_many_failures(Repeats(self.n - self.failed, self.n), rate) > tail)
        return low, high

    @property
    def tries(self) -> int:
        """Number of runs that a candidate with this failure rate passes without a failure in 5 % of cases at most."""
        passed = self.n - self.failed
        return 1 if passed == 0 else math.ceil(math.log(MISS_RATE) / math.log(passed / self.n))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.failed} of {self.n} (95 % interval {low:.2f} to {high:.2f})"


def _as_many_failures(observed: Repeats, rate: float) -> float:
    """Return the probability of results that speak as much for a high failure rate as ``observed``, at ``rate``."""
    chances, steady = {Repeats(): 1.0}, 0.0  # of counts with which the test goes on; of its end as steady before
    for _ in range(observed.n):
        following: dict[Repeats, float] = {}
        for counts, chance in chances.items():
            if counts.word is None:
                for failed, share in ((True, rate), (False, 1 - rate)):
                    after = counts.after(failed=failed)
                    following[after] = following.get(after, 0.0) + chance * share
            elif counts.word == "steady":
                steady += chance
        chances = following
    return steady + sum(chance for counts, chance in chances.items() if counts.failed >= observed.failed)


def _rate_at(exceeds: Callable[[float], bool]) -> float:
    """Return the lowest rate for which a growing probability exceeds its limit, by bisection."""
    if exceeds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return low
