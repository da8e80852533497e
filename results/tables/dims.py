"""Small tables about the runs for joins, the segments of a run's time, and helpers for Arrow columns.

**Segments.** The time of a run is cut into elementary segments, so that Spark finds the segment of each record once
instead of searching every window::

    steady   |---------|                      a segment lies completely inside a window or outside it;
    fault              |--------|  |-----|    a moment lies in exactly one segment, or before the first or after the
    run      |---------------------------|    last one, which is segment null and belongs to no window
    segments |    0    |   1    |2 |  3  |

The start of a segment is inclusive, its end exclusive. Segments also begin and end when a fault kills or freezes a
client. To find the segment of a record, Spark joins records and segments by the second (``slot``).

Segments of the same windows, such as the recoveries between the faults of a soak, are **alike**. Latencies of a run
with more than ``ALIKE_FROM`` segments are counted for the first of the segments that are alike; otherwise the counts of
a day with hundreds of faults would have a row for nearly each record.

**Small tables** hold everything about the runs, so that the same queries judge one run or a hundred. The first column
of each table is ``run``, the run's number as in ``spark/tables.py``. Clients are named ``workload/arm``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.outages import FROZEN, KILLED, client_outages
from aftershock.results.evidence.phases import RUN, Interval, Windows, merged, windows_of
from aftershock.results.evidence.services import stood_still_until_us
from aftershock.results.spark.tables import small

Longs: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]


def longs(column: pa.ChunkedArray, null: int = 0) -> Longs:
    values: Longs = column.cast(pa.int64()).fill_null(null).to_numpy()
    return values


def numbered(column: pa.ChunkedArray) -> tuple[Codes, list[Any]]:
    """Return an integer code for each row of a column, and the list of values by code; null has a code too."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    encoded = column.combine_chunks()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def firsts(keys: Iterable[Longs | Codes]) -> Longs:
    """Return the indices of the rows at which any of the sorted key columns changes its value."""
    rows: Longs = np.flatnonzero(reduce(np.logical_or, (np.diff(key, prepend=~key[:1]) != 0 for key in keys)))
    return rows


def parted(rows: pa.Table, by: str, count: int) -> list[pa.Table]:
    """Split rows by the number in column ``by``, from 0 to ``count`` - 1; rows of one number stay in order."""
    columns = rows.drop_columns(by)
    if count == 1:
        return [columns]
    number = longs(rows[by])
    order = np.argsort(number, kind="stable")
    edges, ordered = np.searchsorted(number[order], np.arange(count + 1)).tolist(), columns.take(order)
    return [ordered.slice(first, last - first) for first, last in pairwise(edges)]


SLOT_US = 1_000_000
ALIKE_FROM = 200


