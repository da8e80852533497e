"""Measurements for SLOs that divide a window by subject (``for each partition``), into time slots, or both.

Figures about parts of a window are exact. A record whose subject (such as its partition) is unknown is counted for the
subject ``unknown``. A record belongs to the part of the window that contains its intended time; a success that ends a
gap belongs to the part in which that success happened.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import Interval, merged, overlap_us
from aftershock.results.measure.gaps import GAP_SLOT_US, longest
from aftershock.results.measure.latency import excused
from aftershock.results.measure.samples import client, ok, slot_of, with_segment
from aftershock.results.model.facts import MAX, Cut, Distribution, Slice
from aftershock.results.spark.tables import beside
from aftershock.results.tables.dims import SLOT_US, Dims, Row, Scene

UNKNOWN = "unknown"
CUTS = "run int, cut int, op string, metric string, each string"
PARTS = "run int, cut int, slot int, part int, block string, start_us bigint, end_us bigint"
SLICE = ("run", "cut", "client", "subject", "part")


@dataclass(frozen=True)
class Part:
    """Part of a window (the whole window, a block of the plan, or a slot from ``start_us``)."""

    spans: tuple[Interval, ...]
    start_us: int | None = None
    block: str | None = None


def parts_of(cut: Cut, scene: Scene) -> list[Part]:
    """Return the parts of the window of ``cut`` by block of the plan and time, without incomplete time slots."""
    window, every_us, parts = scene.windows.get(cut.window, ()), cut.every_us, []
    blocks = scene.blocks if cut.each == "block" else {None: window}
    for name, block in blocks.items():
        spans = merged([(max(a[0], b[0]), min(a[1], b[1])) for a in window for b in block])
        if every_us is None:
            parts += [Part(spans, block=name)] if spans else []
            continue
        starts = [start for first, last in spans for start in range(first, last - every_us + 1, every_us)]
        parts += [Part(((start, start + every_us),), start, name) for start in starts]
    return parts


def tables_of(cuts: Iterable[tuple[int, int, Cut]], dims: Dims) -> tuple[DataFrame, DataFrame]:
    """Return the tables ``CUTS``, and ``PARTS`` with a row per second and part of a window that overlaps the second."""
    cut_rows, part_rows = list[Row](), list[Row]()
    for run, number, cut in cuts:
        op, kind = cut.metric.split(".", 1)
        cut_rows.append((run, number, op, "latency" if kind == "success" else kind, cut.each))
        for index, part in enumerate(parts_of(cut, dims.scenes[run])):
            for start, end in part.spans:
                slots = range(start // SLOT_US, (end - 1) // SLOT_US + 1)
                part_rows += ((run, number, slot, index, part.block, start, end) for slot in slots)
    return dims.table(cut_rows, CUTS), dims.table(part_rows, PARTS)


def latencies(samples: DataFrame, cut_table: DataFrame, parts: DataFrame, dims: Dims) -> DataFrame:
    """Return a histogram ``run cut client subject part latency_us n`` per subject and part of a divided window."""
    of_cuts = samples.where("timed").join(beside(cut_table), ["run", "op"])
    placed = _placed(with_segment(of_cuts, "intended_us", dims, alike=True), "intended_us", parts, "inner")
    since_us = F.when(F.col("metric") == "service", F.col("sent_us")).otherwise(F.col("intended_us"))
    took = F.when(F.col("metric") == "lateness", F.col("sent_us") - F.col("intended_us"))
    took = took.otherwise(F.when(ok(), F.col("done_us") - since_us))
    columns = (F.concat_ws(".", "op", "metric").alias("metric"), client().alias("client"), took.alias("latency_us"))
    rows = placed.select("run", "cut", "segment", "part", _subject(), *columns)
    hist = rows.groupBy("metric", "segment", *SLICE, "latency_us").agg(F.count("*").alias("n"))
    return excused(hist, dims, "metric", "client").groupBy(*SLICE, "latency_us").agg(F.sum("n").alias("n"))


def gaps(samples: DataFrame, cut_table: DataFrame, parts: DataFrame) -> DataFrame:
    """Return the number of successes and the longest gap of each subject in each interval that has a success.

    A subject (such as a partition) with successes only outside the window has one row with a null ``part``.
    """
    good = samples.where(ok() & F.col("done_us").isNotNull())
    placed = _placed(good.join(beside(cut_table), ["run", "op"]), "done_us", parts, "left")
    interval = (*SLICE, "start_us", "end_us")
    rows = placed.select("run", "cut", client().alias("client"), _subject(), "part", "start_us", "end_us", "done_us")
    moments = rows.groupBy(*interval, F.expr(f"done_us div {GAP_SLOT_US}").alias("moment")).agg(
        F.min("done_us").alias("first_us"), F.max("done_us").alias("last_us"), F.count("*").alias("n")
    )
    edges = F.greatest(F.col("first_us") - F.col("start_us"), "gap_us", F.col("end_us") - F.col("last_us"))
    return longest(moments, interval).select(*SLICE, "start_us", "n", edges.alias("longest_us"))


def _placed(rows: DataFrame, time: str, parts: DataFrame, how: str) -> DataFrame:
    """Add to each row the part of the window in which the column ``time`` lies, and the interval of the part."""
    renamed = parts.withColumnsRenamed({"run": "part_run", "cut": "part_cut"})
    within = (F.col(time) >= F.col("start_us")) & (F.col(time) < F.col("end_us"))
    same_cut = (F.col("run") == F.col("part_run")) & (F.col("cut") == F.col("part_cut"))
    return rows.join(beside(renamed), same_cut & (slot_of(time) == F.col("slot")) & within, how)


def _subject() -> Column:
    place = F.concat("topic", F.lit("/"), "partition")
    by = {
        "rack": F.concat(F.lit("rack="), "broker_rack"),
        "partition": place,
        "broker": F.concat(F.lit("broker="), "broker_id"),
        "producer": F.concat(F.lit("producer="), "producer_id"),
        "epoch": F.concat(place, F.lit("@"), "leader_epoch"),
        "block": F.lit(""),  # the part names the block
    }
    subject = F.when(F.col("each").isNull(), F.lit(""))
    for word, name in by.items():
        subject = subject.when(F.col("each") == word, F.coalesce(name, F.lit(UNKNOWN)))
    return subject.alias("subject")


Distributions = dict[str, dict[tuple[str, int], Distribution]]
"""Distributions by client; then by subject (such as a broker) and number of the slot of time in the window."""


def sliced(
    cuts: Sequence[Cut], rows: Mapping[str, Sequence[Any]], scene: Scene, queried: Sequence[float], qs: set[float]
) -> dict[tuple[Cut, str], tuple[Slice, ...]]:
    """Return the measurements of a run by request (``Cut``) and client; ``rows`` maps job names to the jobs' rows.

    ``queried`` lists the quantiles in the rows' columns ``q0``, ``q1``, …; ``qs`` holds the quantiles to return.
    """
    slices: dict[tuple[Cut, str], tuple[Slice, ...]] = {}
    for number, cut in enumerate(cuts):
        parts = parts_of(cut, scene)
        if cut.metric.endswith(".gap"):
            by_client = _gaps(cut, [row for row in rows["cut_gaps"] if row["cut"] == number], scene, parts, qs)
        else:
            by_client = defaultdict(dict)
            for row in rows["latencies"]:
                if row["cut"] == number:
                    at = {q: row[f"q{index}"] for index, q in enumerate(queried) if q in qs}
                    values = Distribution(row["n"], row["censored"], row["slowest_us"], at, row["mean_us"])
                    by_client[row["client"]][row["subject"], row["part"]] = values
        for key, of_client in sorted(by_client.items()):
            slices[cut, key] = tuple(
                Slice(parts[part].block or subject, parts[part].start_us, values)
                for (subject, part), values in sorted(of_client.items())
            )
    return slices


def _gaps(cut: Cut, rows: Iterable[Any], scene: Scene, parts: Sequence[Part], qs: set[float]) -> Distributions:
    """Return the longest gap of each subject and part of a window; without a success the gap is as long as the part."""
    by_client: dict[str, dict[str, dict[tuple[int, int], Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        by_client[row["client"]][row["subject"]][row["part"], row["start_us"]] = row
    if cut.each in (None, "block"):
        for owner in scene.evidence.clients:
            if cut.metric.split(".")[0] in owner.topics:
                by_client[owner.key].setdefault("", {})
    gaps: Distributions = {}
    for key, subjects in by_client.items():
        gaps[key], out = {}, scene.left_out.get((cut.metric.split(".")[0], key), ())
        for subject, intervals in subjects.items():
            for number, part in enumerate(parts):
                rows_of = [(intervals.get((number, start)), start, end) for start, end in part.spans]
                # the whole suspect time of an interval is subtracted, as it may lie in its longest gap
                longest_us = max(
                    max(0, (row["longest_us"] if row else end - start) - overlap_us(out, start, end))
                    for row, start, end in rows_of
                )
                n = sum(row["n"] for row, *_ in rows_of if row)
                at = dict.fromkeys(sorted({*qs, MAX}), longest_us)
                gaps[key][subject, number] = Distribution(n, 0, longest_us, at)
    return gaps
