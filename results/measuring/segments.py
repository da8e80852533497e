"""The time of a run cut into elementary segments, so that a record's windows are found once, and not once a window.

::

    steady   |---------|                      a segment lies wholly in a window or wholly outside it;
    fault              |--------|  |-----|    a moment lies in exactly one, or before the first and after the last,
    run      |---------------------------|    which is segment null and no window's
    segments |    0    |   1    |2 |  3  |

Rules: start inclusive, end exclusive. Whatever else may part time (a fault's hold on a client, the moment from which a
reader owes its records) cuts too. A record finds its segment by its slot of a second, in a small table.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from aftershock.results.phases import Interval, Windows

SLOT_US = 1_000_000


@dataclass(frozen=True)
class Segments:
    """The cut points of one run, in order: segment i lies between the i-th and the next."""

    cuts: tuple[int, ...]

    @property
    def spans(self) -> tuple[Interval, ...]:
        """The segments in order."""
        return tuple(pairwise(self.cuts))

    def of(self, intervals: Iterable[Interval]) -> list[int]:
        """The numbers of the segments that lie in any of some intervals, whose ends are cut points."""
        inside = (range(bisect_left(self.cuts, start), bisect_right(self.cuts, end) - 1) for start, end in intervals)
        return sorted({*chain.from_iterable(inside)})

    def slots(self) -> Iterator[tuple[int, int, int, int]]:
        """``slot segment start_us end_us``: every slot of a second with the segments that reach into it."""
        for number, (start, end) in enumerate(self.spans):
            for slot in range(start // SLOT_US, (end - 1) // SLOT_US + 1):
                yield slot, number, start, end


def segments_of(windows: Windows, moments: Sequence[int] = ()) -> Segments:
    """The segments between the edges of all windows, and between other moments that part time."""
    edges = {edge for spans in windows.values() for span in spans for edge in span}
    return Segments(tuple(sorted(edges | {*moments})))
