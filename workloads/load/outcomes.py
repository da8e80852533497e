"""Conversion of the outcome rows that workers write to the spool into Parquet files in the run directory.

The runner moves rows during the load and after it, also those of a killed worker. A record that was sent and got no
final status is ``in_doubt`` in the Parquet file, with ``done_us`` null. The files of a worker W are

* ``part-W~00008-00011.parquet``, closed: the rows of the segments 8 to 11, which are removed from the spool;
* ``part-W~00012.parquet``, open: all other rows (segments from 12, late rows), written anew with each move. Its name is
  ``part-W.parquet`` as long as no segment was moved.

A move takes effect by renaming one file, so a crash at any moment leaves each row in exactly one file that counts:

1. A closed file counts unless a closed file with the same first segment and a later last segment exists.
2. An open file counts only if its first segment follows the last segment of the closed files.

``results.evidence.files.current_parts`` applies the same rules to the files of a run that was killed.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.workloads.load.assignment import (
    ClientAssignment,
    CommitAssignment,
    ConsumeAssignment,
    PipeAssignment,
    ProduceAssignment,
    parse_assignment,
)
from aftershock.workloads.load.spool import CARRIED, POSITIONS, ROWS, UNKNOWN, VALUE_CORRUPT, Status, error_name
from aftershock.workloads.load.transactions import SPOOL as TRANSACTIONS
from aftershock.workloads.load.transactions import transaction_columns

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
        ("worker", pa.string()),
    ]
)
"""Columns of the outcomes: ``bytes`` is the size of a record's value; ``client_rack`` is the client's location."""

TRANSACTION_SCHEMA = pa.schema(
    [
        ("workload", pa.string()),
        ("arm", pa.string()),
        ("client", pa.string()),
        ("worker", pa.string()),
        ("producer_id", pa.int32()),
        ("number", pa.int64()),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("transactional_id", pa.string()),
        ("kafka_producer_id", pa.int64()),
        ("kafka_epoch", pa.int32()),
        ("version", pa.int32()),
        ("intended", pa.string()),
        ("outcome", pa.string()),
        ("commit_asked", pa.bool_()),
        ("due_us", pa.int64()),
        ("begin_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("asked_us", pa.int64()),
        ("done_us", pa.int64()),
        ("error", pa.string()),
    ]
)
"""Columns of the transactions: ``due_us`` is the intended time of the last record, ``asked_us`` when the producer asked
for the end, ``commit_asked`` True if it asked for a commit that was not refused, ``version`` that of the transactions'
protocol (null if the client does not tell)."""

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
        *(("broker_id", "<i2"), ("member", "<u2"), ("topic", "<u2"), ("corrupt", "u1"), ("written", "u1")),
    ]
)
_LATE = np.dtype([("number", "<i8"), *((name, _PRODUCED[name]) for name in _PRODUCED.names or ())])
_FINAL_COLUMNS = ("done_us", "offset", "partition", "leader_epoch", "broker_id")
_NUMBERS = tuple(name for name in _CONSUMED.names or () if name not in {"member", "topic", "corrupt", "written"})

Columns = dict[str, Any]


_PART = re.compile(r"part-(?P<worker>[^~]+)(~(?P<first>\d+)(-(?P<last>\d+))?)?\.parquet")


def is_full(part: Path) -> bool:
    """Return True for a closed file that no later move extends or reads."""
    match = _PART.fullmatch(part.name)
    if match is None or not match["last"]:
        return False
    return int(match["last"]) - int(match["first"]) + 1 >= SEGMENTS_A_GROUP


def move(home: Path, outcomes: Path) -> None:
    """Move the rows of all workers under ``home`` to Parquet files in ``outcomes``, and remove final segments."""
    with _exclusive(home):
        for assignment, spool in _workers(home):
            _move(assignment, spool, outcomes, over=False)


def convert(home: Path, outcomes: Path) -> list[Path]:
    """Write the rows that are still in the spool when the workers have ended; return the workers' open files.

    The spool is left as it is. Files in ``outcomes`` that no longer count are removed.
    """
    outcomes.mkdir(parents=True, exist_ok=True)
    with _exclusive(home):
        for draft in outcomes.glob(".part-*.draft"):
            draft.unlink()  # of a move that was killed
        return [_move(assignment, spool, outcomes, over=True) for assignment, spool in _workers(home)]


@contextmanager
def _exclusive(home: Path) -> Iterator[None]:
    """Lock the spool, because a move may outlive its runner for a moment while another process heals the run."""
    if not home.is_dir():  # another process has saved and removed it
        yield
        return
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _workers(home: Path) -> Iterator[tuple[ClientAssignment, Path]]:
    for file in sorted(home.glob("*/assignment.json")):
        assignment = parse_assignment(file.read_bytes())
        if not isinstance(assignment, PipeAssignment):  # a service writes no rows
            yield assignment, file.parent


def _move(assignment: ClientAssignment, spool: Path, outcomes: Path, *, over: bool) -> Path:
    """Move the final segments of a worker, or none if the load is ``over``; return the open file."""
    name, consumes = assignment.worker, assignment.op == "consume"
    closed, others = [], []
    for path in outcomes.glob("part-*.parquet"):
        match = _PART.fullmatch(path.name)
        if match and match["worker"] == name:
            closed += [(int(match["first"]), int(match["last"]), path)] if match["last"] else []
            others += [path] if not match["last"] else []
    end = max((last + 1 for _, last, _ in closed), default=0)
    numbers = sorted(int(path.stem) for path in spool.glob("*.rows"))
    after = end
    positions: dict[str, dict[str, int]] = {}
    # the worker looks up the latest segment when it restarts, so the latest segment stays
    for number in (number for number in numbers[:-1] if number >= end) if not over else ():
        rows = np.fromfile(spool / f"{number:05}.rows", dtype=_CONSUMED if consumes else _PRODUCED)
        if not (rows["written"] if consumes else rows["ended"]).all():
            break
        after = number + 1
        if isinstance(assignment, ConsumeAssignment) and assignment.group is None:
            for topic, partition in np.unique(rows[["topic", "partition"]]).tolist():
                of_partition = rows["offset"][(rows["topic"] == topic) & (rows["partition"] == partition)]
                of_topic = positions.setdefault(str(topic), {})
                of_topic[str(partition)] = max(int(of_partition.max()) + 1, of_topic.get(str(partition), 0))
    open_file = outcomes / (f"part-{name}~{after:05}.parquet" if after else f"part-{name}.parquet")
    write_whole(open_file, SCHEMA, _columns(assignment, spool, [n for n in numbers if n >= after], late=True))
    if isinstance(assignment, ProduceAssignment) and (rows_of := transaction_columns(assignment, spool)):
        folder = outcomes.parent / TRANSACTIONS
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"part-{name}.parquet", TRANSACTION_SCHEMA, [rows_of])
    if after > end:
        moved = list(range(end, after))
        # a short closed file is extended, so that files do not stay small at a low rate
        first, _, short = next(
            (part for part in closed if part[1] == end - 1 and end - part[0] < SEGMENTS_A_GROUP), (end, end, None)
        )
        room = SEGMENTS_A_GROUP - (end - first)
        groups = chain(_columns(assignment, spool, moved[:room]), _columns(assignment, spool, moved[room:]))
        path = outcomes / f"part-{name}~{first:05}-{after - 1:05}.parquet"
        write_whole(path, SCHEMA, groups, extending=short)
        closed.append((first, after - 1, path))
        if positions:
            path = spool / POSITIONS
            before = json.loads(path.read_bytes()) if path.exists() else {}
            for topic, of_topic in positions.items():
                earlier = before.setdefault(topic, {})
                earlier |= {number: max(at, earlier.get(number, 0)) for number, at in of_topic.items()}
            draft = spool / f".{POSITIONS}"
            draft.write_text(json.dumps(before))
            draft.replace(path)
    for stale in [path for path in others if path != open_file] + [
        path for first, last, path in closed if any(first == other and last < later for other, later, _ in closed)
    ]:
        stale.unlink()
    if not over:
        for number in numbers:
            if number < after:
                (spool / f"{number:05}.rows").unlink()
    return open_file


def write_whole(path: Path, schema: pa.Schema, groups: Iterable[Columns], *, extending: Path | None = None) -> None:
    """Write a Parquet file with a row group for each of ``groups``; columns that a group lacks are null.

    The first row group starts with the rows of the file ``extending``, which may be ``path`` itself. When the function
    returns, the file is on the disk under its name.

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
                    table = pa.Table.from_arrays(arrays, schema=schema)
                    if extending:
                        table = pa.concat_tables([pq.ParquetFile(extending).read(), table])
                        extending = None
                    writer.write_table(table)
                if extending:
                    writer.write_table(pq.ParquetFile(extending).read())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)


