"""Warm-up rule, by which warm-up ends when the latency of every client has stopped drifting, never after a fixed time.

The drift of a client's latency is computed from the latency medians of the last WINDOW_S seconds, as the Theil-Sen
slope (the median of the slopes of all pairs of seconds, robust against a single bad second) times the seconds. Because
the Theil-Sen slope misses a step near the end, the drift is at least half the distance between the median of the last
LAST_S seconds and the median of all WINDOW_S seconds. A client's latency has stopped drifting when its drift, up or
down, is at most 15 % of the median latency, or 1 ms if that is more.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, nan
from statistics import median

from aftershock.workloads.load.schedule import US_PER_S

WINDOW_S = 8
SECONDS_MIN = WINDOW_S // 2 + 1
"""Warm-up can end when records of a client have completed in at least this many of the last WINDOW_S seconds."""

LAST_S = 2
DRIFT_SHARE = 0.15
DRIFT_FLOOR_US = 1_000.0


class SecondMedians:
    """A client's latencies of the last WINDOW_S seconds, grouped by the second in which they were reported.

    ``minutes`` has the start in us and the p99 latency of each full minute, for the live display.
    """

    def __init__(self) -> None:
        self.minutes: list[tuple[int, float]] = []
        self._minute, self._of_minute = -1, array("q")
        self._by_second: dict[int, list[int]] = {}
        self._first = self._now = -1

    def add(self, t_us: int, latencies_us: Sequence[int]) -> None:
        self._now = t_us // US_PER_S
        if self._now // 60 != self._minute:
            if self._of_minute:
                ordered = sorted(self._of_minute)
                p99_us = ordered[-(-len(ordered) * 99 // 100) - 1]
                self.minutes.append((self._minute * 60 * US_PER_S, p99_us))
            self._minute, self._of_minute = self._now // 60, array("q")
        self._of_minute.extend(latencies_us)
        if latencies_us and self._first < 0:
            self._first = self._now
        self._by_second.setdefault(self._now, []).extend(latencies_us)
        while (oldest := next(iter(self._by_second))) < self._now - WINDOW_S:
            del self._by_second[oldest]

    def medians_us(self) -> list[float]:
        """Return the median latency of the last WINDOW_S full seconds; NaN for a second without latency.

        Seconds before the first latency are left out.
        """
        if self._first < 0:
            return []
        series = (self._by_second.get(second) for second in range(max(self._first, self._now - WINDOW_S), self._now))
        return [median(values) if values else nan for values in series]


@dataclass(frozen=True)
class WarmupState:
    """Result of the warm-up rule, with a sentence about the client with the most drift, and all ``unsettled`` ones.

    Of these, the ``silent`` ones have completed nothing.
    """

    ok: bool
    why: str
    unsettled: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def judge_warmup(medians_us: Mapping[str, Sequence[float]]) -> WarmupState:
    """Apply the warm-up rule to the clients' latency medians, one for each second, oldest first, NaN if unknown."""
    if not medians_us:
        return WarmupState(ok=False, why="no client has reported anything yet")
    drifts = {name: _drift(list(series)) for name, series in medians_us.items()}
    furthest = max(drifts, key=lambda name: drifts[name][0])
    unsettled = tuple(sorted(name for name, (excess, _) in drifts.items() if excess > 1))
    silent = tuple(sorted(name for name, series in medians_us.items() if not series))
    return WarmupState(not unsettled, f"{furthest}: {drifts[furthest][1]}", unsettled, silent)


def _drift(series: list[float]) -> tuple[float, str]:
    seconds = [(second, value) for second, value in enumerate(series[-WINDOW_S:]) if not isnan(value)]
    if not series:
        return float("inf"), "no record has completed"
    if len(series) < WINDOW_S:
        return float("inf"), f"only {len(series)} of the {WINDOW_S} s of load that the warm-up rule needs have passed"
    if len(seconds) < SECONDS_MIN:
        return float("inf"), f"records completed in only {len(seconds)} of the last {WINDOW_S} s"
    window_median_us = median(value for _, value in seconds)
    slope = median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(seconds, 2))
    step_us = abs(median(value for _, value in seconds[-LAST_S:]) - window_median_us)
    drift_us = max(abs(slope) * (WINDOW_S - 1), step_us / 2)
    allowed_us = max(DRIFT_SHARE * window_median_us, DRIFT_FLOOR_US)
    return drift_us / allowed_us, (
        f"the latency drifted by {drift_us / 1000:.1f} ms in {WINDOW_S} s "
        f"around a median of {window_median_us / 1000:.1f} ms (allowed: {allowed_us / 1000:.1f} ms)"
    )
