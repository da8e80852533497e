"""Exact latency histograms of all records, counted by Spark and evaluated by NumPy.

**Rules.** Latency is measured from the intended send time, so there is no coordinated omission. A record that failed,
is in doubt, or was acknowledged and never consumed is censored, so its latency is null, and slower than any value.
Quantiles are nearest-rank (sketches such as t-digest miss the tail of a fault by 12-100 %). Latency is an integer in
microseconds, so a histogram of distinct values is small and exact.

**Silver** is the histogram of latencies by segment of time; the histogram of a window is the sum of its segments. Spark
counts one row per distinct latency, and NumPy derives all figures in a second (Spark took a minute).

**Latency plots** show percentiles of *bins*, intervals of a second or more, and round latencies down by at most half a
percent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import product, starmap
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.measure.samples import client, ok, with_segment
from aftershock.results.model.facts import Bin, Distribution, RackFlow
from aftershock.results.spark.tables import beside
from aftershock.results.tables.dims import KINDS, SIDES, Dims, Longs, Scene, firsts, longs, numbered
from aftershock.results.tables.names import CLIENT_COLUMNS, RACKS, hash_of

Many = TypeVar("Many", int, Longs)


@dataclass(frozen=True, eq=False)
class Histogram:
    """Histogram: ``counts[i]`` samples took ``latency_us[i]`` (ascending); ``censored`` samples have no latency."""

    latency_us: Longs
    counts: Longs
    censored: int
    bytes: int

    @cached_property
    def _upto(self) -> Longs:
        return np.cumsum(self.counts)

    @cached_property
    def valued(self) -> int:
        return int(self.counts.sum())

    @property
    def n(self) -> int:
        return self.valued + self.censored

    @property
    def slowest_us(self) -> int | None:
        return int(self.latency_us[-1]) if self.valued else None

    @property
    def mean_us(self) -> float | None:
        return int(self.latency_us @ self.counts) / self.valued if self.valued else None

    @property
    def backwards(self) -> int:
        return int(self.counts[self.latency_us < 0].sum())

    def at_rank(self, rank: int) -> int | None:
        """Return the latency at a rank, counted from 1; None for a censored sample or a rank that does not exist."""
        if not 1 <= rank <= self.valued:
            return None
        return int(self.latency_us[np.searchsorted(self._upto, rank)])

    def at(self, q: float) -> int | None:
        return self.at_rank(rank_of(q, self.n))

    def distribution(self, qs: Iterable[float]) -> Distribution:
        return Distribution(self.n, self.censored, self.slowest_us, {q: self.at(q) for q in qs}, self.mean_us)

    def points(self) -> tuple[tuple[float, int | None], ...]:
        """Return points ``(share, latency_us)`` of a plot, where ``share`` of the samples took at most ``latency_us``.

        Points are chosen so that the share of slower samples halves with every fourth point. The last points of the
        plot are the slowest latency and, if there are censored samples, (1.0, None).
        """

        def quarter_halvings(upto: Longs) -> npt.NDArray[np.float64]:
            halvings: npt.NDArray[np.float64] = np.floor(4 * np.log2(self.n / np.maximum(self.n - upto, 0.5)))
            return halvings

        chosen = quarter_halvings(self._upto) > quarter_halvings(self._upto - self.counts)
        chosen[-1:] = True
        upto, latency_us = self._upto[chosen].tolist(), self.latency_us[chosen].tolist()
        end: list[tuple[float, int | None]] = [(1.0, None)] if self.censored else []
        return (*((count / self.n, value) for count, value in zip(upto, latency_us, strict=True)), *end)


def rank_of(q: float, n: Many) -> Many:
    """Return the rank of a quantile, ceil(q*n), computed in integers because in floats 0.07 * 100 is more than 7."""
    numerator, denominator = _ratio(q)
    return -(-n * numerator // denominator)


@cache
def _ratio(q: float) -> tuple[int, int]:
    return Fraction(repr(q)).as_integer_ratio()


def histogram(latency_us: Longs, n: Longs, sizes: Longs) -> Histogram:
    """Build a histogram from ascending latencies, with the count and the size in bytes of each; latencies may repeat.

    The array ``n`` ends with the counts of censored samples, which have no latency.
    """
    valued = len(latency_us)
    first = np.flatnonzero(np.diff(latency_us, prepend=latency_us[:1] - 1))
    counts = np.add.reduceat(n[:valued], first) if valued else n[:0]
    return Histogram(latency_us[first], counts, int(n[valued:].sum()), int(sizes[:valued].sum()))


SPECTRA = (RUN, "steady", "fault", "recovery")
"""Windows for which the percentile spectrum and the traffic between racks are computed."""
FAULTS_DRAWN_MAX = 4  # the spectra of more faults would be most of ``analysis.json``
_CENSORED = np.iinfo(np.int64).max

Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Group:
    """Latency rows of one metric and client in ascending order; the first ``valued`` rows are not censored.

    ``by_segment`` has the numbers of the rows in order of their segment, those of a segment ascending.
    """

    metric: str
    client: str
    valued: int
    segment: Longs
    latency_us: Longs
    n: Longs
    bytes: Longs
    racks: Longs

    @cached_property
    def by_segment(self) -> Longs:
        return np.argsort(self.segment, kind="stable")

    @cached_property
    def _segments(self) -> Longs:
        return self.segment[self.by_segment]

    def inside(self, segments: Longs) -> Longs:
        """Return the numbers of the rows of ``segments`` (ascending), in ascending order."""
        ends = (np.searchsorted(self._segments, segments, side) for side in ("left", "right"))
        parts = [self.by_segment[start:end] for start, end in zip(*ends, strict=True) if start < end]
        return np.sort(np.concatenate(parts)) if parts else self.by_segment[:0]

    def histogram(self, chosen: Longs) -> Histogram:
        latency_us = self.latency_us[chosen[: np.searchsorted(chosen, self.valued)]]
        return histogram(latency_us, self.n[chosen], self.bytes[chosen])


@dataclass(frozen=True, eq=False)
class Silver:
    """Latency histogram of a run by metric and client; ``racks`` are pairs (client rack, broker rack) by number."""

    groups: tuple[Group, ...]
    racks: tuple[tuple[str | None, str | None], ...]

    def by_window(self, scene: Scene) -> dict[Key, Histogram]:
        return {
            (group.metric, group.client, window): group.histogram(inside)
            for window, spans in scene.windows.items()
            for group, inside in self._inside(scene, spans)
        }

    def rack_flows(self, scene: Scene) -> tuple[RackFlow, ...]:
        """Return the traffic between racks in each window of ``SPECTRA``, sorted by names."""
        flows = []
        for window in SPECTRA:
            for group, inside in self._inside(scene, scene.windows.get(window, ())):
                if not group.metric.endswith(".latency"):
                    continue
                racks = group.racks[inside]
                for pair in np.unique(racks).tolist():
                    chosen = inside[racks == pair]
                    histogram, size = group.histogram(chosen), int(group.bytes[chosen].sum())
                    op, (client_rack, broker_rack) = group.metric.split(".")[0], self.racks[pair]
                    p50_us, p99_us = histogram.at(0.5), histogram.at(0.99)
                    names = op, group.client, client_rack, broker_rack, window
                    flows.append(RackFlow(*names, histogram.n, size, p50_us, p99_us))
        return tuple(sorted(flows, key=lambda f: (f.op, f.client, f.window, f.client_rack or "", f.broker_rack or "")))

    def _inside(self, scene: Scene, spans: tuple[Interval, ...]) -> Iterator[tuple[Group, Longs]]:
        """Yield each metric and client that has rows in ``spans``, with the numbers of these rows."""
        segments = np.unique([scene.counted_as[number] for number in scene.segments.of(spans)])
        for group in self.groups:
            inside = group.inside(segments)
            if len(inside):
                yield group, inside


def drawn(key: Key, scene: Scene) -> bool:
    """Return True if the report plots a window's latencies; a fault's only with up to ``FAULTS_DRAWN_MAX`` faults."""
    window = key[2]
    few_faults = window.startswith("fault/") and len(scene.evidence.steps) <= FAULTS_DRAWN_MAX
    return key[0].endswith(".latency") and (window in SPECTRA or few_faults)


def silver_of(rows: pa.Table) -> Silver:
    (metric, metrics), (client, clients), (near, near_racks), (far, far_racks) = (
        numbered(rows[name]) for name in ("metric", "client", "client_rack", "broker_rack")
    )
    latency_us = longs(rows["latency_us"], _CENSORED)
    racks = near * len(far_racks) + far
    columns = (longs(rows["segment"], -1), latency_us, longs(rows["n"]), longs(rows["bytes"]), racks)
    # a short integer type sorts faster
    key = (metric * len(clients) + client).astype(np.min_scalar_type(len(metrics) * len(clients)))
    order = np.argsort(key, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    groups = []
    for part in filter(len, parts):
        rising = part[np.argsort(latency_us[part])]
        valued = int(np.searchsorted(latency_us[rising], _CENSORED))
        names = metrics[metric[rising[0]]], clients[client[rising[0]]]
        groups.append(Group(*names, valued, *(column[rising] for column in columns)))
    return Silver(tuple(groups), tuple(product(near_racks, far_racks)))


PLOTTED_BITS = 8
_NONE = np.iinfo(np.int64).min


def bins(rows: pa.Table, bin_us: int) -> tuple[Bin, ...]:
    """Return the bins (time intervals) of all latency plots, in order of metric, client, rack and time."""
    (metric, metrics), (client, clients), (rack, racks) = (
        numbered(rows[name]) for name in ("metric", "client", "client_rack")
    )
    number, took_us, slowest_us = (longs(rows[name], _NONE) for name in ("bin", "latency_us", "slowest_us"))
    censored = took_us == _NONE
    order = np.lexsort((took_us, censored, number, rack, client, metric))
    first = firsts(key[order] for key in (metric, client, rack, number))
    if not len(first):
        return ()
    n, row, took_us = longs(rows["n"])[order], order[first], took_us[order]
    upto, totals = np.cumsum(n), np.add.reduceat(n, first)

    def at(q: float) -> Iterable[int | None]:
        return _or_none(took_us[np.searchsorted(upto, upto[first] - n[first] + rank_of(q, totals))].tolist())

    columns = zip(
        *([names[key] for key in keys[row]] for keys, names in ((metric, metrics), (client, clients), (rack, racks))),
        (number[row] * bin_us).tolist(),
        totals.tolist(),
        np.add.reduceat(n * censored[order], first).tolist(),
        at(0.5),
        at(0.99),
        _or_none(np.maximum.reduceat(slowest_us[order], first).tolist()),
        strict=True,
    )
    return tuple(sorted(starmap(Bin, columns), key=lambda b: (b.metric, b.client, b.rack or "", b.start_us)))


def of_silver(rows: pa.Table) -> pa.Table:
    """Return the rows of ``silver`` with a bin (time interval of a plot), with latencies rounded as by ``by_bin``."""
    binned = rows.filter(pc.is_valid(rows["bin"]))
    took_us = binned["latency_us"].combine_chunks()
    exact = longs(binned["latency_us"], 1)
    finer = np.maximum(np.floor(np.log2(np.maximum(exact, 1) + 0.5)).astype(np.int64) - PLOTTED_BITS, 0)
    rounded = pa.array(exact >> finer << finer, mask=took_us.is_null().to_numpy(zero_copy_only=False))
    return binned.drop_columns("latency_us").append_column("slowest_us", took_us).append_column("latency_us", rounded)


def _or_none(values: Iterable[int]) -> Iterable[int | None]:
    return (None if value == _NONE else value for value in values)


BINS = "run int, bin_us bigint"
_BIN = "intended_us div bin_us"


def silver(
    samples: DataFrame, dims: Dims, bins: DataFrame | None = None, transactions: DataFrame | None = None
) -> DataFrame:
    """Return the histogram ``run client_hash kind segment racks bin latency_us n bytes``; null means censored.

    ``transactions`` are the samples of transactions, None if no run has any.
    """
    hist = latencies(samples, dims, bins).unionByName(sendings(samples, dims))
    if transactions is not None:
        hist = hist.unionByName(endings(transactions, dims))
    return excused(hist, dims, "client_hash", "kind")


def endings(transactions: DataFrame, dims: Dims) -> DataFrame:
    """Count the times that transactions took from the intended time of their last record to their end."""
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    rows = _placed(transactions, dims).withColumn("latency_us", took)
    counted = rows.groupBy("run", "client_hash", "segment", "latency_us").agg(F.count("*").alias("n"))
    absent = {name: F.lit(None).cast("bigint") for name in ("bin", "bytes")}
    return counted.withColumns({"kind": _number("transaction"), "racks": hash_of(F.lit(None), F.lit(None)), **absent})


def latencies(samples: DataFrame, dims: Dims, bins: DataFrame | None = None) -> DataFrame:
    """Count ``produce.latency``, ``commit.latency`` and ``consume.latency`` (done - intended) for ``silver``.

    With ``bins`` (``BINS``) the latencies of each bin of a plot are counted separately.
    """
    took, bin_ = F.when(ok(), F.col("done_us") - F.col("intended_us")), F.lit(None).cast("bigint")
    rows = _placed(samples.where(F.col("op").isin(*SIDES)), dims)
    if bins is not None:
        rows, bin_ = rows.join(beside(bins), "run"), F.expr(_BIN)
    measured = rows.withColumns({"racks": hash_of(*RACKS), "bin": bin_, "latency_us": took})
    counted = measured.groupBy("run", "client_hash", "segment", "racks", "bin", "latency_us")
    return counted.agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes")).withColumn("kind", _number("latency"))


def sendings(samples: DataFrame, dims: Dims) -> DataFrame:
    """Count ``service`` (done - sent) and ``lateness`` (sent - intended) of produced records and of commits.

    Service and lateness need fewer grouping columns than ``latencies``, so a separate Spark job is faster.
    """
    service, lateness = F.when(ok(), F.col("done_us") - F.col("sent_us")), F.col("sent_us") - F.col("intended_us")
    rows = _placed(samples.where(F.col("op").isin("produce", "commit")), dims)
    values = rows.select(
        "run", "client_hash", "segment", F.posexplode(F.array(service, lateness)).alias("position", "latency_us")
    )
    counted = values.groupBy("run", "client_hash", "segment", "position", "latency_us").agg(F.count("*").alias("n"))
    kind = F.when(F.col("position") == 0, _number("service")).otherwise(_number("lateness"))
    absent = {name: F.lit(None).cast("bigint") for name in ("bin", "bytes")}
    no_racks = hash_of(F.lit(None), F.lit(None))
    return counted.withColumns({"kind": kind, "racks": no_racks, **absent}).drop("position")


def _placed(samples: DataFrame, dims: Dims) -> DataFrame:
    rows = with_segment(samples.where("timed"), "intended_us", dims, alike=True)
    return rows.withColumn("client_hash", hash_of(*CLIENT_COLUMNS))


def _number(kind: str) -> Column:
    return F.lit(KINDS.index(kind))


def excused(hist: DataFrame, dims: Dims, *by: str) -> DataFrame:
    """Remove samples that do not measure the client (``Dims.excused``), such as the lateness of a killed client."""
    metric = F.concat_ws(".", "op", F.elt(F.col("kind") + 1, *map(F.lit, KINDS)))
    excuses = dims.excused.withColumns({"metric": metric, "client": client(), "client_hash": hash_of(*CLIENT_COLUMNS)})
    key = ["run", *by, "segment"]
    return hist.join(beside(excuses.select(*key)), key, "left_anti")


def quantiles(hist: DataFrame, dims: Sequence[str], qs: Sequence[float]) -> DataFrame:
    """Return ``n censored slowest_us mean_us q0 q1 ...`` per group, with nearest-rank quantiles, null if censored."""

    def at_rank(q: float) -> Column:
        numerator, denominator = _ratio(q)
        rank = F.expr(f"(total * {numerator} + {denominator - 1}) div {denominator}")
        return F.min(F.when(F.col("upto") >= rank, F.col("latency_us")))

    upto = Window.partitionBy(*dims).orderBy(F.col("latency_us").asc_nulls_last())
    total = F.sum("n").over(Window.partitionBy(*dims))
    ranked = hist.withColumn("upto", F.sum("n").over(upto)).withColumn("total", total)
    took, n = F.col("latency_us"), F.col("n")
    spent = F.sum(took.cast("decimal(19,0)") * n)
    return ranked.groupBy(*dims).agg(
        F.sum("n").alias("n"),
        F.sum(F.when(took.isNull(), n).otherwise(0)).alias("censored"),
        F.max(took).alias("slowest_us"),
        F.round(spent.cast("double") / F.nullif(F.sum(F.when(took.isNotNull(), n)), F.lit(0)), 6).alias("mean_us"),
        *[at_rank(q).alias(f"q{index}") for index, q in enumerate(qs)],
    )


def by_bin(samples: DataFrame, dims: Dims, bins: DataFrame) -> DataFrame:
    """Return a latency histogram by bin of a plot; bin n is the time interval of ``bin_us`` from ``n * bin_us``.

    Latencies are rounded as in ``of_silver``, so that the result is small; a null latency is censored.
    """
    rows = _placed(samples.where("intended_us is not null"), dims).join(beside(bins), "run")
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    halvings = F.floor(F.log2(F.greatest("took_us", F.lit(1)) + 0.5)) - PLOTTED_BITS
    finer = F.greatest(halvings, F.lit(0)).cast("int")
    hist = (
        rows.withColumn("took_us", took)
        .groupBy(
            *("run", "client_hash", hash_of("client_rack", F.lit(None)).alias("racks"), "segment"),
            F.expr(_BIN).alias("bin"),
            F.call_function("shiftleft", F.call_function("shiftright", "took_us", finer), finer).alias("latency_us"),
        )
        .agg(F.count("*").alias("n"), F.max("took_us").alias("slowest_us"))
    )
    return excused(hist.withColumn("kind", _number("latency")), dims, "client_hash", "kind")
