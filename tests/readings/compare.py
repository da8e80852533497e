"""Comparison of the judge's figures with the second readings, for all metrics of a run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aftershock.tests.readings import counts, groups, records, silences, transactions, waiting
from aftershock.tests.readings.figure import Asked, Figure, Figures, worst
from aftershock.tests.readings.judged import Judged, judge, slo_text
from aftershock.tests.readings.run import Run, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGGREGATES = ("p50", "p95", "p99.9", "max", "mean")
OF_PRODUCERS = ("rack", "partition", "broker", "producer", "epoch")
OF_READERS = ("rack", "partition", "broker", "producer")
OF_COMMITTERS = ("rack", "broker")
OF_GROUPS = ("rebalance.count", "rebalance.duration", "consume.unowned", "consume.stopped", "assignment.skew")
WITH_SUBJECTS = ("run", "fault")
"""Windows that are also read by subject; those of single faults are read as a whole."""

SCALES = {"ms": 1_000, "s": 1_000_000, "%": 100}
"""Base units (microseconds, shares of 1) of the units in which a check gives its figure."""
SHARE_ERROR_MAX = 1e-9
"""Shares are fractions in the reading, and doubles in a check."""


@dataclass(frozen=True)
class Comparison:
    """A figure of the judge and its second reading."""

    run: str
    judged: Judged
    figures: Sequence[Figure]

    @property
    def equal(self) -> bool:
        """True if both readings give the same value, to the microsecond, or both have too few values for one."""
        check, lowest = self.judged.check, self.judged.asked.kind in ("success", "throughput")
        if not self.figures:
            return check.observed is None
        if check.observed is None:
            fewest = min((one.n for one in self.figures if one.n is not None), default=0)
            return check.n == fewest if check.n < check.minimum else worst(self.figures).value is None
        enough = [one for one in self.figures if one.n is None or one.n >= check.minimum]
        value = worst(enough or self.figures, lowest=lowest).value
        if value is None:
            return False
        if check.unit == "%":
            return abs(float(value * 100) - check.observed) <= SHARE_ERROR_MAX
        if check.unit == "records/s":
            return math.isclose(float(value), check.observed)
        return round(float(value)) == round(check.observed * SCALES.get(check.unit, 1))

    def __str__(self) -> str:
        check = self.judged.check
        second = worst(self.figures) if self.figures else "nothing"
        return (
            f"{self.run}: {slo_text(self.judged.asked)} of {self.judged.who}: the judge has {check.observed} "
            f"{check.unit} of {check.n} ({check.why}), the second reading {second}"
        )


def prepared(home: Path) -> Run:
    """Load a run and create the tables of all readings."""
    run = load(home)
    for reading in (records, silences, groups, waiting, counts, transactions):
        reading.prepare(run)
    return run


def questions(run: Run, *, subjects: bool = True) -> Iterator[Asked]:
    """Yield each metric with each of its aggregates, subjects and windows, as far as the run has such rows."""
    ops = {op for (op,) in run.rows("select distinct op from outcomes")}
    several = bool(run.rows("select 1 from subscriptions where members > 1"))
    arms = [arm for workload in run.timeline["workloads"] for arm in workload["arms"]]
    unique = [arm for arm in arms if arms.count(arm) == 1]
    # what a group of several members may deliver again follows from its owners and commits, see docs/VERDICT.md
    rules = [rule for rule in counts.RULES if not several or rule not in ("duplicate", "order")]
    yield from (Asked(rule, None, "", arm=arm) for rule in rules for arm in (None, *unique))
    for window in run.windows:
        divided = subjects and window in WITH_SUBJECTS
        for op in sorted(ops & {"produce", "consume", "commit"}):
            each = {"produce": OF_PRODUCERS, "consume": OF_READERS, "commit": OF_COMMITTERS}[op] if divided else ()
            timed = ("latency",) if op == "consume" else ("latency", "service")
            for kind in timed:
                yield from (Asked(f"{op}.{kind}", aggregate, window) for aggregate in AGGREGATES)
                yield from (Asked(f"{op}.{kind}", "p50", window, by) for by in each)
            shares = () if op == "consume" else ("success", "budget(99%)")
            rates = () if op == "commit" else ("throughput",)
            for kind in (*shares, "gap", *rates):
                yield from (Asked(f"{op}.{kind}", None, window, by) for by in (None, *each))
            if op != "commit":
                yield from (Asked(f"{op}.unavailable", None, window, by) for by in (None, "partition")[: 1 + divided])
        if "consume" in ops:
            for metric in ("consume.lag", "consume.freshness"):
                yield from (Asked(metric, aggregate, window) for aggregate in ("p50", "max", "mean"))
                yield from (Asked(metric, "max", window, "member") for _ in range(several))
        if run.rows("select 1 from transactions limit 1"):
            yield from (Asked("transaction.latency", aggregate, window) for aggregate in AGGREGATES)
            yield Asked("transaction.success", None, window)
        if run.rows("select 1 from stable_ages limit 1"):
            yield from (Asked("stable_offset.lag", aggregate, window) for aggregate in ("p50", "max", "mean"))
            yield from (Asked("stable_offset.lag", "max", window, "partition") for _ in range(divided))
        if several:
            yield from (Asked(metric, None, window) for metric in OF_GROUPS)
            yield Asked("consume.unowned", None, window, "partition")


def second_reading(run: Run, asked: Asked) -> Figures:
    if asked.family in counts.RULES:
        return counts.figures(run, asked)
    if asked.op in transactions.METRICS:
        return transactions.figures(run, asked)
    if asked.metric in OF_GROUPS:
        return groups.figures(run, asked)
    by_kind = {
        "gap": silences.gaps,
        "throughput": silences.throughput,
        "unavailable": silences.unavailable,
        "lag": waiting.figures,
    }
    by_kind["freshness"] = waiting.figures
    return by_kind.get(asked.kind, records.figures)(run, asked)


def compare(
    spark: "SparkSession", homes: Mapping[str, Path], windows: Sequence[str] | None = None, *, subjects: bool = True
) -> Iterator[Comparison]:
    """Yield each figure of these runs with its second reading, by default for all their windows and subjects."""
    runs = {home: prepared(home) for home in homes.values()}
    asked = {
        home: [one for one in questions(run, subjects=subjects) if windows is None or one.window in ("", *windows)]
        for home, run in runs.items()
    }
    judged = judge(spark, asked)
    for name, home in homes.items():
        run, read = runs[home], dict[Asked, Figures]()
        latest = {who for (who,) in run.rows("select who from subscriptions where from_latest")}
        for one in judged[home]:
            # a reader at the latest offset owes nothing of warm-up
            if one.asked.window == "warmup" and one.who in latest and one.asked.op not in ("produce", "commit"):
                continue
            figures = read.setdefault(one.asked, second_reading(run, one.asked) if one.asked not in read else {})
            yield Comparison(name, one, figures.get(one.who, ()))


def differences(spark: "SparkSession", home: Path) -> list[str]:
    """Return what differs in a run and during its faults; a process that the test starts imports this by name."""
    return [str(one) for one in compare(spark, {"run": home}, ["run", "fault"], subjects=False) if not one.equal]
