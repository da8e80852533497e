"""Conversion of the files of outcome rows that each worker wrote into one Parquet file for each worker.

The runner converts the files after the load, also those of a killed worker. A record that was sent and got no final
status is ``in_doubt`` in the Parquet file, with ``done_us`` null.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.workloads.load.assignment import (
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    ProduceAssignment,
    parse_assignment,
)
from aftershock.workloads.load.spool import UNKNOWN, VALUE_CORRUPT, Status, error_name

SCHEMA = pa.schema(
    [
        ("workload", pa.string()),
        ("arm", pa.string()),
        ("client", pa.string()),
        ("op", pa.string()),
        ("producer_id", pa.int32()),
        ("seq", pa.int64()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("group", pa.string()),
        ("member", pa.string()),
        ("leader_epoch", pa.int32()),
        ("broker_id", pa.int32()),
        ("broker_rack", pa.string()),
        ("client_rack", pa.string()),
        ("high_watermark", pa.int64()),
        ("intended_us", pa.int64()),
        ("deadline_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("done_us", pa.int64()),
        ("attempts", pa.int32()),
        ("bytes", pa.int32()),
        ("status", pa.string()),
        ("error", pa.string()),
    ]
)
"""Columns of the outcomes: ``bytes`` is the size of a record's value; ``client_rack`` is the client's location."""

SEGMENTS_A_GROUP = 8  # 131,072 rows: the row group that Spark read best, and 8 MiB at a time in the runner

_PRODUCED = np.dtype(
    [
        *(("intended_us", "<i8"), ("deadline_us", "<i8"), ("sent_us", "<i8"), ("bytes", "<i4"), ("begun", "u1")),
        ("pad", "V3"),
        *(("done_us", "<i8"), ("offset", "<i8"), ("partition", "<i4"), ("leader_epoch", "<i4"), ("code", "<i2")),
        *(("broker_id", "<i2"), ("attempts", "<u2"), ("status", "u1"), ("ended", "u1")),
    ]
)
_CONSUMED = np.dtype(
    [
        *(("seq", "<i8"), ("intended_us", "<i8"), ("done_us", "<i8"), ("offset", "<i8"), ("high_watermark", "<i8")),
        *(("producer_id", "<i4"), ("partition", "<i4"), ("leader_epoch", "<i4"), ("bytes", "<i4")),
        *(("broker_id", "<i2"), ("member", "<u2"), ("corrupt", "u1"), ("written", "u1"), ("pad", "V2")),
    ]
)
_FINAL_COLUMNS = ("done_us", "offset", "partition", "leader_epoch", "broker_id")
_NUMBERS = tuple(name for name in _CONSUMED.names or () if name not in {"member", "corrupt", "written", "pad"})

Columns = dict[str, Any]


def convert(home: Path, outcomes: Path) -> list[Path]:
    """Convert the outcome rows of all workers under ``home`` into ``part-<worker>.parquet`` files in ``outcomes``."""
    outcomes.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in sorted(home.glob("*/assignment.json")):
        assignment, spool = parse_assignment(file.read_bytes()), file.parent
        groups = _consumed(assignment, spool) if isinstance(assignment, ConsumeAssignment) else _sent(assignment, spool)
        paths.append(outcomes / f"part-{assignment.worker}.parquet")
        write_whole(paths[-1], SCHEMA, groups)
    return paths


def write_whole(path: Path, schema: pa.Schema, groups: Iterator[Columns]) -> None:
    """Write a Parquet file with a row group for each of ``groups``; columns that a group lacks are null.

    An incomplete Parquet file has a name that starts with a dot, which Spark ignores. Of the encodings measured, the
    one used (zstd-1, DELTA_BINARY_PACKED integers, dictionaries for strings) was the smallest and fastest to read.
    """
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            with pq.ParquetWriter(
                file,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[field.name for field in schema if pa.types.is_string(field.type)],
                column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            ) as writer:
                for columns in groups:
                    rows = len(next(iter(columns.values())))
                    arrays = []
                    for field in schema:
                        values = columns.get(field.name)
                        if values is None:
                            arrays.append(pa.nulls(rows, field.type))
                        elif isinstance(values, np.ndarray) and values.dtype.kind == "i":
                            arrays.append(pa.array(values, field.type, mask=values < 0))
                        else:
                            arrays.append(pa.array(values, field.type))
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _sent(assignment: ProduceAssignment | CommitAssignment, spool: Path) -> Iterator[Columns]:
    first_seq = 0
    for rows in _groups(spool, _PRODUCED, "begun"):
        seqs = np.arange(first_seq, first_seq + len(rows))
        first_seq += len(rows)
        ended = rows["ended"] == 1
        final = {name: np.where(ended, rows[name], UNKNOWN) for name in _FINAL_COLUMNS}
        status = np.where(ended, rows["status"], Status.IN_DOUBT)
        columns = {
            **_constant_columns(assignment, len(rows)),
            **final,
            "producer_id": np.full(len(rows), assignment.producer_id),
            "seq": seqs,
            **{name: rows[name].copy() for name in ("intended_us", "deadline_us", "sent_us", "bytes")},
            "broker_rack": _text_column(final["broker_id"], assignment.broker_racks.get),
            "attempts": np.where(ended & (rows["attempts"] > 0), rows["attempts"].astype("i4"), UNKNOWN),
            "status": _text_column(status, lambda value: Status(value).text),
            "error": _text_column(np.where(ended, rows["code"], 0), error_name),
        }
        if isinstance(assignment, CommitAssignment):
            # partition and offset follow from a commit's number unless the client reported them
            reported = final["offset"] >= 0
            columns |= {
                "group": _text_column(seqs % assignment.groups, assignment.group_of),
                "partition": np.where(reported, final["partition"], assignment.partition_of(seqs)),
                "offset": np.where(reported, final["offset"], assignment.offset_of(seqs)),
                "bytes": np.full(len(seqs), UNKNOWN),
            }
        yield columns


def _consumed(assignment: ConsumeAssignment, spool: Path) -> Iterator[Columns]:
    path = spool / "members"
    members = [None, *(path.read_text().splitlines() if path.exists() else [])]
    for rows in _groups(spool, _CONSUMED, "written"):
        yield {
            **_constant_columns(assignment, len(rows)),
            **{name: rows[name].copy() for name in _NUMBERS},
            "group": [assignment.group] * len(rows),
            "broker_rack": _text_column(rows["broker_id"], assignment.broker_racks.get),
            "member": _text_column(rows["member"], lambda index: members[index]),
            "status": [Status.OK.text] * len(rows),
            "error": _text_column(rows["corrupt"], lambda corrupt: VALUE_CORRUPT if corrupt else None),
        }


def _constant_columns(assignment: Assignment, rows: int) -> Columns:
    names = ("workload", "arm", "client", "op", "topic", "topic_id")
    columns = {name: [getattr(assignment, name)] * rows for name in names}
    return columns | {"client_rack": [assignment.rack] * rows}


def _groups(spool: Path, row: np.dtype[Any], flag: str) -> Iterator[np.ndarray[Any, Any]]:
    segments = sorted(spool.glob("*.rows"))
    for first in range(0, len(segments), SEGMENTS_A_GROUP):
        parts = [np.fromfile(path, dtype=row) for path in segments[first : first + SEGMENTS_A_GROUP]]
        rows = np.concatenate([part[part[flag] == 1] for part in parts])
        if len(rows):
            yield rows


def _text_column(values: np.ndarray[Any, Any], name: Any) -> pa.Array:
    kinds, index = np.unique(values, return_inverse=True)
    names = pa.array([name(int(kind)) for kind in kinds], pa.string())
    return names.take(pa.array(index))
