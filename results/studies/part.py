"""Part of a KIP's trial, which is one judged run, and the figures by which claims about the KIP are judged.

All figures are computed from stored evidence, so judging the run again gives the same figures. A block (repetition of
the plan's faults) whose fault was not witnessed or met no traffic is left out for both compared clients.

A run without blocks is cut into slices of time of equal length, and each slice gives one value of a figure. Confidence
intervals of means are Student's, over slices of time. Neighbouring slices are correlated where a queue grows, so a mean
over slices describes only the time of this run, and the interval of a quantile comes from resampling whole slices (a
block bootstrap), never records. The rules of claims were registered with these intervals, also for the ratio of paired
blocks, so they are kept; ``aftershock compare`` takes the autocorrelation of blocks into account.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray
from scipy.special import stdtrit

from aftershock.results.compare.blocks import Block, parse, proven_blocks
from aftershock.results.compare.comparison import MARGIN
from aftershock.results.compare.statistics import paired, seed_of
from aftershock.results.evidence.files import read_json, read_lines
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.studies.statement import Estimate, ratio_of

SLICE_US, STEADY_SLICE_US = 10_000_000, 6_000_000
RESAMPLES = 2_000

Floats = NDArray[np.float64]


class Slice(NamedTuple):
    """Slice of time in microseconds of the run, start inclusive, end exclusive."""

    start_us: int
    end_us: int


def slices(start_us: int, end_us: int, every_us: int = SLICE_US) -> tuple[Slice, ...]:
    """Return the whole slices that fit into a span of time; a remainder at its end is left out."""
    starts = range(start_us, end_us - every_us + 1, every_us)
    return tuple(Slice(start, start + every_us) for start in starts)


def mean(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """Return the mean over slices of time, with Student's interval if there are two slices or more."""
    count = len(values)
    if count < 2:  # noqa: PLR2004
        return Estimate(values[0] if values else None, None, None, count, unit, confidence)
    array = np.asarray(values, float)
    error = float(array.std(ddof=1)) / math.sqrt(count)
    return _students_interval(float(array.mean()), error, count - 1, count, unit, confidence)


def share(hits: Sequence[bool], confidence: float = 0.95) -> Estimate:
    """Return the share of units with a hit, in percent: their mean with Student's interval, and the number of hits."""
    return replace(mean([100.0 * hit for hit in hits], "%", confidence), hits=sum(hits))


def ratio(ours: Floats, theirs: Floats, confidence: float = 0.95) -> Estimate:
    """Return the geometric mean of the ratios ours / theirs, which must be above 0, paired by slice of time."""
    log = mean(list(np.log(ours) - np.log(theirs)), "times", confidence)
    value, low, high = (None if number is None else math.exp(number) for number in (log.value, log.low, log.high))
    return Estimate(value, low, high, log.n, "times", confidence)


