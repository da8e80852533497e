"""Sequential test of whether a failure is reproducible, Wald's probability ratio test (1945) with ``RUNS_MAX`` runs.

The two hypotheses are that a plan fails the same way in 20 % of all runs or fewer (a flake), or in 80 % or more
(steady). Each failing run adds log 4 to the evidence for a steady failure, each passing run subtracts log 4. The test
ends when the evidence leaves +-log 9 (nominal error rates of 10 %), which is when failing or passing runs lead by two.
Without a decision after ``RUNS_MAX`` runs, the failure counts as a flake. The test calls a plan that fails in 20 % of
its runs steady in 5.8 % of cases, a plan that fails in 80 % a flake in 6.9 %, and a plan that fails in 50 % steady in
47 %.
"""

import math
from dataclasses import dataclass
from typing import Literal

P_FLAKE, P_STEADY = 0.2, 0.8
ERROR_RATE = 0.1  # nominal, of both types (Wald's bounds); the exact rates are lower
RUNS_MAX = 8
MISS_RATE = 0.05
_Z = 1.959964  # of a 95 % interval

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
        """95 % confidence interval of a plan's failure rate (Wilson 1927)."""
        if not self.n:
            return 0.0, 1.0
        rate, z2 = self.failed / self.n, _Z**2
        centre = (rate + z2 / (2 * self.n)) / (1 + z2 / self.n)
        half = _Z / (1 + z2 / self.n) * math.sqrt(rate * (1 - rate) / self.n + z2 / (4 * self.n**2))
        return max(0.0, centre - half), min(1.0, centre + half)

    @property
    def tries(self) -> int:
        """Number of runs that a candidate with this failure rate passes without a failure in 5 % of cases at most."""
        passed = self.n - self.failed
        return 1 if passed == 0 else math.ceil(math.log(MISS_RATE) / math.log(passed / self.n))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.failed} of {self.n} (95 % interval {low:.2f} to {high:.2f})"
