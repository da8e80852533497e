"""Does a failure come back? Wald's sequential probability ratio test (1945), cut off after ``RUNS_MAX`` repetitions.

Two hypotheses: a run of the plan fails the same way in ``P_FLAKE`` of all runs or fewer, or in ``P_STEADY`` or more.
Each run that fails adds log 4 to the evidence, each that doesn't takes it away, and the test is over when it leaves
+-log 9 (nominal error rates of 10 %): when one sort leads by two. So what always fails is known after two runs.

The exact error rates (`chance`; what is open when it is cut off counts as a flake): what fails in 20 % of its runs is
called steady in 5.8 % of cases, what fails in 80 % a flake in 6.9 %. One that fails in half of its runs is anybody's:
steady in 47 %.
"""

import math
from dataclasses import dataclass
from typing import Literal

P_FLAKE, P_STEADY = 0.2, 0.8
ERROR_RATE = 0.1  # of either sort, nominal: Wald's bounds; the exact ones are lower
RUNS_MAX = 8
MISS_RATE = 0.05
_Z = 1.959964  # of a 95 % interval

Word = Literal["steady", "flake"]


@dataclass(frozen=True)
class Repeats:
    """How often a plan was run, and how often it failed the same way."""

    failed: int = 0
    n: int = 0

    def after(self, *, failed: bool) -> "Repeats":
        """With one more run."""
        return Repeats(self.failed + failed, self.n + 1)

    @property
    def word(self) -> Word | None:
        """What they show; None while another run is needed. What is still open at the last run is a flake."""
        passed = self.n - self.failed
        weight = self.failed * math.log(P_STEADY / P_FLAKE) + passed * math.log((1 - P_STEADY) / (1 - P_FLAKE))
        bound = math.log((1 - ERROR_RATE) / ERROR_RATE)
        if weight >= bound:
            return "steady"
        return "flake" if weight <= -bound or self.n >= RUNS_MAX else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate (Wilson 1927)."""
        if not self.n:
            return 0.0, 1.0
        rate, z2 = self.failed / self.n, _Z**2
        middle = (rate + z2 / (2 * self.n)) / (1 + z2 / self.n)
        half = _Z / (1 + z2 / self.n) * math.sqrt(rate * (1 - rate) / self.n + z2 / (4 * self.n**2))
        return max(0.0, middle - half), min(1.0, middle + half)

    @property
    def tries(self) -> int:
        """How often a candidate is run till it fails, so that one which fails at this rate is missed in 5 % at most."""
        passed = self.n - self.failed
        return 1 if passed == 0 else math.ceil(math.log(MISS_RATE) / math.log(passed / self.n))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.failed} of {self.n} (95 % interval {low:.2f} to {high:.2f})"


def chance(rate: float) -> dict[Word, float]:
    """How likely the test ends in each word when a run fails with this probability; exact, by all its paths."""
    ends: dict[Word, float] = {"steady": 0.0, "flake": 0.0}
    open_: dict[Repeats, float] = {Repeats(): 1.0}
    while open_:
        further: dict[Repeats, float] = {}
        for so_far, share in open_.items():
            for failed, odds in ((True, rate), (False, 1 - rate)):
                now = so_far.after(failed=failed)
                if word := now.word:
                    ends[word] += share * odds
                else:
                    further[now] = further.get(now, 0.0) + share * odds
        open_ = further
    return ends
