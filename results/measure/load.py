"""Completeness of the load, that is whether each record that a process had to send has a row.

**Schedule.** The load is open loop and its rate is constant. Record n of a process is due at ``first_us + n / rate`` in
whole microseconds, whatever Kafka and the client do, and a record that was due while the process was down has a row
too (``failed``, ``CLIENT_DOWN``). So the rows of a process are the records 0, 1, 2 … up to the last record that was due
before the end of the load, and each intended time follows from the number. This is exact, so there is no tolerance.
Two things are not in the evidence as such:

* ``first_us`` is the start of the load and a delay of less than a period, by which the schedules of the arms
  interleave. It is read from the process's first row.
* A process gets the order to stop only after the end of the load. It may have sent records that were due later; their
  rows are allowed, and not required.

The ``producers`` of an arm share its rate. Record n goes to topic n modulo the number of topics.

Kafka's ProducerPerformance (``num-records``) sends so many records, also after the end of the load.

A committer in a closed loop (``in_flight``) has no schedule, because it begins a commit when another ends. Its commits
must be numbered without a gap, up to one that began not longer before the end of the load than a commit may take.

**Cost.** The totals of each process (``gate.totals``) decide whether its rows are complete, and are counted by jobs
that run anyway. Only if rows are missing does a job look for the spans.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.names import topic_names
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.model.facts import MissingRows, SentRows
from aftershock.results.slo import Side
from aftershock.results.spark.tables import Tables, beside, lowest
from aftershock.results.tables.dims import Dims
from aftershock.results.tables.gate import NO_ID

SPANS_MAX = 3
"""Spans without rows that are kept of each process and topic, the longest."""

US_PER_S = 1_000_000
NUM_RECORDS = "num-records"
DEADLINE_MS = 30_000
GRACE_US = 10_000_000
"""Deadline of a commit unless the plan gives another, and the longest time until a client then reports the commit."""


@dataclass(frozen=True)
class Sender:
    """Process that sends records or commits ``rate`` times a second (None in a closed loop) from start to end.

    ``producer_id`` is None if the run did not record it.
    """

    side: Side
    client: Client
    worker: str
    topics: tuple[str, ...]
    producer_id: int | None
    rate: Fraction | None
    slowest_us: int
    start_us: int
    end_us: int
    records: int | None = None  # that a benchmark sends in all

    def due_us(self, seq: int) -> int:
        """Return the time from the first record of the schedule to record ``seq``."""
        rate = self.rate or Fraction(1)
        return seq * US_PER_S * rate.denominator // rate.numerator

    def due_before_us(self, seq: int) -> int:
        """Return the sum of ``due_us`` of all records before ``seq``."""
        rate = self.rate or Fraction(1)
        return _floor_sum(seq, rate.numerator, US_PER_S * rate.denominator)

    def count(self, first_us: int) -> int:
        """Return the number of records that are due before the end, if the first is due at ``first_us``."""
        if self.records is not None:
            return self.records
        rate = self.rate or Fraction(1)
        return max(0, -((first_us - self.end_us) * rate.numerator // (US_PER_S * rate.denominator)))


def _floor_sum(n: int, modulus: int, factor: int) -> int:
    """Return the sum of ``i * factor // modulus`` over all i from 0 to n - 1, by Euclid's algorithm."""
    total = constant = 0
    while n:
        total += (n - 1) * n // 2 * (factor // modulus) + n * (constant // modulus)
        factor, constant = factor % modulus, constant % modulus
        top = factor * n + constant
        if top < modulus:
            break
        n, constant, modulus, factor = top // modulus, top % modulus, factor, modulus
    return total


def senders(evidence: Evidence) -> Iterator[Sender]:
    """Yield each process that sends records or commits; none of a run without phases, whose load has no known end."""
    marks = evidence.run.get("marks") or {}
    if not evidence.phases:
        return
    start_us = marks.get("load_start_us", min(phase.start_us for phase in evidence.phases))
    end_us = marks.get("load_end_us", max(phase.end_us for phase in evidence.phases))
    for client in evidence.clients:
        workload = next(row for row in evidence.timeline["workloads"] if row["name"] == client.workload)
        for side in client.topics:
            section = workload.get(side) or {}
            if side in ("consume", "pipe"):
                continue
            workers = client.workers(side)
            ids: list[int | None] = [None] * len(workers)
            if side == "produce":
                known = sorted(number for number, key in evidence.producers.items() if key == client.key)
                ids[: len(known)] = known[: len(workers)]
            rate = section.get("rate_per_s")
            of_process = None if rate is None else Fraction(rate / len(workers)).limit_denominator(US_PER_S)
            slowest_us = section.get("deadline_ms", DEADLINE_MS) * 1000 + GRACE_US
            arm = workload["arms"][client.arm] or {}
            number = (arm.get("settings") or {}).get(NUM_RECORDS) if arm.get("client") == "java" else None
            records = None if number is None else int(number)
            for worker, producer_id in zip(workers, ids, strict=True):
                names = topic_names(section)
                yield Sender(
                    side, client, worker, names, producer_id, of_process, slowest_us, start_us, end_us, records
                )


