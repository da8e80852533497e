"""Evidence of any size, as the harness would have left it: four producers, a hundred partitions, a reader of all.

Sixty seconds as in ``tests/unit/results/evidence_factory.py``, whose documents it takes: 50 ms more on a rack's links,
a broker killed (a third of the partitions stands still for three seconds, a few records end in doubt), leaders rotated.
Only the rate is another. Seeded, and a row group at a time: a hundred million rows need no more memory than one.

``generate_day`` writes the evidence of a soak instead: one producer, one reader, six partitions, and a fault every few
minutes (30 ms on the links, a killed broker, a frozen broker, in turn).
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
    made = several_producers(clean_run(columns()), each)
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


def several_producers(made: Made, each: int) -> Made:
    """The factory's, for our clients; its rows are not ours."""
    arms = {arm: {"client": "reference", "settings": {}, "client_rack": None} for arm in ARMS}
    produce, consume = (made.timeline["workloads"][0][side] for side in ("produce", "consume"))
    produce["rate_per_s"] = each / LOAD_END_S
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
        yield row_facts("orders", ARMS[number], "produce", STEP) | {
            "producer_id": np.full(STEP, number),
            "seq": seq.copy(),
            "partition": seq % PARTITIONS,
            "offset": np.where(doubtful, -1, _offset(number, seq)),
            "leader_epoch": unknown,
            "broker_id": np.where(doubtful, -1, 1 + seq % 3),
            "broker_rack": one_of(seq % 3, ["a", "b", "c"]),
            "client_rack": one_of(np.zeros(STEP, np.int64), ["a"]),
            "intended_us": intended.copy(),
            "deadline_us": intended + 30 * S,
            "sent_us": step.sent_us[number].copy(),
            "done_us": np.where(doubtful, -1, step.done_us[number]),
            "attempts": np.ones(STEP, np.int64),
            "bytes": np.full(STEP, 1000),
            "status": one_of(doubtful.astype(np.int64), ["ok", "in_doubt"]),
        }


def _consumed(each: int) -> Iterator[Columns]:
    rows = PRODUCERS * STEP
    for step in _steps(each):
        seq, producer = _in_lanes(step.seq).ravel(), _in_lanes(_producer(step)).ravel()
        offset = _offset(producer, seq)
        yield row_facts("reader", "all", "consume", rows) | {
            "producer_id": producer,
            "seq": seq,
            "partition": seq % PARTITIONS,
            "offset": offset,
            "leader_epoch": np.zeros(rows, np.int64),
            "broker_id": 1 + seq % 3,
            "broker_rack": one_of(seq % 3, ["a", "b", "c"]),
            "client_rack": one_of(np.zeros(rows, np.int64), ["b"]),
            "high_watermark": offset + 1 + seq % 7,
            "intended_us": _in_lanes(step.intended_us).ravel(),
            "done_us": _in_lanes(step.delivered_us).ravel(),
            "bytes": np.full(rows, 1000),
            "status": one_of(np.zeros(rows, np.int64), ["ok"]),
        }


def _logged(each: int) -> Iterator[Columns]:
    rows = PRODUCERS * STEP
    for step in _steps(each):
        seq, producer = _in_lanes(step.seq).ravel(), _in_lanes(_producer(step)).ravel()
        named = {"topic": one_of(np.zeros(rows, np.int64), ["orders"])}
        named |= {"topic_id": one_of(np.zeros(rows, np.int64), ["t1"])}
        yield named | {
            "partition": seq % PARTITIONS,
            "offset": _offset(producer, seq),
            "producer_id": producer,
            "seq": seq,
        }


def _producer(step: Step) -> Numbers:
    return np.broadcast_to(np.arange(PRODUCERS)[:, None], step.seq.shape)


def row_facts(workload: str, arm: str, op: str, rows: int) -> Columns:
    same = {"workload": workload, "arm": arm, "client": "reference", "op": op, "topic": "orders", "topic_id": "t1"}
    return {name: one_of(np.zeros(rows, np.int64), [value]) for name, value in same.items()}


def one_of(index: Numbers, values: list[str]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(index))