def _columns(
    assignment: ClientAssignment, spool: Path, numbers: Sequence[int], *, late: bool = False
) -> Iterator[Columns]:
    if isinstance(assignment, ConsumeAssignment):
        return _consumed(assignment, spool, numbers)
    return _sent(assignment, spool, numbers, late=late)


def _sent(
    assignment: ProduceAssignment | CommitAssignment, spool: Path, numbers: Sequence[int], *, late: bool
) -> Iterator[Columns]:
    """Yield the rows of segments, with ``late`` also the late rows; each record once, although its worker may run.

    A worker copies a row to a late file before it marks the row as CARRIED. So a row without the mark may be in the
    late file too: it counts there if the copy was there before the segments are read, otherwise in its segment.
    """
    copied = _late_rows(spool)["number"] - 1 if late else np.empty(0, dtype="<i8")
    still_open = [np.empty(0, dtype="<i8")]
    for group, begun in _groups(spool, _PRODUCED, "begun", numbers):
        seqs = np.concatenate([np.arange(number * ROWS, (number + 1) * ROWS) for number in group])[: len(begun)]
        here = (begun["ended"] != CARRIED) & ~((begun["ended"] == 0) & np.isin(seqs, copied))
        seqs, rows = seqs[here], begun[here]
        still_open.append(seqs[rows["ended"] == 0])
        if len(rows):
            yield _sent_columns(assignment, seqs, rows)
    if late:
        rows = _late_rows(spool)
        rows = rows[~np.isin(rows["number"] - 1, np.concatenate(still_open))]
        if len(rows):
            yield _sent_columns(assignment, rows["number"] - 1, rows)