Total = Mapping[str, Any]
"""Row of ``gate.totals``."""


@dataclass(frozen=True)
class _Compared:
    """Process of a run with the total of its rows (None without any), compared with its schedule."""

    run: int
    sender: Sender
    total: Total | None
    sent: SentRows

    @property
    def complete(self) -> bool:
        return self.sent.rows == self.sent.expected


def measure_load(read: Tables, dims: Dims, totals: Sequence[Total]) -> list[tuple[SentRows, ...]]:
    """Return for each run the rows of its processes, from the rows of ``gate.totals``."""
    by_client: dict[tuple[int, str, str], list[Total]] = defaultdict(list)
    for total in totals:
        if total["side"] is not None:
            by_client[total["run"], total["side"], total["sender"]].append(total)
    compared: list[_Compared] = []
    found: list[list[SentRows]] = []
    for run, evidence in enumerate(dims.evidences):
        matched: set[int] = set()
        for sender in senders(evidence):
            of_client = by_client[run, sender.side, sender.client.key]
            # a run records no ids of its committers, of which an arm has one
            wanted = {total["producer_id"] for total in of_client} - {NO_ID}
            wanted = wanted if sender.side == "commit" else {sender.producer_id}
            own = [total for total in of_client if total["producer_id"] in wanted]
            matched.update(id(total) for total in own)
            one = _compare(run, sender, own)
            compared.append(replace(one, sent=replace(one.sent, **_answers(own))))
        of_run = [total for total in totals if total["run"] == run]
        strays = [total for total in of_run if total["side"] is not None and id(total) not in matched]
        found.append(_strays(strays, sum(total["strange"] for total in of_run)) if evidence.phases else [])
    spans = _spans(read, dims, [one for one in compared if not one.complete])
    for one in compared:
        found[one.run].append(one.sent if one.complete else _with_spans(one, spans))
    return [tuple(of_run) for of_run in found]


def _answers(totals: Sequence[Total]) -> dict[str, Any]:
    """Return the fields of ``SentRows`` about results."""
    times = {name: [total[name] for total in totals if total[name] is not None] for name in _TIMES}
    return {
        "unanswered": sum(int(total["unanswered"] or 0) for total in totals),
        "unanswered_us": min(times["unanswered_us"], default=None),
        "unanswered_last_us": max(times["unanswered_last_us"], default=None),
        "answered_us": max(times["answered_us"], default=None),
    }


_TIMES = ("unanswered_us", "unanswered_last_us", "answered_us")


def _compare(run: int, sender: Sender, totals: Sequence[Total]) -> _Compared:
    """Compare a process's rows with its schedule; if they are not complete, the number of rows is not known yet (0)."""
    names = sender.side, sender.client.key, sender.worker
    if not totals:
        expected = None if sender.rate is None else sender.count(sender.start_us)
        return _Compared(run, sender, None, SentRows(*names, expected, 0))
    total, *more = totals
    contradictions = [f"it has rows with {len(totals)} producer ids"] if more else []
    first, last = total["first_seq"], total["last_seq"]
    rows = last - first + 1
    whole = total["whole"] and total["rows"] == rows and 2 * total["seqs"] == rows * (first + last)
    if sender.rate is None:
        ended_early = total["last_us"] is None or total["last_us"] < sender.end_us - sender.slowest_us
        complete, expected = whole and not first and not ended_early, last + 1 + ended_early
        return _Compared(run, sender, total, SentRows(*names, expected, expected if complete else 0))
    if total["first_us"] is None:
        return _Compared(run, sender, total, SentRows(*names, sender.count(sender.start_us), 0, (), (_NO_TIMES,)))
    first_us = total["first_us"] - sender.due_us(first)
    if not sender.start_us <= first_us < sender.start_us + sender.due_us(1) + 1:
        contradictions.append(
            f"the intended time of its record {first} is {_s(total['first_us'])}, and the schedule of "
            f"{float(sender.rate):g}/s from {_s(sender.start_us)} has it {_s(sender.due_us(first))} later"
        )
        first_us = sender.start_us
    elif total["last_us"] != first_us + sender.due_us(last):
        contradictions.append(
            f"the intended times of its records {first} and {last} are {_s(total['first_us'])} and "
            f"{_s(total['last_us'])}, and the schedule of {float(sender.rate):g}/s has "
            f"{_s(sender.due_us(last) - sender.due_us(first))} between them"
        )
    elif whole:
        due_us = rows * first_us + sender.due_before_us(last + 1) - sender.due_before_us(first)
        if off_us := int(total["intended"]) - due_us:
            contradictions.append(
                f"the intended times of its records differ from the schedule of {float(sender.rate):g}/s, by "
                f"{off_us / US_PER_S:+.6f} s in total"
            )
    expected = sender.count(first_us)
    complete = whole and not first and last + 1 >= expected
    return _Compared(
        run, sender, total, SentRows(*names, expected, expected if complete else 0, (), tuple(contradictions))
    )


_NO_TIMES = "its rows have no intended times"


def _s(us: int) -> str:
    return f"{us / US_PER_S:.3f} s"


