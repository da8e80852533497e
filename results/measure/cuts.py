"""What SLOs ask beyond the standing measurements: a window by subject (``for each partition``), by slots, or both.

Rules: exact, from the records; nothing is dropped: what doesn't tell its subject is ``unknown``. A record belongs to
the part of the window that its intended time lies in, a success (``.gap``) to the one that it came in.

The slices of what SLOs ask for beyond the standing measurements, from the rows of ``cuts.py``. Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import Interval, merged
from aftershock.results.measure.answers import distribution
from aftershock.results.measure.facts import MAX, Cut, Distribution, Slice
from aftershock.results.measure.latency import excused
from aftershock.results.measure.recovery import GAP_SLOT_US, longest
from aftershock.results.measure.samples import client, ok, slot_of, with_segment
from aftershock.results.measure.tables import SLOT_US, Dims, Scene

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


Seen = dict[str, dict[tuple[str, int], Distribution]]
"""By client, subject and part."""


def sliced(
    cuts: Sequence[Cut], rows: Mapping[str, Sequence[Any]], scene: Scene, asked: Sequence[float], qs: Collection[float]
) -> dict[tuple[Cut, str], tuple[Slice, ...]]:
    """All slices of a run, of the answers named ``latencies`` and ``cut_gaps``, by what was asked and the client."""
    found: dict[tuple[Cut, str], tuple[Slice, ...]] = {}
    for number, cut in enumerate(cuts):
        if cut.metric.endswith(".gap"):
            seen = _gaps(cut, [row for row in rows["cut_gaps"] if row["cut"] == number], scene, qs)
        else:
            seen = _latencies([row for row in rows["latencies"] if row["cut"] == number], asked, qs)
        found |= {(cut, client): _slices(cut, scene, some) for client, some in sorted(seen.items())}
    return found


def _slices(cut: Cut, scene: Scene, some: Mapping[tuple[str, int], Distribution]) -> tuple[Slice, ...]:
    """Parts are in the order of ``parts_of``."""
    parts = parts_of(cut, scene)
    return tuple(
        Slice(parts[part].block or subject, parts[part].start_us, one) for (subject, part), one in sorted(some.items())
    )


def _latencies(rows: Iterable[Any], asked: Sequence[float], qs: Collection[float]) -> Seen:
    """The distribution of every slice in which something was due."""
    seen: Seen = defaultdict(dict)
    for row in rows:
        seen[row["client"]][row["subject"], row["part"]] = distribution(row, asked, qs)
    return seen


def _gaps(cut: Cut, rows: Iterable[Any], scene: Scene, qs: Collection[float]) -> Seen:
    """The longest gap of every slice; where a subject had no success, the slice's own length."""
    found: dict[str, dict[str, dict[tuple[int, int], Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row["client"]][row["subject"]][row["part"], row["start_us"]] = row
    if cut.each in (None, "block"):
        for client in _doing(cut.metric.split(".")[0], scene):
            found[client].setdefault("", {})
    return {
        client: {
            (subject, number): _gap(part, number, some, qs)
            for subject, some in subjects.items()
            for number, part in enumerate(parts_of(cut, scene))
        }
        for client, subjects in found.items()
    }


def _doing(op: str, scene: Scene) -> list[str]:
    """The clients that do this."""
    side = {"produce": "produces_to", "consume": "consumes_from", "commit": "commits_to"}[op]
    return [client.key for client in scene.evidence.clients if getattr(client, side)]


def _gap(part: Part, number: int, some: Mapping[tuple[int, int], Any], qs: Collection[float]) -> Distribution:
    seen = [(some.get((number, start)), end - start) for start, end in part.spans]
    longest_us = max(row["longest_us"] if row else length for row, length in seen)
    n = sum(row["n"] for row, _ in seen if row)
    return Distribution(n, 0, longest_us, dict.fromkeys(sorted({*qs, MAX}), longest_us))
