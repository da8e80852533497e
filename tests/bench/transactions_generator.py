"""Evidence of many transactions: four producers, a hundred partitions, and a reader of committed records.

A transaction has ten records, five in each of two partitions, and every fifth is aborted. As in ``evidence_generator``,
the documents are those of the factory, rows are seeded, and a row group is written at a time. Each half of a
transaction is a batch of five offsets, and a marker follows it in the log.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from aftershock.harness.kafka.batches import SCHEMA as BATCHES
from aftershock.results.spark.tables import columns
from aftershock.tests.bench.evidence_generator import (
    ARMS,
    LOG_SCHEMA,
    PARTITIONS,
    PRODUCERS,
    Columns,
    Numbers,
    one_of,
    row_facts,
    several_producers,
)
from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, S, clean_run
from aftershock.workloads.load.outcomes import SCHEMA, TRANSACTION_SCHEMA, write_whole

RECORDS, IN_BATCH = 10, 5
STEP = PARTITIONS * IN_BATCH * 65  # records of each producer at a time: whole turns of the partitions
ABORTED_EVERY = 5
KAFKA_ID = 1_000  # Kafka's id of the first producer
SAMPLE_US, WAIT_S = S // 2, 60
METRICS = pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())])


class Step(NamedTuple):
    """Some records of all producers: two-dimensional, a row each producer."""

    seq: Numbers
    intended_us: Numbers
    done_us: Numbers
    ended_us: Numbers
    """When the record's transaction ended."""

    @property
    def partition(self) -> Numbers:
        return self.seq // IN_BATCH % PARTITIONS

    @property
    def offset(self) -> Numbers:
        turn = self.seq // (IN_BATCH * PARTITIONS)
        producer = np.arange(PRODUCERS)[:, None]
        return (turn * PRODUCERS + producer) * (IN_BATCH + 1) + self.seq % IN_BATCH

    @property
    def aborted(self) -> Numbers:
        return aborts(self.seq // RECORDS)


def aborts(number: Numbers) -> Numbers:
    """True for the transactions that are aborted."""
    return number % ABORTED_EVERY == ABORTED_EVERY - 2


def generate_transactions(home: Path, transactions: int) -> Path:
    """Write a run directory at ``home`` with about that many transactions, in ten times as many records."""
    each = max(STEP, transactions * RECORDS // PRODUCERS // STEP * STEP)
    made = several_producers(clean_run(columns()), each)
    writer, reader = made.timeline["workloads"]
    writer["produce"]["transaction"] = {"records": RECORDS, "abort": 1 / ABORTED_EVERY, "timeout_ms": 10_000}
    reader["consume"]["isolation"] = "read_committed"
    made.run["stable_offsets"] = ["orders"]
    made.timeline["slo"] = [
        {"text": text, "at": None}
        for text in ("lost == 0", "torn == 0", "transaction.latency p99 < 5s", "stable_offset.lag max < 5s")
    ]
    made.write(home)
    for stale in home.glob("outcomes/*.parquet"):
        stale.unlink()
    for table in ("transactions", "batches"):
        (home / table).mkdir()
    for number in range(PRODUCERS):
        write_whole(home / f"outcomes/part-{number}.parquet", SCHEMA, _produced(number, each))
        write_whole(home / f"transactions/part-{number}.parquet", TRANSACTION_SCHEMA, _transactions(number, each))
    write_whole(home / "outcomes/part-reader.parquet", SCHEMA, _consumed(each))
    write_whole(home / "log/part-0.parquet", LOG_SCHEMA, _logged(each))
    write_whole(home / "batches/part-0.parquet", BATCHES, _batches(each))
    write_whole(home / "metrics/part-1.parquet", METRICS, [_stable_offsets(each)])
    parts = sorted(path.relative_to(home).as_posix() for path in home.glob("*/*.parquet"))
    (home / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": parts}))
    return home


def _steps(each: int) -> Iterator[Step]:
    """Yield every record once, in the order of its turn."""
    rng = np.random.default_rng(7)
    for first in range(0, each, STEP):
        seq = np.broadcast_to(np.arange(first, first + STEP), (PRODUCERS, STEP))
        intended = seq * (LOAD_END_S * S) // each + np.arange(PRODUCERS)[:, None]
        done = intended + 100 + (5000 * rng.lognormal(0, 0.3, seq.shape)).astype(np.int64)
        of_transaction = done.reshape(PRODUCERS, -1, RECORDS).max(axis=2) + 3_000
        yield Step(seq, intended, done, np.repeat(of_transaction, RECORDS, axis=1))


def _in_lanes(rows: Numbers) -> Numbers:
    """Return a column for each partition, with its records in the order of their offsets."""
    turns = rows.reshape(PRODUCERS, -1, PARTITIONS, IN_BATCH)
    return turns.transpose(1, 0, 3, 2).reshape(-1, PARTITIONS)


def _produced(number: int, each: int) -> Iterator[Columns]:
    for step in _steps(each):
        seq, intended, partition = step.seq[number], step.intended_us[number], step.partition[number]
        yield row_facts("orders", ARMS[number], "produce", STEP) | {
            "producer_id": np.full(STEP, number),
            "seq": seq.copy(),
            "partition": partition,
            "offset": step.offset[number],
            "leader_epoch": np.zeros(STEP, np.int64),
            "broker_id": 1 + partition % 3,
            "broker_rack": one_of(partition % 3, ["a", "b", "c"]),
            "client_rack": one_of(np.zeros(STEP, np.int64), ["a"]),
            "intended_us": intended.copy(),
            "deadline_us": intended + 30 * S,
            "sent_us": intended + 50,
            "done_us": step.done_us[number],
            "attempts": np.ones(STEP, np.int64),
            "bytes": np.full(STEP, 1000),
            "status": one_of(np.zeros(STEP, np.int64), ["ok"]),
        }


def _consumed(each: int) -> Iterator[Columns]:
    reached = np.zeros(PARTITIONS, np.int64)
    for step in _steps(each):
        lanes = np.maximum.accumulate(np.maximum(_in_lanes(step.ended_us) + 2_000, reached), axis=0)
        reached = lanes[-1]
        kept = ~_in_lanes(step.aborted).ravel()
        producer = np.broadcast_to(np.arange(PRODUCERS)[:, None], step.seq.shape)
        seq, offset, partition = (_in_lanes(rows).ravel()[kept] for rows in (step.seq, step.offset, step.partition))
        rows = len(seq)
        yield row_facts("reader", "all", "consume", rows) | {
            "producer_id": _in_lanes(producer).ravel()[kept],
            "seq": seq,
            "partition": partition,
            "offset": offset,
            "leader_epoch": np.zeros(rows, np.int64),
            "broker_id": 1 + partition % 3,
            "broker_rack": one_of(partition % 3, ["a", "b", "c"]),
            "client_rack": one_of(np.zeros(rows, np.int64), ["b"]),
            "high_watermark": offset + IN_BATCH + 1,
            "intended_us": _in_lanes(step.intended_us).ravel()[kept],
            "done_us": lanes.ravel()[kept],
            "bytes": np.full(rows, 1000),
            "status": one_of(np.zeros(rows, np.int64), ["ok"]),
        }


def _logged(each: int) -> Iterator[Columns]:
    rows = PRODUCERS * STEP
    for step in _steps(each):
        producer = np.broadcast_to(np.arange(PRODUCERS)[:, None], step.seq.shape)
        yield _topic(rows) | {
            "partition": _in_lanes(step.partition).ravel(),
            "offset": _in_lanes(step.offset).ravel(),
            "producer_id": _in_lanes(producer).ravel(),
            "seq": _in_lanes(step.seq).ravel(),
        }


def _batches(each: int) -> Iterator[Columns]:
    """Yield each batch and the marker behind it."""
    for step in _steps(each):
        firsts = (slice(None), slice(None, None, IN_BATCH))
        first, partition, seq = (rows[firsts].ravel() for rows in (step.offset, step.partition, step.seq))
        producer = np.repeat(np.arange(PRODUCERS), STEP // IN_BATCH)
        number = seq // RECORDS
        rows = len(first)
        for is_marker in (False, True):
            offset = first + IN_BATCH if is_marker else first
            marks = one_of(aborts(number).astype(np.int64), ["commit", "abort"]) if is_marker else None
            yield _topic(rows) | {
                "partition": partition,
                "first_offset": offset,
                "last_offset": offset if is_marker else first + IN_BATCH - 1,
                "leader_epoch": np.zeros(rows, np.int64),
                "kafka_producer_id": KAFKA_ID + producer,
                "kafka_epoch": np.zeros(rows, np.int64),
                "base_sequence": None if is_marker else seq % (1 << 31),
                "transactional": np.ones(rows, bool),
                "marker": marks,
                "coordinator_epoch": np.zeros(rows, np.int64) if is_marker else None,
            }


def _transactions(producer: int, each: int) -> Iterator[Columns]:
    for step in _steps(each):
        first = step.seq[producer][::RECORDS]
        rows, number = len(first), first // RECORDS
        due = step.intended_us[producer][RECORDS - 1 :: RECORDS]
        is_aborted = aborts(number)
        words = is_aborted.astype(np.int64)
        ended = step.ended_us[producer][::RECORDS]
        named = {"workload": "orders", "arm": ARMS[producer], "client": "reference"}
        named |= {"worker": f"orders-{ARMS[producer]}-produce", "transactional_id": f"t-{producer}"}
        yield {name: one_of(np.zeros(rows, np.int64), [value]) for name, value in named.items()} | {
            "producer_id": np.full(rows, producer),
            "number": number,
            "first_seq": first.copy(),
            "last_seq": first + RECORDS - 1,
            "kafka_producer_id": np.full(rows, KAFKA_ID + producer),
            "kafka_epoch": np.zeros(rows, np.int64),
            "version": np.full(rows, 1),
            "intended": one_of(words, ["commit", "abort"]),
            "outcome": one_of(words, ["committed", "aborted"]),
            "commit_asked": ~is_aborted,
            "due_us": due.copy(),
            "begin_us": step.intended_us[producer][::RECORDS].copy(),
            "sent_us": step.intended_us[producer][::RECORDS] + 50,
            "asked_us": ended - 2_000,
            "done_us": ended.copy(),
            "error": None,
        }


def _stable_offsets(each: int) -> Columns:
    """Return samples of last stable offsets that are a transaction behind."""
    times_us = np.arange(0, (LOAD_END_S + WAIT_S) * S, SAMPLE_US)
    last = each // (IN_BATCH * PARTITIONS) * PRODUCERS * (IN_BATCH + 1)
    end = np.minimum(last * times_us // (LOAD_END_S * S), last)
    stable = np.where(end < last, np.maximum(end - IN_BATCH - 1, 0), end)
    names = [f"stable_offset.{which}/orders/{number}" for number in range(PARTITIONS) for which in ("stable", "end")]
    return {
        "t_us": np.tile(times_us, len(names)),
        "broker_id": np.repeat(1 + np.arange(len(names)) // 2 % 3, len(times_us)),
        "name": one_of(np.repeat(np.arange(len(names)), len(times_us)), names),
        "value": np.tile(np.concatenate([stable, end]), PARTITIONS).astype(float),
    }


def _topic(rows: int) -> Columns:
    return {name: one_of(np.zeros(rows, np.int64), [text]) for name, text in (("topic", "orders"), ("topic_id", "t1"))}