@dataclass(frozen=True)
class Segments:
    """Segments of a run's time; segment i lies between the times ``cuts[i]`` and ``cuts[i + 1]``."""

    cuts: tuple[int, ...]

    @property
    def spans(self) -> tuple[Interval, ...]:
        return tuple(pairwise(self.cuts))

    def of(self, intervals: Iterable[Interval]) -> list[int]:
        """Return the numbers of the segments inside the intervals; an interval starts and ends with a segment."""
        inside = (range(bisect_left(self.cuts, start), bisect_right(self.cuts, end) - 1) for start, end in intervals)
        return sorted({*chain.from_iterable(inside)})

    def slots(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each second with each segment that overlaps it, as ``slot segment start_us end_us``."""
        for number, (start, end) in enumerate(self.spans):
            for slot in range(start // SLOT_US, (end - 1) // SLOT_US + 1):
                yield slot, number, start, end


def segments_of(windows: Windows, moments: Sequence[int] = ()) -> Segments:
    edges = {edge for spans in windows.values() for span in spans for edge in span}
    return Segments(tuple(sorted(edges | {*moments})))


SIDES = ("produce", "consume", "commit", "pipe")
KINDS = ("latency", "service", "lateness", "gap", "transaction")
"""Kinds of measurements by number: done - intended, done - sent, sent - intended, time between two successes."""
Row = Sequence[Any]
LeftOut: TypeAlias = Mapping[tuple[str, str], tuple[Interval, ...]]
"""Suspect times by side and client key."""


@dataclass(frozen=True)
class Scene:
    """A run with its windows and segments; in a second measurement, ``left_out`` are suspect times."""

    evidence: Evidence
    left_out: LeftOut = field(default_factory=dict)

    @cached_property
    def windows(self) -> Windows:
        return windows_of(self.evidence.phases)

    @cached_property
    def held(self) -> dict[tuple[str, str], tuple[Interval, ...]]:
        """Intervals in which a fault had killed or frozen a client, by (produce or consume, client name)."""
        return client_outages(self.evidence, KILLED, FROZEN)

    @cached_property
    def segments(self) -> Segments:
        """Segments between the edges of windows and of the times when clients were killed; empty without phases."""
        if not self.windows:
            return Segments(())
        spans = chain.from_iterable([*self.held.values(), *self.left_out.values()])
        return segments_of(self.windows, [edge for span in spans for edge in span])

    @cached_property
    def windows_by_segment(self) -> list[list[str]]:
        """Sorted names of the windows that contain a segment, by the number of the segment."""
        names: list[list[str]] = [[] for _ in self.segments.spans]
        for name in sorted(self.windows):
            for number in self.segments.of(self.windows[name]):
                names[number].append(name)
        return names

    @cached_property
    def counted_as(self) -> tuple[int, ...]:
        """Number of the segment for which a segment's latencies are counted: the first segment that is alike."""
        if len(self.segments.spans) <= ALIKE_FROM:
            return tuple(range(len(self.segments.spans)))
        held = [(key, {*self.segments.of(spans)}) for key, spans in self.held.items()]
        early = {*self.segments.of([(0, self.judged_from_us)])}
        first: dict[tuple[object, ...], int] = {}
        return tuple(
            first.setdefault((*names, number in early, *(key for key, segments in held if number in segments)), number)
            for number, names in enumerate(self.windows_by_segment)
        )

    @cached_property
    def blocks(self) -> dict[str, tuple[Interval, ...]]:
        """Intervals by block of the plan (a repetition of its faults), ``block=<n>``; ``block=0`` without blocks."""
        phases = self.evidence.phases
        numbers = sorted({phase.block for phase in phases if phase.block}) or [0]
        return {
            f"block={number}": merged([(phase.start_us, phase.end_us) for phase in phases if phase.block == number])
            for number in numbers
        }

    @property
    def judged_from_us(self) -> int:
        """Time from which a run is judged, the end of warm-up; 0 without phases."""
        return self.windows[RUN][0][0] if self.windows.get(RUN) else 0

    def inject_us(self, fault: str) -> int | None:
        window = self.evidence.window_of(fault)
        return window.start_us if window else None

    @property
    def end_us(self) -> int:
        return self.windows[RUN][-1][1] if self.windows.get(RUN) else 0

    @cached_property
    def injects_us(self) -> tuple[int, ...]:
        """Times before the end of the load at which a fault was injected, by the plan or by hand, in order."""
        windows = {phase.fault: phase.start_us for phase in self.evidence.phases if phase.fault}
        intended = [line for line in self.evidence.journal if line["state"] == "intended"]
        by_hand = {line["t_us"] for line in intended if line["fault"] not in windows}
        return tuple(sorted(at_us for at_us in {*windows.values(), *by_hand} if at_us < self.end_us))

    def until_us(self, inject_us: int, calm_us: int) -> int:
        """Return when the event of an inject ends: at the next inject, or at the end of the load.

        Faults that follow each other within ``calm_us`` are one event, because no calm fits between them.
        """
        before_us = inject_us
        for at_us in self.injects_us:
            if at_us - before_us >= calm_us:
                return at_us
            before_us = max(before_us, at_us)
        return self.end_us

    @cached_property
    def recovery_spans(self) -> Segments:
        """Spans between two injects; the first is the time before all injects, the last ends with the load."""
        return Segments(tuple(sorted({-1, *self.injects_us, self.end_us})))

    def heal_us(self, fault: str) -> int | None:
        """Return the time from a fault's inject to the start of its heal; None if the fault does not last."""
        lasts = any(step["id"] == fault and step.get("for_ms") is not None for step in self.evidence.steps)
        inject_us, lines = self.inject_us(fault), self.evidence.journal if lasts else ()
        began = [line["t_us"] for line in lines if (line["fault"], line["state"]) == (fault, "healing")]
        return began[0] - inject_us if began and inject_us is not None else None

    def killed_us(self, client: str) -> tuple[list[int], list[int]]:
        """Return the starts and the ends of the times in which faults had killed the producers of a client."""
        spans = client_outages(self.evidence, KILLED).get(("produce", client), ())
        return [start for start, _ in spans], [end for _, end in spans]

    @cached_property
    def stood_still_until_us(self) -> dict[str, int]:
        """End of the standstill of a service that the run did not outlast, by client (``services.py``)."""
        return stood_still_until_us(self.evidence)

    @property
    def readers(self) -> list[Client]:
        return [client for client in self.evidence.clients if client.consumes_from]

    def due_from_us(self, reader: Client) -> int:
        """Return the time from which a reader must get intended records (end of warm-up for ``latest``, else 0)."""
        return self.judged_from_us if reader.from_latest else 0


@dataclass(frozen=True)
class Dims:
    """Small tables about all runs, for joins with records.

    ===================  ===================================================================================
    slots                ``run slot segment start_us end_us``, the segments that overlap a slot of one second
    counted_slots        the same, with the segment for which latencies are counted (``Scene.counted_as``)
    segment_windows      ``run segment window start_us end_us``, the interval of the window around the segment
    readers              ``run client workload arm topics from_us rack``, must get records intended since from_us
    producers            ``run producer_id client readers``; ``readers`` is their number, null without topics
    audiences            ``run producer_id client``, the readers of at least one topic of the producer
    pipes                ``run client workload arm reads writes group outputs_min outputs_max transactional``
    left_out             ``run op workload arm segment earlier_us inside start_us``, suspect time before a segment
    excused              ``run op workload arm kind segment``, samples that do not measure the client
    ends                 ``run judged_from_us end_us``, of runs with phases
    recovery_spans       ``run second span before start_us until_us``, the times between injects, by second
    ===================  ===================================================================================
    """

    spark: SparkSession
    scenes: tuple[Scene, ...]

    @property
    def evidences(self) -> tuple[Evidence, ...]:
        return tuple(scene.evidence for scene in self.scenes)

    @cached_property
    def slots(self) -> DataFrame:
        rows = ((run, *slot) for run, scene in self._runs() for slot in scene.segments.slots())
        return self.table(rows, "run int, slot int, segment int, start_us bigint, end_us bigint")

    @cached_property
    def counted_slots(self) -> DataFrame:
        rows = (
            (run, slot, scene.counted_as[segment], *span)
            for run, scene in self._runs()
            for slot, segment, *span in scene.segments.slots()
        )
        return self.table(rows, "run int, slot int, segment int, start_us bigint, end_us bigint")

    @cached_property
    def segment_windows(self) -> DataFrame:
        rows = (
            (run, segment, name, *span)
            for run, scene in self._runs()
            for name, spans in scene.windows.items()
            for span in spans
            for segment in scene.segments.of([span])
        )
        return self.table(rows, "run int, segment int, window string, start_us bigint, end_us bigint")

    @cached_property
    def readers(self) -> DataFrame:
        rows = (
            (run, r.key, r.workload, r.arm, r.consumes_from, scene.due_from_us(r), r.consume_rack)
            for run, scene in self._runs()
            for r in scene.readers
        )
        names = "client string, workload string, arm string, topics array<string>"
        return self.table(rows, f"run int, {names}, from_us bigint, rack string")

    @cached_property
    def producers(self) -> DataFrame:
        rows: list[Row] = []
        for run, scene in self._runs():
            clients = {client.key: client for client in scene.evidence.clients}
            for number, key in scene.evidence.producers.items():
                client = clients.get(key)
                readers = sum(reader.reads_from(client) for reader in scene.readers) if client else 0
                rows.append((run, number, key, readers if client and client.produces_to else None))
        return self.table(rows, "run int, producer_id int, client string, readers int")

    @cached_property
    def audiences(self) -> DataFrame:
        rows: list[Row] = []
        for run, scene in self._runs():
            clients = {client.key: client for client in scene.evidence.clients}
            for number, key in scene.evidence.producers.items():
                producer = clients.get(key)
                rows += ((run, number, r.key) for r in scene.readers if producer and r.reads_from(producer))
        return self.table(rows, "run int, producer_id int, client string")

    @cached_property
    def pipes(self) -> DataFrame:
        rows = (
            (run, c.key, c.workload, c.arm, p.reads, p.writes, p.group, p.outputs_min, p.outputs_max, p.transactional)
            for run, scene in self._runs()
            for c in scene.evidence.clients
            if (p := c.pipe)
        )
        names = "run int, client string, workload string, arm string, reads string, writes string, group string"
        return self.table(rows, f"{names}, outputs_min int, outputs_max int, transactional boolean")

    @cached_property
    def excused(self) -> DataFrame:
        # lateness while a fault held the sender; records before a reader at ``latest`` must get any
        rows: list[Row] = []
        for run, scene in self._runs():
            clients = {client.key: (client.workload, client.arm) for client in scene.evidence.clients}
            spans_of = [(side, "lateness", key, spans) for (side, key), spans in scene.held.items()]
            spans_of += [("consume", "latency", r.key, ((0, scene.due_from_us(r)),)) for r in scene.readers]
            for side, kind, key, spans in spans_of:
                segments = scene.segments.of(spans)
                rows += ((run, side, *clients[key], KINDS.index(kind), segment) for segment in segments)
        return self.table(rows, "run int, op string, workload string, arm string, kind int, segment int")

    @cached_property
    def left_out(self) -> DataFrame:
        # segment -1 stands for the time after the last segment
        rows: list[Row] = []
        for run, scene in self._runs():
            clients = {client.key: (client.workload, client.arm) for client in scene.evidence.clients}
            for (side, key), spans in scene.left_out.items():
                earlier_us, suspect = 0, {*scene.segments.of(spans)}
                for segment, (start, end) in enumerate(scene.segments.spans):
                    inside = segment in suspect
                    rows.append((run, side, *clients[key], segment, earlier_us, inside, start))
                    earlier_us += end - start if inside else 0
                rows.append((run, side, *clients[key], -1, earlier_us, False, 0))
        names = "run int, op string, workload string, arm string, segment int, earlier_us bigint, inside boolean"
        return self.table(rows, f"{names}, start_us bigint")

    @cached_property
    def ends(self) -> DataFrame:
        rows = ((run, scene.judged_from_us, scene.end_us) for run, scene in self._runs() if scene.windows.get(RUN))
        return self.table(rows, "run int, judged_from_us bigint, end_us bigint")

    @cached_property
    def recovery_spans(self) -> DataFrame:
        # span 0 is the time before the first inject
        rows = (
            (run, second, span, span == 0, start, end)
            for run, scene in self._runs()
            if scene.injects_us and scene.evidence.recovery_definition > 1
            for second, span, start, end in scene.recovery_spans.slots()
        )
        names = "run int, second int, span int, before boolean"
        return self.table(rows, f"{names}, start_us bigint, until_us bigint")

    def table(self, rows: Iterable[Row], schema: str) -> DataFrame:
        return small(self.spark, rows, schema)

    def _runs(self) -> Iterator[tuple[int, Scene]]:
        return enumerate(self.scenes)


def dims(spark: SparkSession, runs: Sequence[Evidence], left_out: Mapping[str, LeftOut] | None = None) -> Dims:
    """Return the small tables about all ``runs``, which are numbered in the given order."""
    times = left_out or {}
    return Dims(spark, tuple(Scene(evidence, times.get(str(evidence.run["run_id"]), {})) for evidence in runs))
