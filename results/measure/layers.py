"""Silver and gold tables, which are Parquet files in the run directory for later queries.

Silver is the exact histogram of latencies, gold is the table of the verdict's checks. The Spark driver process writes
both tables, because Spark's executors may have no access to the run directory.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.schema import CHECKS, LATENCY_HIST
from aftershock.results.model.check import Check
from aftershock.results.tables.dims import Codes, Longs, Scene, firsts, longs, numbered

SILVER, GOLD = "silver/latency.parquet", "gold/checks.parquet"

ROW_GROUP = 131_072
_ORDER = ("metric", "client", "segment", "client_rack", "broker_rack", "latency_us")


def write_silver(rows: pa.Table, evidence: Evidence) -> None:
    """Write a run's latency histogram to ``silver/``, sorted, so that the same rows give the same file."""
    # sort the rows and sum the bins of each latency
    ranks = [_rank(rows[name]) for name in reversed(_ORDER)]
    order = np.lexsort(ranks)
    first = firsts(rank[order] for rank in ranks)
    del ranks  # of a day's rows they would be a gigabyte
    distinct = rows.take(order[first])
    for name in ("n", "bytes"):
        sums = np.add.reduceat(longs(rows[name])[order], first) if len(first) else first
        values = pa.array(sums, mask=distinct[name].is_null().to_numpy())
        distinct = distinct.set_column(distinct.column_names.index(name), name, values)
    # the times and windows of segments spare queries a join; of segments that are alike the last one ends
    scene = Scene(evidence)
    spans = scene.segments.spans
    ends_us = {number: end_us for number, (_, end_us) in zip(scene.counted_as, spans, strict=True)}
    times = pa.table(
        {
            "start_us": pa.array([start for start, _ in spans], pa.int64()),
            "end_us": pa.array([ends_us.get(number) for number in range(len(spans))], pa.int64()),
            "windows": pa.array(scene.windows_by_segment, pa.list_(pa.string())),
        }
    )
    schema = to_arrow_schema(LATENCY_HIST)

    def groups() -> Iterator[pa.Table]:
        for start in range(0, distinct.num_rows, ROW_GROUP):
            part = distinct.slice(start, ROW_GROUP)
            columns = dict(zip(times.column_names, times.take(part["segment"]).columns, strict=True))
            columns |= dict(zip(part.column_names, part.columns, strict=True))
            yield pa.table([columns[name] for name in LATENCY_HIST.names], names=LATENCY_HIST.names).cast(schema)

    _write(evidence.home / SILVER, schema, groups())


def write_gold(home: Path, checks: Sequence[Check]) -> None:
    schema = to_arrow_schema(CHECKS)
    rows = [
        check.to_json() | {"explained": [f"{part.n}: {part.cause}" for part in check.explained]} for check in checks
    ]
    _write(home / GOLD, schema, [pa.Table.from_pylist(rows, schema)])


def _rank(column: pa.ChunkedArray) -> Longs | Codes:
    if pa.types.is_integer(column.type):
        return longs(column, np.iinfo(np.int64).max)
    code, values = numbered(column)
    ordered = sorted(values, key=lambda value: (value is None, value))
    return np.array([ordered.index(value) for value in values], np.int32)[code]


def _write(path: Path, schema: pa.Schema, groups: Iterable[pa.Table]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pa.BufferOutputStream()
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    with pq.ParquetWriter(
        content,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in schema.names if name not in integers],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
    ) as writer:
        for group in groups:
            writer.write_table(group)
    write_whole(path, content.getvalue().to_pybytes())
