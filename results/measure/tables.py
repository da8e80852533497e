"""Columns of what Spark gave back, as NumPy has them: whole numbers without nulls.

The time of a run cut into elementary segments, so that a record's windows are found once, and not once a window.

::

    steady   |---------|                      a segment lies wholly in a window or wholly outside it;
    fault              |--------|  |-----|    a moment lies in exactly one, or before the first and after the last,
    run      |---------------------------|    which is segment null and no window's
    segments |    0    |   1    |2 |  3  |

Rules: start inclusive, end exclusive. Whatever else may part time (a fault's hold on a client, the moment from which a
reader owes its records) cuts too. A record finds its segment by its slot of a second, in a small table.

What is known of the runs besides their records, as small tables for joins: the windows, the clients, the faults.

Rules: nothing of one run is compiled into an expression, so that the same queries judge one run or a hundred. Every
table begins with ``run``, the run's number as in ``tables.py``. Clients are named ``workload/arm``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from aftershock.results.checks.permits import FROZEN, KILLED, held, lossy
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN, Interval, Windows, merged, windows_of
from aftershock.results.spark.tables import small

Longs: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def longs(column: pa.ChunkedArray, null: int = 0) -> Longs:
    """The values, ``null`` in the place of those that are none."""
    found: Longs = column.cast(pa.int64()).fill_null(null).to_numpy()
    return found


def numbered(column: pa.ChunkedArray) -> tuple[Longs, list[Any]]:
    """Each value's number, and the values by number; null is one of them."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    told = column.combine_chunks()
    return told.indices.to_numpy().astype(np.int64), told.dictionary.to_pylist()


def firsts(keys: Iterable[Longs]) -> Longs:
    """Where the values of some columns, together in order, are others than in the row before."""
    found: Longs = np.flatnonzero(np.any([np.diff(key, prepend=~key[:1]) for key in keys], axis=0))
    return found


def parted(rows: pa.Table, by: str, count: int) -> list[pa.Table]:
    """The rows of each number in column ``by``, from 0 to ``count`` - 1, in the order that they had."""
    rest = rows.drop_columns(by)
    if count == 1:
        return [rest]
    number = longs(rows[by])
    order = np.argsort(number, kind="stable")
    edges, ordered = np.searchsorted(number[order], np.arange(count + 1)).tolist(), rest.take(order)
    return [ordered.slice(first, last - first) for first, last in pairwise(edges)]


SLOT_US = 1_000_000


