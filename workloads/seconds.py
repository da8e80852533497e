"""One-second medians of a stream of latencies, as the warm-up rule wants them."""

from collections.abc import Sequence
from math import nan
from statistics import median

from aftershock.workloads.load import US_PER_S


class Seconds:
    """Latencies gathered by the second in which they were told of."""

    def __init__(self) -> None:
        self._gathered: dict[int, list[int]] = {}
        self._now = -1

    def add(self, t_us: int, latencies_us: Sequence[int]) -> None:
        """What completed lately, told at ``t_us``; nothing completed is news as well."""
        self._now = t_us // US_PER_S
        self._gathered.setdefault(self._now, []).extend(latencies_us)

    def medians_us(self) -> list[float]:
        """The median of each second that is over, from the first in which anything completed; NaN where nothing did."""
        begun = [second for second, values in self._gathered.items() if values]
        if not begun:
            return []
        return [self._median(second) for second in range(min(begun), self._now)]

    def _median(self, second: int) -> float:
        values = self._gathered.get(second)
        return median(values) if values else nan