def _late_rows(spool: Path) -> np.ndarray[Any, Any]:
    parts = [_read_rows(path, _LATE) for path in sorted(spool.glob("*.late"))]
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=_LATE)
    return rows[rows["number"] > 0]


def _sent_columns(
    assignment: ProduceAssignment | CommitAssignment, seqs: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]
) -> Columns:
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
        **_topic_columns(assignment, seqs % len(assignment.topics)),
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
    return columns


def _consumed(assignment: ConsumeAssignment, spool: Path, numbers: Sequence[int]) -> Iterator[Columns]:
    path = spool / "members"
    members: list[str | None] = []
    for _, rows in _groups(spool, _CONSUMED, "written", numbers):
        members[:] = [None, *(path.read_text().splitlines() if path.exists() else [])]
        yield {
            **_constant_columns(assignment, len(rows)),
            **{name: rows[name].copy() for name in _NUMBERS},
            "group": pa.repeat(pa.scalar(assignment.group, pa.string()), len(rows)),
            "broker_rack": _text_column(rows["broker_id"], assignment.broker_racks.get),
            "member": _text_column(rows["member"], lambda index: members[index]),
            "status": pa.repeat(Status.OK.text, len(rows)),
            "error": _text_column(rows["corrupt"], lambda corrupt: VALUE_CORRUPT if corrupt else None),
            **_topic_columns(assignment, rows["topic"]),
        }


def _constant_columns(assignment: ClientAssignment, rows: int) -> Columns:
    names = ("workload", "arm", "worker", "client")
    columns = {name: pa.repeat(getattr(assignment, name), rows) for name in names}
    columns["op"] = pa.repeat(assignment.side, rows)
    return columns | {"client_rack": pa.repeat(assignment.rack, rows)}


def _topic_columns(assignment: ClientAssignment, numbers: np.ndarray[Any, Any]) -> Columns:
    """Return the topic of each row from its number among the topics of the assignment."""
    topics = assignment.topics
    return {
        "topic": _text_column(numbers, lambda number: topics[number].name),
        "topic_id": _text_column(numbers, lambda number: topics[number].topic_id),
    }


def _groups(
    spool: Path, row: np.dtype[Any], flag: str, numbers: Sequence[int]
) -> Iterator[tuple[Sequence[int], np.ndarray[Any, Any]]]:
    """Yield SEGMENTS_A_GROUP segments at a time, as their numbers and their valid rows; only the last may lack rows."""
    for first in range(0, len(numbers), SEGMENTS_A_GROUP):
        group = numbers[first : first + SEGMENTS_A_GROUP]
        rows = np.concatenate([_read_rows(spool / f"{number:05}.rows", row) for number in group])
        rows = rows[rows[flag] == 1]
        if len(rows):
            yield group, rows


def _read_rows(path: Path, row: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Read rows that the worker may be writing: first flags, then the values, which are written before the flags."""
    first, rows = np.fromfile(path, dtype=row), np.fromfile(path, dtype=row)
    for flag in {"number", "begun", "ended", "written"}.intersection(row.names or ()):
        rows[flag] = first[flag]
    return rows


def _text_column(values: np.ndarray[Any, Any], name: Any) -> pa.Array:
    kinds, index = np.unique(values, return_inverse=True)
    names = pa.array([name(int(kind)) for kind in kinds], pa.string())
    return names.take(pa.array(index))
