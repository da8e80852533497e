"""Where in time to look at all: filters on the times of records, short enough for Parquet's statistics to use them.

What is asked of a few seconds needs no reading of the rest of a long run, whose rows are stored about in their order.
Rules: a filter is coarse and may keep too much; whoever uses it asks the rows as exactly as without it.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import starmap
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.phases import Interval, merged

HULLS_MAX = 4
_NEVER_US, _EVER_US = -(1 << 62), 1 << 62
Span = tuple[int | None, int | None]


def hulls(spans: Iterable[Span]) -> list[Interval]:
    """At most ``HULLS_MAX`` intervals around all ``spans`` (None: without an end), the nearest joined."""
    ended = [(_NEVER_US if since is None else since, _EVER_US if until is None else until) for since, until in spans]
    found = [*merged(ended)]
    while len(found) > HULLS_MAX:
        nearest = min(range(len(found) - 1), key=lambda at: found[at + 1][0] - found[at][1])
        found[nearest : nearest + 2] = [(found[nearest][0], found[nearest + 1][1])]
    return found


def due_in(spans: Iterable[Span]) -> Column:
    """Whether a record may have been intended within some of ``spans``, of which there is one at least."""
    return _in_any(spans, lambda since, until: F.col("intended_us").between(since, until))


def open_in(spans: Iterable[Span]) -> Column:
    """Whether a record may have been under way within some of ``spans``, or done by the end of one of them."""
    intended, done = F.col("intended_us"), F.col("done_us")
    return _in_any(
        spans,
        lambda since, until: (
            done.isNull() | (done > since) & (intended.isNull() | (intended < until) | (done <= until))
        ),
    )


def _in_any(spans: Iterable[Span], within: Callable[[int, int], Column]) -> Column:
    return reduce(or_, starmap(within, hulls(spans)))
