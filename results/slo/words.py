"""The words of the language, and which metric takes which: a table that parser, judge and ``docs/SLO.md`` share."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Op: TypeAlias = Literal["<", "<=", ">", ">=", "=="]
Side: TypeAlias = Literal["produce", "consume", "commit"]
Unit: TypeAlias = Literal["time", "share", "records"]
EachWord: TypeAlias = Literal["rack", "partition", "broker", "producer", "epoch"]
Aggregate: TypeAlias = float | Literal["max", "mean"]

WINDOWS = ("warmup", "steady", "fault", "recovery", "run")
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
SECOND_US = 1_000_000
SLOT_US_MIN = 100_000

# the rules of results/promises.py, which this may not import
COUNTS = (
    "lost",
    "duplicate",
    "order",
    "phantom",
    "misplaced",
    "collision",
    "skipped",
    "backward",
    "beyond",
    "co_owned",
    "commit_ahead",
    "commit_behind",
    "corrupt",
    "immediate",
    "replica",
)

_BELOW: tuple[Op, ...] = ("<", "<=")
_ABOVE: tuple[Op, ...] = (">=", ">")
_EACH: dict[Side, tuple[EachWord, ...]] = {
    "produce": ("rack", "partition", "broker", "producer", "epoch"),
    "consume": ("rack", "partition", "broker", "producer"),
    "commit": ("rack", "broker"),
}


@dataclass(frozen=True)
class Metric:
    """What may be asked of a metric.

    ``spread``: it has many values, of which one asks for a quantile, the largest or the mean. ``confident``: its
    values are drawn like samples, so a quantile has a confidence band. ``sampled``: it is known once a second.
    """

    side: Side
    unit: Unit
    ops: tuple[Op, ...] = _BELOW
    each: tuple[EachWord, ...] = ()
    spread: bool = False
    confident: bool = False
    sampled: bool = False
    slots: bool = True

    @property
    def counted(self) -> str:
        """What its ``n`` counts."""
        return "seconds" if self.sampled else "commits" if self.side == "commit" else "records"


def _latency(side: Side) -> Metric:
    return Metric(side, "time", each=_EACH[side], spread=True, confident=True)


METRICS: dict[str, Metric] = {
    "produce.latency": _latency("produce"),
    "produce.service": _latency("produce"),
    "consume.latency": _latency("consume"),
    "commit.latency": _latency("commit"),
    "commit.service": _latency("commit"),
    "produce.success": Metric("produce", "share", _ABOVE, _EACH["produce"]),
    "commit.success": Metric("commit", "share", _ABOVE, _EACH["commit"]),
    "produce.gap": Metric("produce", "time", each=_EACH["produce"]),
    "consume.gap": Metric("consume", "time", each=_EACH["consume"]),
    "commit.gap": Metric("commit", "time", each=_EACH["commit"]),
    "produce.unavailable": Metric("produce", "time", each=("partition",), slots=False),
    "consume.unavailable": Metric("consume", "time", each=("partition",), slots=False),
    "consume.lag": Metric("consume", "records", spread=True, sampled=True),
    "consume.freshness": Metric("consume", "time", spread=True, sampled=True),
    "produce.budget": Metric("produce", "share", each=_EACH["produce"]),
    "commit.budget": Metric("commit", "share", each=_EACH["commit"]),
}
LATENCIES = tuple(name for name, metric in METRICS.items() if metric.confident)