def slope(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """Return the growth of a figure per slice of time, by least squares; None with fewer than three slices."""
    count = len(values)
    if count < 3:  # noqa: PLR2004
        return Estimate(None, None, None, count, unit, confidence)
    times, array = np.arange(count, dtype=float), np.asarray(values, float)
    offsets = times - times.mean()
    growth = float(offsets @ array / (offsets @ offsets))
    residuals = array - array.mean() - growth * offsets
    error = math.sqrt(float(residuals @ residuals) / (count - 2) / float(offsets @ offsets))
    return _students_interval(growth, error, count - 2, count, unit, confidence)


def _students_interval(value: float, error: float, freedom: int, n: int, unit: str, confidence: float) -> Estimate:
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return Estimate(value, value - reach, value + reach, n, unit, confidence)


def bootstrap(
    groups: Sequence[Sequence[Floats]],
    figure: Callable[[Sequence[Floats]], float | None],
    unit: str,
    seed: str,
    confidence: float = 0.95,
) -> Estimate:
    """Return a figure of several clients' latencies, with an interval from resampling whole slices of time.

    ``groups`` holds the latencies of each client by slice of time; ``figure`` maps each client's latencies to the
    figure.
    """
    count = min(map(len, groups), default=0)
    value = figure([np.concatenate(group) for group in groups]) if count else None
    if value is None or count < 2:  # noqa: PLR2004
        return Estimate(value, None, None, count, unit, confidence)
    random = np.random.default_rng(seed_of(seed))
    figures = []
    for _ in range(RESAMPLES):
        places = random.integers(0, count, count)
        figures.append(figure([np.concatenate([group[place] for place in places]) for group in groups]))
    numbers = [number for number in figures if number is not None]
    tail = (1 - confidence) / 2
    low, high = (float(np.quantile(numbers, q)) for q in (tail, 1 - tail))
    return Estimate(value, low, high, count, unit, confidence)


def quantile(values: Floats, q: float) -> float:
    """Return the nearest-rank quantile, infinity if the quantile is censored, NaN without values."""
    if not len(values):
        return math.nan
    return float(np.sort(values)[max(0, math.ceil(q * len(values)) - 1)])


def median(values: Floats) -> float:
    """Return the median, of an even number of values the mean of the two in the middle.

    It is infinity if half of the values or more are censored, NaN without values.
    """
    return float(np.median(values)) if len(values) else math.nan


PLANNED: Mapping[str, tuple[str, Any]] = {
    "acks": ("acks", "all"),
    "enable.idempotence": ("idempotence", True),
    "linger.ms": ("linger_ms", 5),
    "delivery.timeout.ms": ("deadline_ms", 120_000),
}
"""Settings of Kafka's producer that ``produce`` has, with their names there and their defaults (``ProducerConfig``)."""


def client_settings(workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return the clients of a run's workloads, with each setting that differs from Kafka's default.

    For example ``moves: reference with linger.ms=0, delivery.timeout.ms=20000``. What only some arms set follows by
    arm.
    """
    return "; ".join(
        f"{names}: {text}" for text, names in _by_text({w["name"]: _clients(w) for w in workloads}).items()
    )


def _clients(workload: Mapping[str, Any]) -> str:
    arms, produce = workload["arms"], workload.get("produce")
    shared = {}
    if produce:
        shared = {name: produce[key] for name, (key, default) in PLANNED.items() if produce[key] != default}
    own = [arm["settings"] for arm in arms.values()]
    shared |= {name: value for name, value in own[0].items() if all(other.get(name) == value for other in own)}
    further = {
        name: _listed({key: value for key, value in arm["settings"].items() if shared.get(key) != value})
        for name, arm in arms.items()
    }
    kinds = " and ".join(dict.fromkeys(arm["client"] for arm in arms.values()))
    text = f"{kinds} with {_listed(shared) or 'default settings'}"
    return text + "".join(f", {names} also {listed}" for listed, names in _by_text(further).items() if listed)


def _by_text(texts: Mapping[str, str]) -> dict[str, str]:
    """Map each text to the names, as one text, that have it."""
    return {text: " and ".join(name for name in texts if texts[name] == text) for text in dict.fromkeys(texts.values())}


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value).strip(chr(34))}" for name, value in settings.items())


def clients_under_trial(workloads: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """Return the arms that consume, or if none does, that commit or produce, each with its client."""
    for operation in ("consume", "commit", "produce"):
        if found := [workload for workload in workloads if workload.get(operation)]:
            return frozenset((name, arm["client"]) for workload in found for name, arm in workload["arms"].items())
    return frozenset()


class Latencies(NamedTuple):
    """Records of a client by latency, in whole ms from the sending to the acknowledgement; ``failed`` have none."""

    counts: Mapping[int, int]
    failed: int

    @property
    def n(self) -> int:
        return sum(self.counts.values()) + self.failed

    def quantile(self, q: float) -> float:
        """Return the nearest-rank quantile, infinity if it is a failed record, NaN without records."""
        rank, seen = max(1, math.ceil(q * self.n)), 0
        for ms in sorted(self.counts):
            seen += self.counts[ms]
            if seen >= rank:
                return float(ms)
        return math.inf if self.failed else math.nan

    def mean(self) -> float:
        """Return the mean of the acknowledged records, NaN without any."""
        acked = self.n - self.failed
        return sum(ms * count for ms, count in self.counts.items()) / acked if acked else math.nan


@dataclass(frozen=True)
class Part:
    """Judged run of a trial; clients are named ``workload/arm``, and measures as in ``aftershock compare --metric``."""

    name: str
    run: JudgedRun

    @property
    def home(self) -> Path:
        return self.run.home

    @property
    def client_settings(self) -> str:
        return client_settings(self.run.timeline.get("workloads", ()))

    @property
    def clients_under_trial(self) -> frozenset[tuple[str, str]]:
        return clients_under_trial(self.run.timeline.get("workloads", ()))

    def doubt(self) -> str | None:
        return self.run.doubt()

    def blocks(self, client: str, measure: str) -> dict[int, Block]:
        """Map each block of the plan in which all faults took effect to a client's value of a measure."""
        return proven_blocks(self.run, parse(measure), client)

    def ratio(self, ours: str, theirs: str, measure: str, confidence: float = 0.95) -> Estimate:
        """Return the ratio of two clients by a measure (a geometric mean over blocks of the plan) with its interval."""
        return ratio_of_blocks(self.blocks(ours, measure), self.blocks(theirs, measure), confidence, self.run.run_id)

    def quantile_us(self, client: str, metric: str, window: str, q: float) -> tuple[int | None, int]:
        """Return a quantile of the latencies in a window (None if censored or unmeasured) and the number of records."""
        for row in self.run.analysis["distributions"]:
            if (row["metric"], row["client"], row["window"]) == (metric, client, window):
                return row["at"].get(repr(q)), row["n"]
        return None, 0

    def latencies(self, client: str, first: int) -> Latencies:
        """Return the latencies of a client's records from number ``first`` on."""
        for row in self.run.analysis.get("latencies", ()):
            if (row["client"], row["first"]) == (client, first):
                return Latencies(dict(row["counts"]), row["failed"])
        rows = self.outcomes("produce", ("seq", "sent_us", "done_us", "status"), client)
        rows = rows.filter(pc.greater_equal(rows["seq"], first))
        acked = rows.filter(pc.equal(rows["status"], "ok"))
        ms = (acked["done_us"].to_numpy() - acked["sent_us"].to_numpy()) // 1000
        values, counts = np.unique(ms, return_counts=True)
        return Latencies(dict(zip(values.tolist(), counts.tolist(), strict=True)), len(rows) - len(acked))

    def slowest(self, client: str) -> list[dict[str, Any]]:
        """Return the slowest records of a client, one group for each operation."""
        return [group for group in self.run.analysis.get("slowest", ()) if group["client"] == client]

    def counters(self, client: str, op: str) -> Mapping[str, int]:
        """Return how often a client took each decision (such as accepting a hint), summed over its restarts."""
        total: dict[str, int] = {}
        for line in self.events("counters"):
            if f"{line.get('workload')}/{line.get('arm')}" == client and line.get("op") == op:
                for name, count in (line.get("counters") or {}).items():
                    total[name] = total.get(name, 0) + count
        return total

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.home / "events.jsonl") if line.get("event") == event]

    def windows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in read_json(self.home / "phases.json")]

    def phases(self, entry: str) -> list[dict[str, Any]]:
        return [row for row in self.windows() if row.get("entry") == entry]

    def proven(self, entry: str) -> list[dict[str, Any]]:
        """Return the windows of a fault in which the fault took effect (was witnessed) and met traffic."""
        unproven = self.run.unproven()
        return [row for row in self.phases(entry) if row["fault"] not in unproven]

    def outcomes(self, op: str, columns: Sequence[str], client: str | None = None) -> pa.Table:
        """Return the outcome rows (one per record or commit) of operation ``op``, of all clients or of ``client``."""
        condition = ds.field("op") == op
        if client is not None:
            workload, arm = client.split("/")
            condition &= (ds.field("workload") == workload) & (ds.field("arm") == arm)
        rows = ds.dataset(self.home / "outcomes", format="parquet")
        return rows.to_table(columns=list(columns), filter=condition)

    def log(self, topic: str, columns: Sequence[str]) -> pa.Table:
        """Return the records that the log of a topic had at the end of the run."""
        rows = ds.dataset(self.home / "log", format="parquet")
        return rows.to_table(columns=list(columns), filter=ds.field("topic") == topic)

    def transactions(self, client: str) -> list[dict[str, Any]]:
        """Return the rows of a client's transactions, in the order of their begin."""
        workload, arm = client.split("/")
        rows = ds.dataset(self.home / "transactions", format="parquet")
        of_client = (ds.field("workload") == workload) & (ds.field("arm") == arm)
        found: list[dict[str, Any]] = rows.to_table(filter=of_client).sort_by("begin_us").to_pylist()
        return found

    def batches(self, topic: str) -> list[dict[str, Any]]:
        """Return the batches and markers of a topic with transactions, by partition and offset."""
        rows = ds.dataset(self.home / "batches", format="parquet")
        order = [("partition", "ascending"), ("first_offset", "ascending")]
        found: list[dict[str, Any]] = rows.to_table(filter=ds.field("topic") == topic).sort_by(order).to_pylist()
        return found

    def samples(self, name: str) -> pa.Table:
        """Return the samples of a metric as columns ``t_us broker_id value``, in order of time."""
        rows = ds.dataset(self.home / "metrics", format="parquet")
        columns = ["t_us", "broker_id", "value"]
        return rows.to_table(columns=columns, filter=ds.field("name") == name).sort_by("t_us")

    def bytes_by_broker(
        self,
        direction: Literal["sent", "received"],
        rack: str,
        worker: str,
        spans: Sequence[Slice],
        source: Literal["client", "wire"] = "client",
    ) -> dict[int, Floats]:
        """Return the bytes per slice of time and broker, as counted by worker process ``worker`` in ``rack``.

        With ``source`` wire, the wire proxy has counted them on the worker's connections. The counters are sampled once
        a second; between two samples bytes are assumed to flow evenly.
        """
        ends = np.array(spans, float).reshape(-1, 2)
        by_id: dict[int, Floats] = {}
        for broker in self.run.run["brokers"]:
            link = f"client_{rack}-k{broker['id']}" if source == "client" else f"k{broker['id']}"
            samples = self.samples(f"{source}.{direction}_bytes/{link}/{worker}")
            times_us, counts = (samples[name].to_numpy() for name in ("t_us", "value"))
            flowed = np.diff(np.interp(ends, times_us, counts))[:, 0] if len(times_us) else np.zeros(len(ends))
            by_id[int(broker["id"])] = flowed
        return by_id


