"""The busy half of KIP-1224: a closed loop over many groups, at the coordinator of one linger after the other.

Rules. The three runs are the Latin square of the idle half; a round is n, its figure the mean over the runs at the same
round. A coordinator's flush is a batch: where flushes are half of the commits or more, nothing was batched, a linger
has no work to do, and nothing is said of it. The KIP claims *no worse*, so better is no contradiction: one bound, and
the side that it is not claimed to be on has none.
"""

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from aftershock.results.trials import commits
from aftershock.results.trials.bouts import bouts
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.commits import ADAPTIVE, FIXED, NONE
from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Floats, mean, ratio
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import above, below, reported

BUSY, OPEN = ("busy-1", "busy-2", "busy-3"), "open"
WORSE, TAIL_WORSE = 1.1, 1.25
BATCHED = 2.0
"""Commits a flush: as few, or fewer, are no batches."""


def by_fixed(runs: Sequence[Part], figure: str, setting: str = ADAPTIVE, confidence: float = 0.9) -> Estimate:
    """A figure of bouts at one linger by the same at the fixed one: the geometric mean over runs, round by round."""
    ours, theirs = (_of_rounds(runs, figure, each) for each in (setting, FIXED))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Estimate(None, None, None, len(ours), "times", confidence)
    return ratio(ours, theirs, confidence)


def _of_rounds(runs: Sequence[Part], figure: str, setting: str) -> Floats:
    """The geometric mean over the runs, for as many rounds as each of them has."""
    of_runs = [map(attrgetter(figure), bouts(run).get(setting, ())) for run in runs]
    return np.array([math.exp(math.fsum(map(math.log, each)) / len(runs)) for each in zip(*of_runs, strict=False)])


def _square(parts: Parts) -> list[Part]:
    return [parts[name] for name in BUSY]


def _if_batched(parts: Parts, judged: Judged) -> Judged:
    """The same, unless a coordinator that was to batch did not."""
    runs = [commits.per_flush(run, transactional=False) for run in _square(parts)]
    fewest = min(each.get(setting, 0.0) for each in runs for setting in (ADAPTIVE, FIXED))
    if fewest > BATCHED:
        return judged
    return Judged(judged.ours, "inconclusive", f"no batching seen: {fewest:.2f} commits a flush, and 2 are too few")


def throughput(parts: Parts) -> Judged:
    """How many commits a second so many in flight come to."""
    return _if_batched(parts, above(by_fixed(_square(parts), "per_s"), 1 / WORSE, 1 / WORSE))


def p50(parts: Parts) -> Judged:
    """The median commit."""
    return _if_batched(parts, below(by_fixed(_square(parts), "p50_ms"), WORSE, WORSE))


def p99(parts: Parts) -> Judged:
    """The slow ones."""
    return _if_batched(parts, below(by_fixed(_square(parts), "p99_ms"), TAIL_WORSE, TAIL_WORSE))


def without(parts: Parts) -> Judged:
    """What lingering is for: throughput without any."""
    return reported(by_fixed(_square(parts), "per_s", NONE), "no linger by the fixed one, at the same load")


def capacity(parts: Parts) -> Judged:
    """What the host came to, with everything on it."""
    rounds = _of_rounds(_square(parts), "per_s", ADAPTIVE)
    found = mean(list(rounds), "commits/s") if len(rounds) else Estimate(None, None, None, 0, "commits/s")
    return reported(found, "adaptive; the clients, their proxies and three brokers on this host's cores")


def open_p50(parts: Parts) -> Judged:
    """The median commit below capacity, from the intended time."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p50_ms"))


def open_p99(parts: Parts) -> Judged:
    """The slow ones there."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p99_ms"))


def _of_capacity(parts: Parts, found: Estimate) -> Judged:
    """The rate is the plan's; what share of the capacity that was is known afterwards."""
    runs = [_of_rounds(of, "per_s", FIXED) for of in ([parts[OPEN]], _square(parts))]
    if not all(map(len, runs)):
        return reported(found, "what share of the capacity that is, is not known")
    at, most = (float(np.mean(each)) for each in runs)
    share = f"open loop at {at:.0f}/s, {at / most:.0%} of what the closed one came to at the fixed linger"
    return reported(found, f"{share}; one run: what brokers differ in is in it")


def batched(parts: Parts) -> Judged:
    """Commits a flush, adaptive by fixed."""
    return commits.batching(_square(parts), ADAPTIVE, FIXED, 2)


CLAIMS = (
    Claim(
        "busy-throughput",
        "busy: adaptive writes as many commits a second as the fixed linger",
        "no worse",
        "at most 10 % fewer",
        "claim",
        BUSY,
        throughput,
    ),
    Claim("busy-p50", "busy: and takes no longer, p50", "no worse", "below 1.1 times", "claim", BUSY, p50),
    Claim("busy-p99", "busy: and is not slower, p99", "no worse", "below 1.25 times", "claim", BUSY, p99),
    Claim("busy-batched", "busy: commits a flush, adaptive by fixed", "-", "", "report", BUSY, batched),
    Claim("busy-none", "busy: commits a second without linger, by fixed", "-", "", "report", BUSY, without),
    Claim("busy", "busy: commits a second, adaptive", "-", "", "report", BUSY, capacity),
    Claim(
        "open-p50", "below that, open loop: adaptive by fixed, p50", "no worse", "", "report", (*BUSY, OPEN), open_p50
    ),
    Claim("open-p99", "below that, open loop: and p99", "no worse", "", "report", (*BUSY, OPEN), open_p99),
)