@dataclass(frozen=True)
class Segments:
    """The cut points of one run, in order: segment i lies between the i-th and the next."""

    cuts: tuple[int, ...]

    @property
    def spans(self) -> tuple[Interval, ...]:
        """The segments in order."""
        return tuple(pairwise(self.cuts))

    def of(self, intervals: Iterable[Interval]) -> list[int]:
        """The numbers of the segments that lie in any of some intervals, whose ends are cut points."""
        inside = (range(bisect_left(self.cuts, start), bisect_right(self.cuts, end) - 1) for start, end in intervals)
        return sorted({*chain.from_iterable(inside)})

    def slots(self) -> Iterator[tuple[int, int, int, int]]:
        """``slot segment start_us end_us``: every slot of a second with the segments that reach into it."""
        for number, (start, end) in enumerate(self.spans):
            for slot in range(start // SLOT_US, (end - 1) // SLOT_US + 1):
                yield slot, number, start, end


def segments_of(windows: Windows, moments: Sequence[int] = ()) -> Segments:
    """The segments between the edges of all windows, and between other moments that part time."""
    edges = {edge for spans in windows.values() for span in spans for edge in span}
    return Segments(tuple(sorted(edges | {*moments})))


SIDES = ("produce", "consume", "commit")
KINDS = ("latency", "service", "lateness", "gap")
"""What is measured of each, by number: done - intended, done - sent, sent - intended, and the time between two."""
Row = Sequence[Any]


@dataclass(frozen=True)
class Scene:
    """One run's times: its windows, its segments, when warm-up ended, when the load did, and who was held when."""

    evidence: Evidence

    @cached_property
    def windows(self) -> Windows:
        """Every window's intervals."""
        return windows_of(self.evidence.phases)

    @cached_property
    def held(self) -> dict[tuple[str, str], tuple[Interval, ...]]:
        """When a fault held a client: by (side, client)."""
        return held(self.evidence, KILLED, FROZEN)

    @cached_property
    def segments(self) -> Segments:
        """Cut at the edges of windows and holds; none without phases, for nothing is judged by time then."""
        if not self.windows:
            return Segments(())
        return segments_of(self.windows, [edge for spans in self.held.values() for span in spans for edge in span])

    @cached_property
    def blocks(self) -> dict[str, tuple[Interval, ...]]:
        """The times of each block, by what a slice of it is called; a run without blocks is one, of number 0."""
        phases = self.evidence.phases
        numbers = sorted({phase.block for phase in phases if phase.block}) or [0]
        return {
            f"block={number}": merged([(each.start_us, each.end_us) for each in phases if each.block == number])
            for number in numbers
        }

    @property
    def judged_from_us(self) -> int:
        """When warm-up ended; without phases any moment does."""
        return self.windows[RUN][0][0] if self.windows.get(RUN) else 0

    def inject_us(self, fault: str) -> int | None:
        """When a fault began, None if it never did."""
        window = self.evidence.window_of(fault)
        return window.start_us if window else None

    @property
    def end_us(self) -> int:
        """When the load ended."""
        return self.windows[RUN][-1][1] if self.windows.get(RUN) else 0

    @property
    def readers(self) -> list[Client]:
        """The clients that consume."""
        return [client for client in self.evidence.clients if client.consumes_from]

    def owed_from_us(self, reader: Client) -> int:
        """From ``latest`` it owes what was intended after warm-up: when in warm-up it began is nobody's promise."""
        return self.judged_from_us if reader.from_latest else 0

    @property
    def lossy(self) -> set[str]:
        """Producing clients that may lose what was acknowledged, by what they, their topic or the plan ask for."""
        return {client.key for client in self.evidence.clients if lossy(self.evidence, client)}

    @property
    def topics(self) -> dict[str, str | None]:
        """What each client produces to."""
        return {client.key: client.produces_to for client in self.evidence.clients}


@dataclass(frozen=True)
class Dims:
    """The small tables.

    ===================  ===================================================================================
    windows              ``run window start_us end_us``, a row each interval
    slots                ``run slot segment start_us end_us``: which segments reach into a slot of a second
    segments             ``run segment start_us end_us``
    segment_windows      ``run segment window start_us end_us``: the window's interval that it lies in
    readers              ``run client workload arm topic from_us rack``: owed what is intended from then on
    producers            ``run producer_id client topic lossy``
    excused              ``run op workload arm kind segment``: samples that are no measurement of the client
    assigned             ``run client at_us``: when partitions were assigned to a consumer
    ends                 ``run judged_from_us end_us``, of runs with phases
    ===================  ===================================================================================
    """

    spark: SparkSession
    scenes: tuple[Scene, ...]

    @property
    def evidences(self) -> tuple[Evidence, ...]:
        """The runs in the order of their numbers."""
        return tuple(one.evidence for one in self.scenes)

    @cached_property
    def windows(self) -> DataFrame:
        """As above."""
        rows = (
            (run, name, *span) for run, one in self._runs() for name, spans in one.windows.items() for span in spans
        )
        return self.table(rows, "run int, window string, start_us bigint, end_us bigint")

    @cached_property
    def slots(self) -> DataFrame:
        """As above."""
        rows = ((run, *slot) for run, one in self._runs() for slot in one.segments.slots())
        return self.table(rows, "run int, slot int, segment int, start_us bigint, end_us bigint")

    @cached_property
    def segments(self) -> DataFrame:
        """As above."""
        rows = ((run, number, *span) for run, one in self._runs() for number, span in enumerate(one.segments.spans))
        return self.table(rows, "run int, segment int, start_us bigint, end_us bigint")

    @cached_property
    def segment_windows(self) -> DataFrame:
        """As above."""
        rows = (
            (run, segment, name, *span)
            for run, one in self._runs()
            for name, spans in one.windows.items()
            for span in spans
            for segment in one.segments.of([span])
        )
        return self.table(rows, "run int, segment int, window string, start_us bigint, end_us bigint")

    @cached_property
    def readers(self) -> DataFrame:
        """As above."""
        rows = (
            (run, each.key, each.workload, each.arm, each.consumes_from, one.owed_from_us(each), each.consume_rack)
            for run, one in self._runs()
            for each in one.readers
        )
        names = ("client", "workload", "arm", "topic")
        told = ", ".join(["run int", *[f"{name} string" for name in names], "from_us bigint", "rack string"])
        return self.table(rows, told)

    @cached_property
    def producers(self) -> DataFrame:
        """As above."""
        rows = (
            (run, id_, key, one.topics.get(key), key in one.lossy)
            for run, one in self._runs()
            for id_, key in one.evidence.producers.items()
        )
        return self.table(rows, "run int, producer_id int, client string, topic string, lossy boolean")

    @cached_property
    def excused(self) -> DataFrame:
        """The lateness of what was due while a fault held its sender; what a reader from ``latest`` was not owed."""
        return self.table(self._excused(), "run int, op string, workload string, arm string, kind int, segment int")

    def _excused(self) -> Iterator[Row]:
        for run, one in self._runs():
            clients = {client.key: (client.workload, client.arm) for client in one.evidence.clients}
            of_all = [(side, "lateness", key, spans) for (side, key), spans in one.held.items()]
            of_all += [("consume", "latency", each.key, ((0, one.owed_from_us(each)),)) for each in one.readers]
            for side, kind, key, spans in of_all:
                numbers = one.segments.of(spans)
                yield from ((run, side, *clients[key], KINDS.index(kind), segment) for segment in numbers)

    @cached_property
    def assigned(self) -> DataFrame:
        """As above."""
        rows = (
            (run, reader.key, at_us)
            for run, one in self._runs()
            for reader in one.readers
            for at_us in one.evidence.assigned_us(reader.arm, reader.workload)
        )
        return self.table(rows, "run int, client string, at_us bigint")

    @cached_property
    def ends(self) -> DataFrame:
        """As above."""
        rows = ((run, one.judged_from_us, one.end_us) for run, one in self._runs() if one.windows.get(RUN))
        return self.table(rows, "run int, judged_from_us bigint, end_us bigint")

    def table(self, rows: Iterable[Row], schema: str) -> DataFrame:
        """Another small table."""
        return small(self.spark, rows, schema)

    def _runs(self) -> Iterator[tuple[int, Scene]]:
        return enumerate(self.scenes)


def dims(spark: SparkSession, runs: Sequence[Evidence]) -> Dims:
    """The small tables of ``runs``, numbered in their order."""
    return Dims(spark, tuple(Scene(one) for one in runs))
