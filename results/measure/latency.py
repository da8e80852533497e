"""A histogram of latencies, and what is read off it: quantiles, ranks, the points of a plot. Pure.

Rules: exact; quantiles are nearest-rank, an observed value, and no sketch (those miss the tail of a fault by 12-100 %).
What is censored is slower than any value.

What is read off a run's silver: a histogram for each metric, client and window, and what went between racks. Pure.

Silver (``latency.py: silver``) is how often each latency was seen in each elementary segment; a window is the sum of
its segments. It is as long as there are different latencies, so it is read here and not by Spark: a second of NumPy
where four more jobs on it took a minute.

The bins of a run's plots, read off a histogram by bin (``latency.py: by_bin``, or ``silver``). Pure.

Rules: quantiles are nearest-rank, of latencies rounded down by half a percent at most; the censored are slower than
any. All bins are read at once: there are thousands, small.

Exact quantiles. Latency is integer microseconds, so the histogram of distinct values is small and loses nothing.

Rules: latency counts from the intended send time (no coordinated omission). A record that failed, is in doubt, or was
acknowledged and never consumed is censored: null, and slower than any threshold. Quantiles are nearest-rank, an
observed value; no sketches (they miss the tail of a fault by 12-100 %). The records are counted once, by elementary
segment: that histogram is *silver*, every window is a sum over it, and ``silver.py`` reads it.
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
from aftershock.results.measure.facts import Bin, Distribution, RackFlow
from aftershock.results.measure.names import RACKS, WHOSE, number
from aftershock.results.measure.samples import client, ok, with_segment
from aftershock.results.measure.tables import KINDS, SIDES, Dims, Longs, Mask, Scene, firsts, longs, numbered

Many = TypeVar("Many", int, Longs)
_HALVED = 4  # points for each halving of what is slower


@dataclass(frozen=True, eq=False)
class Histogram:
    """``seen[i]`` samples took ``latency_us[i]``, which rises; ``censored`` more have no value, and no ``bytes``."""

    latency_us: Longs
    seen: Longs
    censored: int
    bytes: int

    @cached_property
    def _upto(self) -> Longs:
        """How many took no longer."""
        return np.cumsum(self.seen)

    @cached_property
    def valued(self) -> int:
        """How many have a value."""
        return int(self.seen.sum())

    @property
    def n(self) -> int:
        """How many there are."""
        return self.valued + self.censored

    @property
    def slowest_us(self) -> int | None:
        """The greatest value, if there is any."""
        return int(self.latency_us[-1]) if self.valued else None

    @property
    def mean_us(self) -> float | None:
        """Of those that have a value."""
        return int(self.latency_us @ self.seen) / self.valued if self.valued else None

    @property
    def backwards(self) -> int:
        """How many took less than no time."""
        return int(self.seen[self.latency_us < 0].sum())

    def at_rank(self, rank: int) -> int | None:
        """The value at this rank, from 1; None where that is a censored one, or there is no such rank."""
        if not 1 <= rank <= self.valued:
            return None
        return int(self.latency_us[np.searchsorted(self._upto, rank)])

    def at(self, q: float) -> int | None:
        """The nearest-rank quantile; 1.0 is the maximum."""
        return self.at_rank(rank_of(q, self.n))

    def distribution(self, qs: Iterable[float]) -> Distribution:
        """What checks are told of it."""
        return Distribution(self.n, self.censored, self.slowest_us, {q: self.at(q) for q in qs}, self.mean_us)

    def points(self) -> tuple[tuple[float, int | None], ...]:
        """``(share, latency_us)`` to draw it by: that share took no longer. Four for each halving of what is slower.

        The slowest that is not censored is always there, and so is the end.
        """
        chosen = self._halvings(self._upto) > self._halvings(self._upto - self.seen)
        chosen[-1:] = True
        upto, latency_us = self._upto[chosen].tolist(), self.latency_us[chosen].tolist()
        end: list[tuple[float, int | None]] = [(1.0, None)] if self.censored else []
        return (*((some / self.n, one) for some, one in zip(upto, latency_us, strict=True)), *end)

    def _halvings(self, upto: Longs) -> npt.NDArray[np.float64]:
        """How often the slower part has halved, in quarters; of none that is slower, more than any."""
        halved: npt.NDArray[np.float64] = np.floor(_HALVED * np.log2(self.n / np.maximum(self.n - upto, 0.5)))
        return halved


def rank_of(q: float, n: Many) -> Many:
    """The rank of a quantile among ``n``, from 1. In whole numbers: as floats 0.07 * 100 is more than 7."""
    part, whole = _ratio(q)
    return -(-n * part // whole)


@cache
def _ratio(q: float) -> tuple[int, int]:
    return Fraction(repr(q)).as_integer_ratio()


def histogram(latency_us: Longs, n: Longs, sizes: Longs) -> Histogram:
    """Of counts ``n`` and their ``sizes`` in bytes by latencies in rising order, the censored behind them without one.

    One latency may be there several times.
    """
    valued = len(latency_us)
    first = np.flatnonzero(np.diff(latency_us, prepend=latency_us[:1] - 1))
    seen = np.add.reduceat(n[:valued], first) if valued else n[:0]
    return Histogram(latency_us[first], seen, int(n[valued:].sum()), int(sizes[:valued].sum()))


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
        for pair in np.unique(group.racks[inside]).tolist():
            chosen = inside & (group.racks == pair)
            told, size = group.histogram(chosen), int(group.bytes[chosen].sum())
            op, (near, far) = group.metric.split(".")[0], self.racks[pair]
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


PLOTTED_BITS = 8
_NONE = np.iinfo(np.int64).min


def bins(rows: pa.Table, bin_us: int) -> tuple[Bin, ...]:
    """The bins, panel by panel, in order of time."""
    (metric, metrics), (client, clients), (rack, racks) = (
        numbered(rows[name]) for name in ("metric", "client", "client_rack")
    )
    number, took_us, slowest_us = (longs(rows[name], _NONE) for name in ("bin", "latency_us", "slowest_us"))
    censored = took_us == _NONE
    order = np.lexsort((took_us, censored, number, rack, client, metric))
    first = firsts(key[order] for key in (metric, client, rack, number))
    if not len(first):
        return ()
    n, whose, took_us = longs(rows["n"])[order], order[first], took_us[order]
    upto, totals = np.cumsum(n), np.add.reduceat(n, first)

    def at(q: float) -> Iterable[int | None]:
        return _or_none(took_us[np.searchsorted(upto, upto[first] - n[first] + rank_of(q, totals))].tolist())

    found = zip(
        *([names[key] for key in keys[whose]] for keys, names in ((metric, metrics), (client, clients), (rack, racks))),
        (number[whose] * bin_us).tolist(),
        totals.tolist(),
        np.add.reduceat(n * censored[order], first).tolist(),
        at(0.5),
        at(0.99),
        _or_none(np.maximum.reduceat(slowest_us[order], first).tolist()),
        strict=True,
    )
    return tuple(sorted(starmap(Bin, found), key=lambda one: (one.metric, one.client, one.rack or "", one.start_us)))


def of_silver(rows: pa.Table) -> pa.Table:
    """The same rows as ``by_bin`` would have counted together, of a silver that tells bins apart."""
    binned = rows.filter(pc.is_valid(rows["bin"]))
    took_us = binned["latency_us"].combine_chunks()
    exact = longs(binned["latency_us"], 1)
    finer = np.maximum(np.floor(np.log2(np.maximum(exact, 1) + 0.5)).astype(np.int64) - PLOTTED_BITS, 0)
    rounded = pa.array(exact >> finer << finer, mask=took_us.is_null().to_numpy(zero_copy_only=False))
    return binned.drop_columns("latency_us").append_column("slowest_us", took_us).append_column("latency_us", rounded)


def _or_none(found: Iterable[int]) -> Iterable[int | None]:
    return (None if one == _NONE else one for one in found)


BINS = "run int, bin_us bigint"
_BIN = "intended_us div bin_us"


def silver(samples: DataFrame, dims: Dims, bins: DataFrame | None = None) -> DataFrame:
    """``run whose kind segment racks bin latency_us n bytes`` (``names.py: named``); null latency is censored.

    Metrics: those of ``latencies``, and of ``sendings``. Racks, bins and bytes are told of latency alone.
    """
    return excused(latencies(samples, dims, bins).unionByName(sendings(samples, dims)), dims, "whose", "kind")


def latencies(samples: DataFrame, dims: Dims, bins: DataFrame | None = None) -> DataFrame:
    """Of ``silver`` the ``produce.latency`` and ``commit.latency`` (done - intended), and ``consume.latency``.

    That is of the first delivery; the racks of a record that a reader never saw are where the plan wants it to stand.
    With ``bins`` (``BINS``) those of a plot are told apart.
    """
    took, bin_ = F.when(ok(), F.col("done_us") - F.col("intended_us")), F.lit(None).cast("bigint")
    rows = _placed(samples.where(F.col("op").isin(*SIDES)), dims)
    if bins is not None:
        rows, bin_ = rows.join(F.broadcast(bins), "run"), F.expr(_BIN)
    told = rows.withColumns({"racks": number(*RACKS), "bin": bin_, "latency_us": took})
    counted = told.groupBy("run", "whose", "segment", "racks", "bin", "latency_us")
    return counted.agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes")).withColumn("kind", _number("latency"))


def sendings(samples: DataFrame, dims: Dims) -> DataFrame:
    """The others: ``produce.service`` (done - sent) and ``produce.lateness`` (sent - intended), the same of ``commit``.

    Counted apart, for half as much tells them apart. Lateness is the generator's own fault.
    """
    service, lateness = F.when(ok(), F.col("done_us") - F.col("sent_us")), F.col("sent_us") - F.col("intended_us")
    rows = _placed(samples.where(F.col("op").isin("produce", "commit")), dims)
    each = F.posexplode(F.array(service, lateness)).alias("second", "latency_us")
    both = rows.select("run", "whose", "segment", each)
    counted = both.groupBy("run", "whose", "segment", "second", "latency_us").agg(F.count("*").alias("n"))
    kind = F.when(F.col("second") == 0, _number("service")).otherwise(_number("lateness"))
    untold = {name: F.lit(None).cast("bigint") for name in ("bin", "bytes")}
    nowhere = number(F.lit(None), F.lit(None))
    return counted.withColumns({"kind": kind, "racks": nowhere, **untold}).drop("second")


def _placed(samples: DataFrame, dims: Dims) -> DataFrame:
    """The measurements, each with its segment and ``whose`` it is."""
    return with_segment(samples.where("owed"), "intended_us", dims).withColumn("whose", number(*WHOSE))


def _number(kind: str) -> Column:
    return F.lit(KINDS.index(kind))


def excused(hist: DataFrame, dims: Dims, *by: str) -> DataFrame:
    """Without what is no measurement of the client (``Dims.excused``), by segment and by names or their numbers."""
    metric = F.concat_ws(".", "op", F.elt(F.col("kind") + 1, *map(F.lit, KINDS)))
    spoilt = dims.excused.withColumns({"metric": metric, "client": client(), "whose": number(*WHOSE)})
    key = ["run", *by, "segment"]
    return hist.join(F.broadcast(spoilt.select(*key)), key, "left_anti")


def latency_histogram(rows: DataFrame, dims: Sequence[str]) -> DataFrame:
    """``dims`` and ``latency_us`` with ``n``, how often that value was seen: exact, and mergeable."""
    return rows.groupBy(*dims, "latency_us").agg(F.count("*").alias("n"))


def quantiles(hist: DataFrame, dims: Sequence[str], qs: Sequence[float]) -> DataFrame:
    """``dims n censored slowest_us mean_us q0 q1 ...``: the nearest-rank quantile of each of ``qs``, null if censored.

    ``q`` 1.0 is the maximum. The rank is ceil(q * n) in whole numbers: as floats 0.07 * 100 is more than 7.
    """
    upto = Window.partitionBy(*dims).orderBy(F.col("latency_us").asc_nulls_last())
    total = F.sum("n").over(Window.partitionBy(*dims))
    ranked = hist.withColumn("upto", F.sum("n").over(upto)).withColumn("total", total)
    took, n = F.col("latency_us"), F.col("n")
    spent = F.sum(took.cast("decimal(19,0)") * n)
    return ranked.groupBy(*dims).agg(
        F.sum("n").alias("n"),
        F.sum(F.when(took.isNull(), n).otherwise(0)).alias("censored"),
        F.max(took).alias("slowest_us"),
        (spent / F.nullif(F.sum(F.when(took.isNotNull(), n)), F.lit(0))).cast("double").alias("mean_us"),
        *[_at_rank(q).alias(f"q{index}") for index, q in enumerate(qs)],
    )


def _at_rank(q: float) -> Column:
    exact = Fraction(repr(q))
    rank = F.expr(f"(total * {exact.numerator} + {exact.denominator - 1}) div {exact.denominator}")
    return F.min(F.when(F.col("upto") >= rank, F.col("latency_us")))


def by_bin(samples: DataFrame, dims: Dims, bins: DataFrame) -> DataFrame:
    """``run whose kind racks segment bin latency_us n slowest_us``; bin 3 starts at ``3 * bin_us`` of ``BINS``.

    It is for plots, so latencies are rounded (``plotted.py``), which leaves few; null is censored.
    """
    rows = _placed(samples.where("intended_us is not null"), dims).join(F.broadcast(bins), "run")
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    halvings = F.floor(F.log2(F.greatest("took_us", F.lit(1)) + 0.5)) - PLOTTED_BITS
    finer = F.greatest(halvings, F.lit(0)).cast("int")
    hist = (
        rows.withColumn("took_us", took)
        .groupBy(
            *("run", "whose", number("client_rack", F.lit(None)).alias("racks"), "segment"),
            F.expr(_BIN).alias("bin"),
            F.call_function("shiftleft", F.call_function("shiftright", "took_us", finer), finer).alias("latency_us"),
        )
        .agg(F.count("*").alias("n"), F.max("took_us").alias("slowest_us"))
    )
    return excused(hist.withColumn("kind", _number("latency")), dims, "whose", "kind")
