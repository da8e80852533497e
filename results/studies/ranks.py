"""Ranks of the clients in a row of a card, from their paired differences.

Units of two clients are paired if they suffered the same fault at the same time: in the same repetition, the copies of
the same number. What the fault and the cluster did then is in both, and drops out of the difference. Copies of a client
share nothing but the fault and the host, so under the hypothesis that two clients are the same, the differences of
copies within a repetition are exchangeable and independent: six of one sign have a probability of 1 in 32, whether they
come from six repetitions, or from two with three copies each. The interval of the median difference is that of order
statistics, of six differences from the smallest to the largest.

A client is slower than another one if the whole interval is above 0, the median difference counts (``counts_s``), and
which of both it is explains at least half of the variance of their figures. Its rank is 1 + the number of clients than
which it is slower, so clients that can't be told apart share a rank.

The clients of a row must also explain at least half of the variance of all its figures (``explained``), or the row
shows no difference: otherwise what a reader sees there is the cluster.

A value that is a lower bound (the heal came first) takes part with the bound. So two clients that both waited for the
heal are equal, and the difference to one that did not is at least what is shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
from scipy.special import bdtr

from aftershock.results.studies.recount import Unit, Value, Values


@dataclass(frozen=True)
class Paired:
    """By how much later a client is than another one, in seconds: median of the paired units, and its interval.

    If ``at_least``, one of the differences is a lower bound. ``n`` is the number of pairs.
    """

    median_s: float
    low_s: float
    high_s: float
    n: int
    at_least: bool = False


@dataclass(frozen=True)
class Standing:
    """Rank of a client in a row, and its paired difference to the row's ``best`` client, None for that one itself."""

    rank: int
    best: str
    behind: Paired | None


@dataclass(frozen=True)
class Ranking:
    """Standings of the clients of a row; ``explained`` is their share of the variance, None with fewer than two.

    ``told_apart`` is False if the row shows no difference between its clients.
    """

    standings: Mapping[str, Standing]
    explained: float | None
    told_apart: bool


def rank(values: Mapping[str, Values], units_min: int, explained_min: float, counts_s: float) -> Ranking:
    """Rank clients by their units, which are values of one figure; smaller is better."""
    ranked = {client: units for client, units in values.items() if units}
    if len(ranked) < 2:  # noqa: PLR2004 -- nothing to compare
        return Ranking({}, None, told_apart=False)
    share = explained(ranked)
    best = min(ranked, key=lambda client: (_median(ranked[client]), _mean(ranked[client])))
    behind = {client: paired(units, ranked[best]) for client, units in ranked.items() if client != best}
    slower = {
        (client, other): min(share, explained({client: units, other: theirs})) >= explained_min
        and _is_slower(paired(units, theirs), units_min, counts_s)
        for client, units in ranked.items()
        for other, theirs in ranked.items()
        if other != client
    }
    standings = {
        client: Standing(
            1 + sum(slower[client, other] for other in ranked if other != client), best, behind.get(client)
        )
        for client in ranked
    }
    return Ranking(standings, share, told_apart=any(slower.values()))


def explained(values: Mapping[str, Values]) -> float:
    """Return the share of the variance of all units that the clients explain (eta squared), 0 without any variance.

    Only units that all clients have count, so that no client stands for more repetitions than another one.
    """
    units = sorted(set.intersection(*({*own} for own in values.values())))
    if not units:
        return 0.0
    table = np.array([[own[unit].s for unit in units] for own in values.values()])
    total = float(((table - table.mean()) ** 2).sum())
    between = float(len(units) * ((table.mean(axis=1) - table.mean()) ** 2).sum())
    return between / total if total else 0.0


def paired(ours: Values, theirs: Values) -> Paired | None:
    """Return by how much later ``ours`` are than ``theirs`` in the units that both have; None without any."""
    units = sorted(ours.keys() & theirs.keys())
    if not units:
        return None
    median_s, low_s, high_s = map(float, median_and_interval([ours[unit].s - theirs[unit].s for unit in units]))
    return Paired(median_s, low_s, high_s, len(units), any(_is_lower_bound(ours[u], theirs[u]) for u in units))


def median_and_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, and the narrowest interval of order statistics that covers it with 95 %."""
    ordered = sorted(values)
    count = len(ordered)
    lower, upper = ordered[(count - 1) // 2], ordered[count // 2]
    middle = lower if lower == upper else (lower + upper) / 2  # infinities of two signs have no middle
    rank = 1  # of the interval's ends, counted from the smallest and from the largest value
    while 2 * bdtr(rank, count, 0.5) <= 0.05:  # noqa: PLR2004 -- 95 %
        rank += 1
    return 0.0 if isnan(middle) else middle, ordered[rank - 1], ordered[count - rank]


def _is_lower_bound(ours: Value, theirs: Value) -> bool:
    return ours.is_bound and ours.s > theirs.s


def _is_slower(difference: Paired | None, units_min: int, counts_s: float) -> bool:
    if difference is None or difference.n < units_min:
        return False
    return difference.low_s > 0 and difference.median_s >= counts_s


def _median(units: Values) -> float:
    return float(np.median([value.s for value in units.values()]))


def _mean(units: Mapping[Unit, Value]) -> float:
    return float(np.mean([value.s for value in units.values()]))
