"""What the SLOs of a run want measured besides what always is: quantiles, cuts through a selection, recoveries."""

from dataclasses import dataclass
from typing import Literal

Each = Literal["rack", "partition", "broker", "producer", "epoch", "block"]


@dataclass(frozen=True, order=True)
class Cut:
    """A selection that the standing measurements lack: a metric in a window, told apart by subject, by time, or both.

    ``metric``: ``produce.latency`` and its like (``.success`` is the distribution of latency), ``.gap``,
    ``consume.lag``, ``consume.freshness``. ``every_us``: slots of this length from the start of each of the window's
    intervals; a last one that is cut short is left out. A rack is the broker's.
    """

    metric: str
    window: str
    each: Each | None = None
    every_us: int | None = None


@dataclass(frozen=True)
class Calm:
    """When a client counts as recovered from a fault: for ``for_us`` all succeed, quantile ``q`` <= factor x steady."""

    fault: str
    q: float = 0.95
    factor: float = 2
    for_us: int = 2_000_000


@dataclass(frozen=True)
class Wanted:
    """All that a run's SLOs ask for. ``confidences``: of the bands around each of ``qs``."""

    qs: tuple[float, ...] = ()
    confidences: tuple[float, ...] = (0.95,)
    cuts: tuple[Cut, ...] = ()
    recoveries: tuple[Calm, ...] = ()
