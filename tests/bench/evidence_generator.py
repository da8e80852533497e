"""Evidence of any size, as the harness would have left it: four producers, a hundred partitions, a reader of all.

Sixty seconds as in ``tests/unit/results/evidence_factory.py``, whose documents it takes: 50 ms more on a rack's links,
a broker killed (a third of the partitions stands still for three seconds, a few records end in doubt), leaders rotated.
Only the rate is another. Seeded, and a row group at a time: a hundred million rows need no more memory than one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, Made, S, clean_run
from aftershock.workloads.load.outcomes import SCHEMA, write_whole

PRODUCERS, PARTITIONS = 4, 100
ARMS = tuple(f"arm{number}" for number in range(PRODUCERS))
STEP = 32_700  # records of each producer at a time: whole turns of the partitions, a row group of the reader's
DOUBTFUL = 50  # records of each producer that the kill left without an answer
LOG_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("producer_id", pa.int32()),
        ("seq", pa.int64()),
    ]
)

Numbers = np.ndarray[Any, Any]
Columns = dict[str, Any]


class Step(NamedTuple):
    """Some records of all producers: two-dimensional, a row each producer; ``delivered_us`` to the reader."""

    seq: Numbers
    intended_us: Numbers
    sent_us: Numbers
    done_us: Numbers
    delivered_us: Numbers

    @property
    def doubtful(self) -> Numbers:
        """Those whose acknowledgement never came: the first that were due when the broker died."""
        due = np.searchsorted(self.intended_us[0], 26 * S)
        found = np.zeros(self.seq.shape, bool)
        if 0 < due < self.seq.shape[1]:
            found[:, due : due + DOUBTFUL] = True
        return found


def generate(home: Path, outcomes: int) -> Path:
    """A run directory at ``home`` with about that many outcome rows: half of them produced, half consumed."""
    each = max(STEP, outcomes // (2 * PRODUCERS) // STEP * STEP)
    made = _documents(clean_run(columns()))
    made.write(home)
    for stale in home.glob("outcomes/*.parquet"):
        stale.unlink()
    for number in range(PRODUCERS):
        write_whole(home / f"outcomes/part-{number}.parquet", SCHEMA, _produced(number, each))
    write_whole(home / "outcomes/part-reader.parquet", SCHEMA, _consumed(each))
    write_whole(home / "log/part-0.parquet", LOG_SCHEMA, _logged(each))
    parts = sorted(path.relative_to(home).as_posix() for path in home.glob("*/*.parquet"))
    (home / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": parts}))
    return home


def _documents(made: Made) -> Made:
    """The factory's, for our clients; its rows are not ours."""
    arms = {arm: {"client": "reference", "settings": {}, "client_rack": None} for arm in ARMS}
    produce, consume = (made.timeline["workloads"][0][side] for side in ("produce", "consume"))
    made.timeline["workloads"] = [
        {"name": "orders", "produce": produce, "arms": arms},
        {"name": "reader", "consume": consume, "arms": {"all": arms[ARMS[0]]}},
    ]
    made.timeline["topics"][0]["partitions"] = PARTITIONS
    made.timeline["slo"] = [{"text": text, "at": None} for text in ("produce.latency p99.9 < 10s", "lost == 0")]
    made.run["topics"][0]["partitions"] = PARTITIONS
    made.run["topics"][0]["assignment"] = {str(partition): [1, 2, 3] for partition in range(PARTITIONS)}
    made.run["producers"] = [{"producer_id": id_, "workload": "orders", "arm": arm} for id_, arm in enumerate(ARMS)]
    partitions = [["orders", partition] for partition in range(PARTITIONS)]
    assigned = {"t_us": 0, "arm": "all", "event": "assigned", "workload": "reader", "partitions": partitions}
    made.events = [assigned]
    made.produce, made.consume, made.log = [], [], []
    return made


def _steps(each: int) -> Iterator[Step]:
    """Every record once, in the order of its turn. A partition's deliveries are in the order of its offsets."""
    rng = np.random.default_rng(7)
    reached = np.zeros(PARTITIONS, np.int64)
    for first in range(0, each, STEP):
        seq = np.broadcast_to(np.arange(first, first + STEP), (PRODUCERS, STEP))
        intended = seq * (LOAD_END_S * S) // each + np.arange(PRODUCERS)[:, None]
        sent = intended + 100 + rng.exponential(80, seq.shape).astype(np.int64)
        taken = (5000 * rng.lognormal(0, 0.3, seq.shape)).astype(np.int64)
        done = intended + taken + _slower_us(intended, seq % PARTITIONS)
        lanes = _in_lanes(done + 2000)
        rank = np.arange(len(lanes))[:, None]
        lanes = np.maximum(np.maximum.accumulate(lanes - rank, axis=0), reached + 1) + rank
        reached = lanes[-1]
        yield Step(seq, intended, sent, done, _from_lanes(lanes))