def _strays(totals: Sequence[Total], strange: int) -> list[SentRows]:
    """Return rows that belong to no process of the plan."""
    found = []
    for total in totals:
        why = f"it has rows with the id of another producer, {total['producer_id']}"
        why = f"it has {total['rows']} rows without a number" if total["producer_id"] == NO_ID else why
        names = total["side"], total["sender"], ""
        found.append(SentRows(*names, None, int(total["rows"]), contradictions=(why,)))
    if strange:
        why = f"{strange} rows are those of clients that the plan does not have"
        found.append(SentRows("", "", "", None, strange, contradictions=(why,)))
    return found


_PROCESS = ("run", "op", "workload", "arm", "producer_id")
_SENDERS = "run int, op string, workload string, arm string, producer_id int, topics bigint, due bigint"


def _spans(read: Tables, dims: Dims, incomplete: Collection[_Compared]) -> dict[tuple[Any, ...], list[Any]]:
    """Return the spans without rows of incomplete processes, a row per topic, by the key of the process."""
    table = []
    for one in incomplete:
        if one.total is not None:
            client, topics = one.sender.client, len(one.sender.topics)
            process = one.run, one.sender.side, client.workload, client.arm, one.total["producer_id"]
            table.append((*process, topics, one.sent.expected))
    if not table:
        return {}
    processes = beside(dims.table(table, _SENDERS))
    rows = read.outcomes.where("op <> 'consume'").join(processes, list(_PROCESS)).where("seq < due")
    logged = read.log.join(processes.where("op = 'produce'"), ["run", "producer_id"]).where("seq < due")
    unsent = logged.join(rows.select("run", "producer_id", "seq"), ["run", "producer_id", "seq"], "left_anti")
    in_log = unsent.groupBy(*_PROCESS, (F.col("seq") % F.col("topics")).alias("lane")).agg(F.count("*").alias("in_log"))
    lanes = _lanes(rows).join(in_log, [*_PROCESS, "lane"], "left").collect()
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in lanes:
        found[tuple(row[name] for name in _PROCESS)].append(row)
    return found


def _lanes(rows: DataFrame) -> DataFrame:
    """Return the number of distinct and of repeated rows, and the longest spans, per process and topic (``lane``)."""
    numbered = rows.withColumn("lane", F.col("seq") % F.col("topics"))
    before = Window.partitionBy(*_PROCESS, "lane").orderBy("seq")
    previous = F.coalesce(F.lag("seq").over(before), F.col("lane") - F.col("topics"))
    missing = F.expr("(seq - previous) div topics - 1")
    ranges = numbered.withColumns({"previous": previous, "previous_us": F.lag("intended_us").over(before)})
    ranges = ranges.withColumn("missing", missing)
    # of equally long spans the first ones
    span = F.struct((-F.col("missing")).alias("order"), "seq", "missing", "previous_us", "intended_us")
    return ranges.groupBy(*_PROCESS, "lane").agg(
        F.count(F.when(F.col("missing") >= 0, True)).alias("rows"),
        F.count(F.when(F.col("missing") < 0, True)).alias("repeated"),
        lowest(F.when(F.col("missing") > 0, span), SPANS_MAX).alias("spans"),
        F.max("seq").alias("last"),
        F.max("intended_us").alias("last_us"),
    )


def _with_spans(one: _Compared, spans: Mapping[tuple[Any, ...], Sequence[Any]]) -> SentRows:
    """Add the number of rows and the longest spans without rows of each topic to an incomplete process."""
    sender, sent, expected = one.sender, one.sent, one.sent.expected
    key = (one.run, sender.side, sender.client.workload, sender.client.arm, one.total and one.total["producer_id"])
    by_lane = {row["lane"]: row for row in spans.get(key, ())}
    missing: list[MissingRows] = []
    contradictions = [*sent.contradictions]
    topics, edges = len(sender.topics), (sender.start_us, sender.end_us)
    for lane, topic in enumerate(sender.topics):
        due = 0 if expected is None else (expected - lane + topics - 1) // topics
        row = by_lane.get(lane)
        if row is None:
            missing += [MissingRows(topic, due, *edges)] if due or expected is None else []
            continue
        for span in row["spans"] or ():
            after_us = sender.start_us if span["previous_us"] is None else span["previous_us"]
            missing.append(MissingRows(topic, span["missing"], after_us, span["intended_us"]))
        if behind := (due * topics + lane - topics - row["last"]) // topics:
            # of rows that do not follow the schedule the time of the missing ones is unknown
            after_us = sender.start_us if sent.contradictions else row["last_us"]
            missing.append(MissingRows(topic, behind, after_us, sender.end_us))
        if row["repeated"]:
            contradictions.append(f"{row['repeated']} rows repeat a record to {topic} that has a row already")
        if row["in_log"]:
            contradictions.append(f"{row['in_log']} records to {topic} are in the log, and have no row")
    rows = sum(row["rows"] for row in by_lane.values())
    longest = sorted(missing, key=lambda span: (-span.n, span.after_us, span.topic))
    return replace(sent, rows=rows, missing=tuple(longest), contradictions=tuple(contradictions))
