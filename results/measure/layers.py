"""What judging leaves for questions that come later, as Parquet in the run's directory: silver and gold.

Silver is the exact histogram of latencies, of which every figure of latency in the verdict is a sum; gold is the
verdict's checks. Rules: one file each, whole or not there; written here and not by Spark, whose workers may stand where
this folder does not. A histogram is as long as there are different latencies, never as the evidence.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import ArrayType, DataType, StructType

from aftershock.results.checks.check import Check
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.schema import CHECKS, LATENCY_HIST
from aftershock.results.measure.tables import Longs, Scene, firsts, longs, numbered

SILVER, GOLD = "silver/latency.parquet", "gold/checks.parquet"

_ORDER = ("metric", "client", "segment", "client_rack", "broker_rack", "latency_us")
_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}


def write_silver(rows: pa.Table, evidence: Evidence) -> None:
    """A run's histogram (``latency.py: silver``), as ``measure`` hands it over. In order: the same file."""
    _write(evidence.home / SILVER, _timed(_summed(rows), Scene(evidence)).cast(_schema(LATENCY_HIST)))


def write_gold(home: Path, checks: Sequence[Check]) -> None:
    """The checks of the run at ``home``."""
    _write(home / GOLD, pa.Table.from_pylist([check.to_json() for check in checks], _schema(CHECKS)))


def _summed(rows: pa.Table) -> pa.Table:
    """In order, and each latency once, whatever bins it was seen in."""
    ranks = [_rank(rows[name]) for name in reversed(_ORDER)]
    order = np.lexsort(ranks)
    first = firsts(rank[order] for rank in ranks)
    ordered = rows.take(order)
    once = ordered.take(first)
    for name in ("n", "bytes"):
        sums = np.add.reduceat(longs(ordered[name]), first) if len(first) else first
        told = pa.array(sums, mask=once[name].is_null().to_numpy())
        once = once.set_column(once.column_names.index(name), name, told)
    return once


def _rank(column: pa.ChunkedArray) -> Longs:
    """Numbers in the order of the values, null the last."""
    if pa.types.is_integer(column.type):
        return longs(column, np.iinfo(np.int64).max)
    code, values = numbered(column)
    ordered = sorted(values, key=lambda one: (one is None, one))
    return np.array([ordered.index(one) for one in values], np.int64)[code]


def _timed(rows: pa.Table, scene: Scene) -> pa.Table:
    """With each segment's times and windows in the place of a join that everybody would have to write."""
    segments = scene.segments
    named = [
        sorted(name for name, spans in scene.windows.items() if number in segments.of(spans))
        for number in range(len(segments.spans))
    ]
    told = pa.table(
        {
            "start_us": pa.array([start for start, _ in segments.spans], pa.int64()),
            "end_us": pa.array([end for _, end in segments.spans], pa.int64()),
            "windows": pa.array(named, pa.list_(pa.string())),
        }
    ).take(rows["segment"])
    columns = {name: rows[name] for name in rows.column_names} | {name: told[name] for name in told.column_names}
    return pa.table([columns[name] for name in LATENCY_HIST.names], names=LATENCY_HIST.names)


def _schema(schema: StructType) -> pa.Schema:
    return pa.schema([(field.name, _kind(field.dataType)) for field in schema])


def _kind(kind: DataType) -> pa.DataType:
    return pa.list_(_kind(kind.elementType)) if isinstance(kind, ArrayType) else _ARROW[kind.simpleString()]


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content, whole = pa.BufferOutputStream(), [field.name for field in rows.schema if pa.types.is_integer(field.type)]
    pq.write_table(
        rows,
        content,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in rows.column_names if name not in whole],
        column_encoding=dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    )
    write_whole(path, content.getvalue().to_pybytes())