def _in_lanes(rows: Numbers) -> Numbers:
    """By partition: a column each, its records in the order of their offsets."""
    return rows.reshape(PRODUCERS, -1, PARTITIONS).transpose(1, 0, 2).reshape(-1, PARTITIONS)


def _from_lanes(lanes: Numbers) -> Numbers:
    return lanes.reshape(-1, PRODUCERS, PARTITIONS).transpose(1, 0, 2).reshape(PRODUCERS, -1)


def _slower_us(intended: Numbers, partition: Numbers) -> Numbers:
    link = np.where((intended >= 16 * S) & (intended < 24 * S), 50_000, 0)
    waits = (partition % 3 == 0) & (intended >= 26 * S) & (intended < 29 * S)
    moved = np.where((intended >= 36 * S) & (intended < 37 * S), 10_000, 0)
    return np.where(waits, 29 * S - intended, link + moved)


def _offset(producer: Numbers | int, seq: Numbers) -> Numbers:
    return seq // PARTITIONS * PRODUCERS + producer


def _produced(number: int, each: int) -> Iterator[Columns]:
    for step in _steps(each):
        doubtful = step.doubtful[number]
        unknown = np.where(doubtful, -1, 0)
        seq, intended = step.seq[number], step.intended_us[number]
        yield _facts("orders", ARMS[number], "produce", STEP) | {
            "producer_id": np.full(STEP, number),
            "seq": seq.copy(),
            "partition": seq % PARTITIONS,
            "offset": np.where(doubtful, -1, _offset(number, seq)),
            "leader_epoch": unknown,
            "broker_id": np.where(doubtful, -1, 1 + seq % 3),
            "broker_rack": _one_of(seq % 3, ["a", "b", "c"]),
            "client_rack": _one_of(np.zeros(STEP, np.int64), ["a"]),
            "intended_us": intended.copy(),
            "deadline_us": intended + 30 * S,
            "sent_us": step.sent_us[number].copy(),
            "done_us": np.where(doubtful, -1, step.done_us[number]),
            "attempts": np.ones(STEP, np.int64),
            "bytes": np.full(STEP, 1000),
            "status": _one_of(doubtful.astype(np.int64), ["ok", "in_doubt"]),
        }


def _consumed(each: int) -> Iterator[Columns]:
    rows = PRODUCERS * STEP
    for step in _steps(each):
        seq, producer = _in_lanes(step.seq).ravel(), _in_lanes(_producer(step)).ravel()
        offset = _offset(producer, seq)
        yield _facts("reader", "all", "consume", rows) | {
            "producer_id": producer,
            "seq": seq,
            "partition": seq % PARTITIONS,
            "offset": offset,
            "leader_epoch": np.zeros(rows, np.int64),
            "broker_id": 1 + seq % 3,
            "broker_rack": _one_of(seq % 3, ["a", "b", "c"]),
            "client_rack": _one_of(np.zeros(rows, np.int64), ["b"]),
            "high_watermark": offset + 1 + seq % 7,
            "intended_us": _in_lanes(step.intended_us).ravel(),
            "done_us": _in_lanes(step.delivered_us).ravel(),
            "bytes": np.full(rows, 1000),
            "status": _one_of(np.zeros(rows, np.int64), ["ok"]),
        }


def _logged(each: int) -> Iterator[Columns]:
    rows = PRODUCERS * STEP
    for step in _steps(each):
        seq, producer = _in_lanes(step.seq).ravel(), _in_lanes(_producer(step)).ravel()
        named = {"topic": _one_of(np.zeros(rows, np.int64), ["orders"])}
        named |= {"topic_id": _one_of(np.zeros(rows, np.int64), ["t1"])}
        yield named | {
            "partition": seq % PARTITIONS,
            "offset": _offset(producer, seq),
            "producer_id": producer,
            "seq": seq,
        }


def _producer(step: Step) -> Numbers:
    return np.broadcast_to(np.arange(PRODUCERS)[:, None], step.seq.shape)


def _facts(workload: str, arm: str, op: str, rows: int) -> Columns:
    same = {"workload": workload, "arm": arm, "client": "reference", "op": op, "topic": "orders", "topic_id": "t1"}
    return {name: _one_of(np.zeros(rows, np.int64), [value]) for name, value in same.items()}


def _one_of(index: Numbers, values: list[str]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(index))
