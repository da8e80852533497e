"""What is read off a run's silver: a histogram for each metric, client and window, and what went between racks. Pure.

Silver (``latency.py: silver``) is how often each latency was seen in each elementary segment; a window is the sum of
its segments. It is as long as there are different latencies, so it is read here and not by Spark: a second of NumPy
where four more jobs on it took a minute.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from aftershock.results.facts import RackFlow
from aftershock.results.measuring.columns import Longs, Mask, longs, numbered
from aftershock.results.measuring.dims import Scene
from aftershock.results.measuring.histogram import Histogram, histogram
from aftershock.results.phases import RUN, Interval

SPECTRA = (RUN, "steady", "fault", "recovery")
"""The windows of which a whole spectrum is told, and what went between racks."""
FAULTS_DRAWN_MAX = 4  # of more, a spectrum each would be most of an analysis
_CENSORED = np.iinfo(np.int64).max

Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Group:
    """The rows of one metric and client by rising latency, the censored last: the first ``valued`` have one."""

    metric: str
    client: str
    valued: int
    segment: Longs
    latency_us: Longs
    n: Longs
    bytes: Longs
    racks: Longs

    def histogram(self, chosen: Mask) -> Histogram:
        """Of the rows that are chosen."""
        return histogram(self.latency_us[: self.valued][chosen[: self.valued]], self.n[chosen], self.bytes[chosen])


@dataclass(frozen=True, eq=False)
class Silver:
    """A run's silver by groups, and the pairs of racks (client's, broker's) that its rows name by number."""

    groups: tuple[Group, ...]
    racks: tuple[tuple[str | None, str | None], ...]

    def by_window(self, scene: Scene) -> dict[Key, Histogram]:
        """The histogram of each metric, client and window that has any samples."""
        return {
            (group.metric, group.client, window): group.histogram(inside)
            for window, spans in scene.windows.items()
            for group, inside in self._inside(scene, spans)
        }

    def rack_flows(self, scene: Scene) -> Iterator[RackFlow]:
        """What went between racks in each of ``SPECTRA``."""
        for window in SPECTRA:
            for group, inside in self._inside(scene, scene.windows.get(window, ())):
                if group.metric.endswith(".latency"):
                    yield from self._between_racks(group, window, inside)

    def _between_racks(self, group: Group, window: str, inside: Mask) -> Iterator[RackFlow]:
        for number in np.unique(group.racks[inside]).tolist():
            chosen = inside & (group.racks == number)
            told, size = group.histogram(chosen), int(group.bytes[chosen].sum())
            op, (near, far) = group.metric.split(".")[0], self.racks[number]
            yield RackFlow(op, group.client, near, far, window, told.n, size, told.at(0.5), told.at(0.99))

    def _inside(self, scene: Scene, spans: tuple[Interval, ...]) -> Iterator[tuple[Group, Mask]]:
        """The groups that have rows in some intervals, and which; what lies in no segment (-1) is in none."""
        within = np.zeros(len(scene.segments.spans) + 1, dtype=np.bool_)
        within[scene.segments.of(spans)] = True
        for group in self.groups:
            inside = within[group.segment]
            if inside.any():
                yield group, inside


def drawn(key: Key, scene: Scene) -> bool:
    """Whether its whole spectrum is told: that of the phases, and of each fault where there are few."""
    window = key[2]
    of_few = window.startswith("fault/") and len(scene.evidence.steps) <= FAULTS_DRAWN_MAX
    return key[0].endswith(".latency") and (window in SPECTRA or of_few)


def silver_of(rows: pa.Table) -> Silver:
    """Of the rows of one run."""
    (metric, metrics), (client, clients), (near, nears), (far, fars) = (
        numbered(rows[name]) for name in ("metric", "client", "client_rack", "broker_rack")
    )
    latency_us = longs(rows["latency_us"], _CENSORED)
    columns = (longs(rows["segment"], -1), latency_us, longs(rows["n"]), longs(rows["bytes"]), near * len(fars) + far)
    whose = (metric * len(clients) + client).astype(np.min_scalar_type(len(metrics) * len(clients)))  # short: fast
    order = np.argsort(whose, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(whose[order])) + 1)
    groups = []
    for part in filter(len, parts):
        rising = part[np.argsort(latency_us[part])]
        valued = int(np.searchsorted(latency_us[rising], _CENSORED))
        told = metrics[metric[rising[0]]], clients[client[rising[0]]]
        groups.append(Group(*told, valued, *(column[rising] for column in columns)))
    return Silver(tuple(groups), tuple(product(nears, fars)))
