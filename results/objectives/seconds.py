"""Lag and freshness: known at the end of each second, so a window or a slot of it has as many values as seconds."""

import math
from collections.abc import Sequence
from fractions import Fraction

from aftershock.results.facts import MAX, Distribution, Lag
from aftershock.results.phases import Interval
from aftershock.results.slo import Selection


def of_seconds(told: Sequence[Lag], spans: Sequence[Interval], selection: Selection) -> Distribution:
    """The values of the seconds that ended within the spans: records that waited, or microseconds of the oldest."""
    inside = [one for one in told if any(start < one.at_us <= end for start, end in spans)]
    values = sorted(one.records if selection.about.unit == "records" else one.oldest_us for one in inside)
    if not values:
        return Distribution()
    q = selection.aggregate
    at = {MAX: values[-1]} | ({q: _nearest_rank(values, q)} if isinstance(q, float) else {})
    return Distribution(len(values), 0, values[-1], at, sum(values) / len(values))


def _nearest_rank(values: Sequence[int], q: float) -> int:
    """An observed value: the one at rank ceil(q * n), in whole numbers."""
    return values[max(math.ceil(Fraction(repr(q)) * len(values)), 1) - 1]