def ratio_of_blocks(ours: Mapping[int, Block], theirs: Mapping[int, Block], confidence: float, seed: str) -> Estimate:
    """Return the ratio of two clients by a measure, paired by blocks of the plan, with the ratio's interval.

    ``seed`` seeds the sign-flip test, which samples random signs if there are too many combinations to try all.
    """
    pairs = sorted(ours.keys() & theirs.keys())
    if len(pairs) < 2:  # noqa: PLR2004
        return Estimate(None, None, None, len(pairs), "times", confidence)
    left, right = ([side[number].value_us for number in pairs] for side in (ours, theirs))
    tested = paired(left, right, MARGIN, confidence=confidence, seed=seed_of(seed), independent=True)
    return ratio_of(tested, len(pairs), confidence)


def steady_slices(part: Part) -> tuple[Slice, ...]:
    """Return the whole slices of time in the steady phase, none if the run has no steady phase."""
    spans = [row for row in part.windows() if row["name"] == "steady"]
    return slices(spans[0]["start_us"], spans[0]["end_us"], STEADY_SLICE_US) if spans else ()


Spans = Mapping[int, tuple[int, int]]
"""Start and end in microseconds of the run, by block of the plan."""


def onsets(part: Part, entry: str) -> Spans:
    """Return, by block of the plan, the span from 50 ms before a fault's injection until the fault took effect.

    For the fault ``stop`` the span is the time from SIGTERM to the broker's exit. Blocks of the plan in which a fault
    did not take effect are left out.
    """
    times = {(line["fault"], line["state"]): line["t_us"] for line in read_lines(part.home / "journal.jsonl")}
    trials, _ = part.run.trials()
    spans = {}
    for step in part.run.timeline["steps"]:
        intended, injected = ((step["id"], state) for state in ("intended", "injected"))
        if step.get("entry") == entry and {intended, injected} <= times.keys():
            spans[step["block"]] = (times[intended] - 50_000, times[injected])
    return {block: span for block, span in spans.items() if trials is None or block in trials}


def worst_latencies(part: Part, client: str, spans: Spans) -> dict[int, Block]:
    """Return the worst produce latency among the records of each span of time.

    A record belongs to the span of time that contains its intended time, and the latency of a failed record is
    infinite. A span of time in which no record was due is left out.
    """
    if not spans:
        return {}
    rows = part.outcomes("produce", ("intended_us", "done_us", "status"), client)
    intended_us, blocks = rows["intended_us"], {}
    for number, (start_us, end_us) in spans.items():
        due = rows.filter(pc.and_(pc.greater_equal(intended_us, start_us), pc.less(intended_us, end_us)))
        if due.num_rows:
            failed = pc.any(pc.not_equal(due["status"], "ok")).as_py()
            latency_us = None if failed else pc.max(pc.subtract(due["done_us"], due["intended_us"])).as_py()
            blocks[number] = Block(latency_us, due.num_rows)
    return blocks
