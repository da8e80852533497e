"""What SLOs ask beyond the standing measurements: a window by subject (``for each partition``), by slots, or both.

Rules: exact, from the records; nothing is dropped: what doesn't tell its subject is ``unknown``. A record belongs to
the part of the window that its intended time lies in, a success (``.gap``) to the one that it came in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims, Scene
from aftershock.results.measuring.latency import excused
from aftershock.results.measuring.recovery import GAP_SLOT_US, longest
from aftershock.results.measuring.samples import client, ok, slot_of, with_segment
from aftershock.results.measuring.segments import SLOT_US
from aftershock.results.phases import Interval, merged
from aftershock.results.wanted import Cut

UNKNOWN = "unknown"
ASKED = "run int, cut int, op string, metric string, each string"
PARTS = "run int, cut int, slot int, part int, block string, start_us bigint, end_us bigint"
SLICE = ("run", "cut", "client", "subject", "part")


@dataclass(frozen=True)
class Part:
    """Some of a cut's window: all of it, a block of it, or a slot, which alone has a ``start_us``."""

    spans: tuple[Interval, ...]
    start_us: int | None = None
    block: str | None = None


def parts_of(cut: Cut, scene: Scene) -> list[Part]:
    """The parts in order, of blocks first and then of time; a slot that would be cut short is left out."""
    window = scene.windows.get(cut.window, ())
    blocks = scene.blocks if cut.each == "block" else {None: window}
    named = [(name, merged([_shared(a, b) for a in window for b in spans])) for name, spans in blocks.items()]
    if cut.every_us is None:
        return [Part(spans, block=name) for name, spans in named if spans]
    every_us = cut.every_us
    return [
        Part(((start, start + every_us),), start, name)
        for name, spans in named
        for first, last in spans
        for start in range(first, last - every_us + 1, every_us)
    ]


def _shared(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])


def asked(cuts: Mapping[int, Sequence[Cut]], *, of_gaps: bool) -> Iterator[tuple[int, int, str, str, str | None]]:
    """Rows of ``ASKED``, of cuts by run: those of gaps, or those of latencies."""
    for run, some in cuts.items():
        for number, cut in enumerate(some):
            op, kind = cut.metric.split(".", 1)
            if (kind == "gap") == of_gaps:
                yield run, number, op, "latency" if kind == "success" else kind, cut.each


def slots(cuts: Mapping[int, Sequence[Cut]], scenes: Sequence[Scene]) -> Iterator[tuple[object, ...]]:
    """Rows of ``PARTS``: every slot of a second with the parts that reach into it."""
    for run, some in cuts.items():
        for number, cut in enumerate(some):
            for index, part in enumerate(parts_of(cut, scenes[run])):
                for start, end in part.spans:
                    for slot in range(start // SLOT_US, (end - 1) // SLOT_US + 1):
                        yield run, number, slot, index, part.block, start, end


def latencies(samples: DataFrame, asked: DataFrame, parts: DataFrame, dims: Dims) -> DataFrame:
    """``run cut client subject part latency_us n``: the histogram of every slice."""
    of_cuts = samples.where("owed").join(F.broadcast(asked), ["run", "op"])
    placed = _placed(with_segment(of_cuts, "intended_us", dims), "intended_us", parts, "inner")
    took = F.when(
        ok(), F.col("done_us") - F.when(F.col("metric") == "service", F.col("sent_us")).otherwise(F.col("intended_us"))
    )
    took = F.when(F.col("metric") == "lateness", F.col("sent_us") - F.col("intended_us")).otherwise(took)
    metric = F.concat_ws(".", "op", "metric")
    rows = placed.select(
        "run",
        "cut",
        "segment",
        "part",
        metric.alias("metric"),
        client().alias("client"),
        _subject(),
        took.alias("latency_us"),
    )
    hist = rows.groupBy("metric", "segment", *SLICE, "latency_us").agg(F.count("*").alias("n"))
    return excused(hist, dims, "metric", "client").groupBy(*SLICE, "latency_us").agg(F.sum("n").alias("n"))


def gaps(samples: DataFrame, asked: DataFrame, parts: DataFrame) -> DataFrame:
    """``run cut client subject part start_us n longest_us``: every interval of every slice that had a success.

    A subject with successes elsewhere is there with part null, so that its silence can be told.
    """
    good = samples.where(ok() & F.col("done_us").isNotNull())
    placed = _placed(good.join(F.broadcast(asked), ["run", "op"]), "done_us", parts, "left")
    interval = (*SLICE, "start_us", "end_us")
    rows = placed.select("run", "cut", client().alias("client"), _subject(), "part", "start_us", "end_us", "done_us")
    moments = rows.groupBy(*interval, F.expr(f"done_us div {GAP_SLOT_US}").alias("moment")).agg(
        F.min("done_us").alias("first_us"), F.max("done_us").alias("last_us"), F.count("*").alias("n")
    )
    edges = F.greatest(F.col("first_us") - F.col("start_us"), "gap_us", F.col("end_us") - F.col("last_us"))
    return longest(moments, interval).select(*SLICE, "start_us", "n", edges.alias("longest_us"))


def _placed(rows: DataFrame, time: str, parts: DataFrame, how: str) -> DataFrame:
    """``rows`` of cuts with the ``part`` that column ``time`` lies in, its ``block`` and its interval."""
    told = parts.withColumnsRenamed({"run": "part_run", "cut": "part_cut"})
    within = (F.col(time) >= F.col("start_us")) & (F.col(time) < F.col("end_us"))
    here = (F.col("run") == F.col("part_run")) & (F.col("cut") == F.col("part_cut")) & (slot_of(time) == F.col("slot"))
    return rows.join(F.broadcast(told), here & within, how)


def _subject() -> Column:
    """What the row is told apart by, in the words of the verdict."""
    place = F.concat("topic", F.lit("/"), "partition")
    by = {
        "rack": F.concat(F.lit("rack="), "broker_rack"),
        "partition": place,
        "broker": F.concat(F.lit("broker="), "broker_id"),
        "producer": F.concat(F.lit("producer="), "producer_id"),
        "epoch": F.concat(place, F.lit("@"), "leader_epoch"),
        "block": F.lit(""),  # its part says which
    }
    told = F.when(F.col("each").isNull(), F.lit(""))
    for each, subject in by.items():
        told = told.when(F.col("each") == each, F.coalesce(subject, F.lit(UNKNOWN)))
    return told.alias("subject")