DAY_PARTITIONS, DAY_STEP = 6, 120_000
DAY_FAULTS = (("latency", 5), ("kill", 5), ("pause", 3))  # kind and length in seconds, in turn
DAY_STEADY_S, DAY_FIRST_S = 6, 16


def generate_day(home: Path, hours: float, rate_per_s: int = 200, faults_per_h: int = 20, *slos: str) -> Path:
    """A run directory at ``home`` of a soak of ``hours``; by default 24 hours have 480 faults and 34.6 M outcomes."""
    made, length_s = clean_run(columns(), rate=rate_per_s), DAY_FIRST_S + round(hours * 3600)
    length_s += -length_s % DAY_PARTITIONS  # whole turns of the partitions, at any rate
    faults = []
    for number in range(round(hours * faults_per_h)):
        kind, for_s = DAY_FAULTS[number % len(DAY_FAULTS)]
        faults.append((f"{kind}-1-{number + 1}", kind, DAY_FIRST_S + number * 3600 // faults_per_h, for_s))
    _soak_documents(made, faults, length_s)
    made.timeline["slo"] = [{"text": text, "at": None} for text in slos or ("produce.latency p99.9 < 10s", "lost == 0")]
    made.write(home)
    for stale in home.glob("*/*.parquet"):
        stale.unlink()
    starts_s = {kind: np.array([at for _, of, at, _ in faults if of == kind]) for kind, _ in DAY_FAULTS}
    for name, schema in (("outcomes/produce", SCHEMA), ("outcomes/consume", SCHEMA), ("log/part", LOG_SCHEMA)):
        groups = _soak_rows(name, length_s * rate_per_s, rate_per_s, starts_s)
        write_whole(home / f"{name}-0.parquet", schema, groups)
    samples = {"host.cpu_busy": 0.6, "host.steal": 0.01, "host.tick_late_us": 800.0}
    samples |= {f"client.sent_bytes/client_a-k{broker}/orders-baseline-produce": 40_000.0 for broker in (1, 2, 3)}
    names = np.tile([*samples], length_s)
    t_us = np.repeat(np.arange(length_s) * S, len(samples))
    values = np.tile([*samples.values()], length_s)
    counter = np.char.startswith(names, "client.")
    values = np.where(counter, values * (t_us // S), values)
    write_whole(
        home / "metrics/part-0.parquet",
        pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())]),
        [{"t_us": t_us, "name": pa.array(names), "value": values}],
    )
    parts = sorted(path.relative_to(home).as_posix() for path in home.glob("*/*.parquet"))
    (home / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": parts}))
    return home


def _soak_documents(made: Made, faults: list[tuple[str, str, int, int]], length_s: int) -> None:
    """Replace the phases, journal and steps of the factory's run by those of ``faults`` (id, kind, start_s, for_s)."""
    kill = next(line for line in made.journal if line["kind"] == "kill")["targets"]
    latency = next(line for line in made.journal if line["kind"] == "latency")["targets"]
    models = {"latency": ("latency-1", latency), "kill": ("kill-1", kill), "pause": ("kill-1", kill)}
    witnesses = {line["fault"]: line["witness"] for line in made.journal if line["state"] == "witnessed"}
    steps = {step["id"]: step for step in made.timeline["steps"]}
    phases = [("warmup", None, 0, DAY_STEADY_S), ("steady", None, DAY_STEADY_S, DAY_FIRST_S)]
    journal, new_steps, calm_from_s = [], [], DAY_FIRST_S
    for fault, kind, start_s, for_s in faults:
        model, targets = models[kind]
        if calm_from_s < start_s:
            phases.append(("recovery", None, calm_from_s, start_s))
        calm_from_s = start_s + for_s
        phases.append(("fault", fault, start_s, calm_from_s))
        line = {"fault": fault, "kind": kind, "targets": targets, "undo": {"verb": "none", "args": {}}}
        times = {"intended": 0, "injected": 40_000, "witnessed": 300_000, "healing": for_s * S - 100_000}
        for state, at_us in (times | {"healed": for_s * S}).items():
            witness = {"witness": witnesses[model]} if state == "witnessed" else {}
            journal.append(line | {"t_us": start_s * S + at_us, "state": state} | witness)
        at_ms = (start_s - DAY_FIRST_S) * 1000
        own = {"id": fault, "entry": f"{kind}-1", "kind": kind, "at_ms": at_ms, "for_ms": for_s * 1000}
        new_steps.append(steps[model] | own)
    phases.append(("recovery", None, calm_from_s, length_s))
    made.phases = [
        {"name": name, "fault": fault, "block": 0, "start_us": start_s * S, "end_us": end_s * S}
        | ({"entry": fault.rpartition("-")[0]} if fault else {})
        for name, fault, start_s, end_s in phases
    ]
    made.journal, made.timeline["steps"] = journal, new_steps
    made.timeline["length_ms"] = (length_s - DAY_FIRST_S) * 1000
    arms = {"baseline": made.timeline["workloads"][0]["arms"]["baseline"]}
    made.timeline["workloads"][0]["arms"] = arms
    made.run["producers"], made.events = made.run["producers"][:1], made.events[:1]
    made.run["marks"]["load_end_us"] = length_s * S
    made.produce, made.consume, made.log, made.metrics = [], [], [], []


def _soak_rows(name: str, records: int, rate_per_s: int, starts_s: dict[str, Numbers]) -> Iterator[Columns]:
    """Yield the row groups of one file; every file draws the same records."""
    rng = np.random.default_rng(7)
    reached = np.zeros(DAY_PARTITIONS, np.int64)
    for first in range(0, records, DAY_STEP):
        rows = min(DAY_STEP, records - first) // DAY_PARTITIONS * DAY_PARTITIONS
        seq = np.arange(first, first + rows)
        partition, offset, intended = seq % DAY_PARTITIONS, seq // DAY_PARTITIONS, seq * S // rate_per_s
        sent = intended + 100 + rng.exponential(80, rows).astype(np.int64)
        done = intended + (5000 * rng.lognormal(0, 0.3, rows)).astype(np.int64)
        since_us = {}  # the time since the last fault of each kind began
        for kind, starts in starts_s.items():
            last = np.searchsorted(starts * S, intended, "right") - 1
            since_us[kind] = np.where(last < 0, 10**12, intended - (starts * S)[np.maximum(last, 0)])
        done += np.where(since_us["latency"] < 5 * S, 30_000, 0)
        done += np.where((partition % 3 == 0) & (since_us["kill"] < 3 * S), 3 * S - since_us["kill"], 0)
        done += np.where((partition == 0) & (since_us["pause"] < 3 * S), 3 * S - since_us["pause"], 0)
        doubtful = since_us["kill"] < 3 * S // rate_per_s  # the first three records of each kill
        lanes = (done + 2000).reshape(-1, DAY_PARTITIONS)
        rank = np.arange(len(lanes))[:, None]
        lanes = np.maximum(np.maximum.accumulate(lanes - rank, axis=0), reached + 1) + rank
        reached, delivered = lanes[-1], lanes.ravel()
        shared = {"producer_id": np.zeros(rows, np.int64), "seq": seq, "partition": partition, "offset": offset}
        if name.startswith("log"):
            texts = {"topic": "orders", "topic_id": "t1"}
            yield {key: one_of(np.zeros(rows, np.int64), [text]) for key, text in texts.items()} | shared
            continue
        op = name.partition("/")[2]
        produced = op == "produce"
        unknown = doubtful & produced
        columns_of = row_facts("orders", "baseline", op, rows) | shared
        columns_of |= {
            "leader_epoch": np.where(unknown, -1, 0),
            "broker_id": np.where(unknown, -1, 1 + partition % 3),
            "broker_rack": one_of(partition % 3, ["a", "b", "c"]),
            "client_rack": one_of(np.zeros(rows, np.int64), ["a" if produced else "b"]),
            "intended_us": intended,
            "done_us": np.where(unknown, -1, done) if produced else delivered,
            "bytes": np.full(rows, 1000),
            "status": one_of(unknown.astype(np.int64), ["ok", "in_doubt"]),
            "offset": np.where(unknown, -1, offset),
        }
        if produced:
            columns_of |= {"sent_us": sent, "deadline_us": intended + 30 * S, "attempts": np.ones(rows, np.int64)}
        yield columns_of
