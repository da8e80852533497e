"""One-second medians of a stream of latencies, as the warm-up rule wants them.

When a warm-up is over: when the latency has stopped drifting, never after a fixed time.

The rule. Take the last WINDOW_S one-second medians of each client. Their drift is the Theil-Sen slope (the median of
the slopes of all pairs, which a single bad second can't bend) times the length of the window. Because a slope that
robust is blind to a step near the end, the distance of the last LAST_S seconds' median from the window's counts too,
by half. The client has settled when the larger of the two, up or down, is at most 15 % of the window's median, or 1 ms
if that is more. All clients must have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, nan
from statistics import median

from aftershock.workloads.load.schedule import US_PER_S


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


WINDOW_S = 8
SECONDS_MIN = WINDOW_S // 2 + 1
"""How many seconds of the window must have a median: a client may be slow by plan, but not silent."""

LAST_S = 2
DRIFT_SHARE = 0.15
DRIFT_FLOOR_US = 1_000.0


@dataclass(frozen=True)
class Settled:
    """``ok``, and one sentence that says why, naming the client that is furthest from it."""

    ok: bool
    why: str


def settled(medians_us: Mapping[str, Sequence[float]]) -> Settled:
    """Judge one-second latency medians, oldest first, by client; NaN for a second in which nothing completed."""
    if not medians_us:
        return Settled(ok=False, why="no client has said anything yet")
    judged = {name: _judge(list(series)) for name, series in medians_us.items()}
    worst = max(judged, key=lambda name: judged[name][0])
    excess, why = judged[worst]
    return Settled(ok=excess <= 1, why=f"{worst}: {why}")


def _judge(series: list[float]) -> tuple[float, str]:
    """The drift as a multiple of what is allowed, and the sentence."""
    seconds = [(second, value) for second, value in enumerate(series[-WINDOW_S:]) if not isnan(value)]
    if len(series) < WINDOW_S:
        return float("inf"), f"only {len(series)} of the {WINDOW_S} s the rule looks at have passed"
    if len(seconds) < SECONDS_MIN:
        return float("inf"), f"records completed in only {len(seconds)} of the last {WINDOW_S} s"
    middle = median(value for _, value in seconds)
    step_us = abs(median(value for _, value in seconds[-LAST_S:]) - middle)
    drift_us = max(abs(_slope(seconds)) * (WINDOW_S - 1), step_us / 2)
    allowed_us = max(DRIFT_SHARE * middle, DRIFT_FLOOR_US)
    return drift_us / allowed_us, (
        f"the latency drifted by {drift_us / 1000:.1f} ms in {WINDOW_S} s around a median of {middle / 1000:.1f} ms, "
        f"{allowed_us / 1000:.1f} ms is allowed"
    )


def _slope(points: Sequence[tuple[int, float]]) -> float:
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))
