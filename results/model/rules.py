"""Table of integrity rules (what each rule forbids, what explains a breach, and where breaches are counted).

To add an integrity rule, add a row to ``RULES``, and either a function over the client's events (``immediate_retries``
is a short example) or a finding of Spark in ``results/checks/findings/``. Each rule gives a check ``integrity/<rule>``
and an SLO ``<rule> == 0``.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Event: TypeAlias = Mapping[str, Any]
Subject: TypeAlias = Literal["log", "produce", "consume", "commit", "pipe", "replicas"]


@dataclass(frozen=True)
class EventCount:
    """Number of events that an integrity rule examined, number of breaches, and ``seqs`` of the affected records.

    ``undated`` are the breaches of commits of which the client does not tell when it sent them (``UNDATED``).
    """

    examined: int
    broken: int
    seqs: tuple[int, ...] = ()
    note: str = ""
    undated: int = 0


def immediate_retries(events: Sequence[Event]) -> EventCount:
    """Count the batches that were retried without back-off more than once in a leader epoch.

    Source: KIP-951, ``ProducerBatch``. A batch is identified by the token of its first record and its number of
    records, because the parts of a split batch count as new batches.
    """
    immediate: Counter[tuple[Any, ...]] = Counter()
    for event in events:
        if event["event"] == "batch_retried" and event.get("token") is not None:
            batch = tuple(event[name] for name in ("worker", "topic", "partition", "token", "records", "epoch"))
            immediate[batch] += bool(event["immediate"])
    broken = [batch for batch, count in immediate.items() if count > 1]
    return EventCount(len(immediate), len(broken), tuple(sorted({token for _, _, _, token, *_ in broken})))


UNDATED = "the client does not tell when the commit was sent", "`committed` in events.jsonl has no took_us"
"""Cause and evidence of a decrease that may only be one of the order in which commits were reported."""


_BEGINNINGS = ("assigned", "position_reset", "restarted")
_HINTS, _POSITIONS = "leader hints", "committed positions"


def _begun_anew(event: Event) -> Callable[[tuple[Any, ...]], bool]:
    """Return a test whether an event resets the highest value of a key (worker, kind, topic, partition)."""
    if event["event"] == "restarted":
        return lambda _: True
    listed = [[event.get("topic"), event.get("partition")]] if "topic" in event else event.get("partitions")
    places = None if listed is None else {(topic, number) for topic, number in listed}
    return lambda key: key[1] == _POSITIONS and (places is None or key[2:] in places)


def decreases(events: Sequence[Event]) -> EventCount:
    """Count the leader hints and committed offsets that are lower than an earlier value for the same partition.

    A client refuses a leader hint that is not newer (KIP-951), so an epoch accepted twice is a breach too. An offset
    may be committed twice, and may decrease after an assignment or a position reset of its partition; a new process
    knows neither hints nor positions. A coordinator executes a member's
    commits in the order of their sending, in which they are compared: librdkafka reports an asynchronous commit later
    than a synchronous one that followed it. A commit without ``took_us`` may have been sent before the higher one, so
    its decrease is undecided.
    """
    examined, broken, undated = 0, {_HINTS: 0, _POSITIONS: 0}, 0
    highest: dict[tuple[Any, ...], int] = {}
    for event in sorted(events, key=lambda event: event["t_us"] - (event.get("took_us") or 0)):
        if event["event"] in _BEGINNINGS:
            anew = _begun_anew(event)
            highest = {key: value for key, value in highest.items() if key[0] != event.get("worker") or not anew(key)}
        values: list[tuple[str, str, int, int]] = []
        if event["event"] == "hint_accepted":
            values = [(_HINTS, event["topic"], event["partition"], event["epoch"])]
        elif event["event"] == "committed":
            values = [(_POSITIONS, *position) for position in event["offsets"]]
        for kind, topic, partition, value in values:
            key = (event.get("worker"), kind, topic, partition)
            is_commit = kind == _POSITIONS
            examined += 1
            if highest.get(key, value - 1) >= value + is_commit:
                broken[kind] += 1
                undated += is_commit and event.get("took_us") is None
            highest[key] = max(value, highest.get(key, value))
    note = "; ".join(f"{count} of them are {kind}" for kind, count in broken.items() if count)
    return EventCount(examined, sum(broken.values()), note=note, undated=undated)


@dataclass(frozen=True)
class Rule:
    """An integrity rule, a row of ``RULES``.

    ``findings`` maps subjects of the check (``produce``, …) to names of findings computed by Spark; of a rule that is
    counted in events alone, the name is the rule's own. ``events`` is the function that counts breaches in the events
    of a client that produces or consumes. ``explained_by`` says what explains a breach. ``optional`` lists
    subjects that get no check if the client doesn't report the values that the rule reads.
    ``if_examined`` is True if the rule has no check when the run has no record to examine. ``needs`` says for such
    subjects what the rule reads, for the check ``integrity/coverage``, which lists the rules without a check.
    """

    forbids: str
    explained_by: str
    advice: str
    findings: Mapping[Subject, str] = field(default_factory=dict)
    events: Callable[[Sequence[Event]], EventCount] | None = None
    unit: str = "records"
    optional: tuple[Subject, ...] = ()
    if_examined: bool = False
    needs: Mapping[Subject, str] = field(default_factory=dict)


_EXPLAIN = "`aftershock explain RUN --record PRODUCER:SEQ` shows the history of each sample"

RULES: Mapping[str, Rule] = {
    "lost": Rule(
        "a record that was acknowledged or delivered and is not in the log; a record in the log that a reader did not "
        "get; an acknowledged commit that is not in the coordinator's log, or below which that log ends",
        "with acks below all, or after an unclean election, a later leader epoch that begins at or below the record's "
        "offset and whose leader was elected after the acknowledgement; a deletion or a power cut of that partition; "
        "for commits, the same of the coordinator's partition, or deleted offsets of that group",
        f"{_EXPLAIN}; then read the logs of the partition's leaders (logs/k*.log) around the acknowledgement",
        {"produce": "lost", "consume": "lost", "commit": "lost"},
    ),
    "duplicate": Rule(
        "one record of an idempotent producer at two offsets of the log; an offset delivered twice to a reader without "
        "a new assignment, or below the last acknowledged commit",
        "without idempotence, a second attempt that was possible between the sending of the record and its "
        "acknowledgement; an unclean election or a rewrite of that partition; for readers, a new assignment, from the "
        "last acknowledged commit on, or a reset of this reader's position that was out of range",
        f"{_EXPLAIN}; look for a retry of an acknowledged batch, or a position that was read again",
        {"produce": "duplicate", "consume": "duplicate"},
    ),
    "order": Rule(
        "records in the log out of order of their sequence number, sent by an idempotent producer or with one request "
        "in flight; deliveries out of the order of offsets",
        "a second attempt as for duplicate, if more than one request may be in flight; a kill of this producer while "
        "the record was in flight; an unclean election or a rewrite of that partition",
        f"{_EXPLAIN}; look for retries with more than one request in flight, or a position that went back",
        {"produce": "order", "consume": "order"},
    ),
    "phantom": Rule(
        "a record, in the log or delivered, that no producer sent; a record in the log that its producer reported as "
        "failed; a commit in the coordinator's log that no client sent",
        "nothing",
        "find out which other program writes to the topic, and whether the record's header was damaged in transit; "
        "for a producer's phantoms, whether it sends records that it has reported as failed",
        {"log": "phantom", "produce": "phantom", "consume": "phantom", "commit": "phantom"},
        optional=("produce", "commit"),
        needs={"produce": "a failed record", "commit": "a `commit` workload, which tells each commit that it sent"},
    ),
    "misplaced": Rule(
        "a record at another offset than the acknowledged offset",
        "a truncation as for lost, or a second attempt as for duplicate, of which an earlier copy is left",
        f"{_EXPLAIN}; compare the offset of the acknowledgement with the offset in log/",
        {"produce": "misplaced"},
        optional=("produce",),
        needs={"produce": "an acknowledged record with its offset"},
    ),
    "collision": Rule(
        "two records at one offset",
        "an unclean election or a rewrite of that partition",
        "compare log/ and outcomes/ at the samples' offsets: was the log truncated and written again?",
        {"log": "collision", "consume": "collision"},
    ),
    "skipped": Rule(
        "a reader passed over a record of the log",
        "an unclean election or a rewrite of that partition; a reader's assignment or position reset begins anew",
        f"{_EXPLAIN}; read the consumer's log for a position that moved on without a reset",
        {"consume": "skipped"},
    ),
    "backward": Rule(
        "leader epochs or high watermarks that go down, outdated leader hints that a client accepted, "
        "a group's committed position below its earlier committed position",
        "a later leader epoch that begins at or below the offset, as for lost; a kill of this producer; for commits in "
        "a coordinator's log, a commit that was in flight on a lost connection",
        "compare leader_epoch and high_watermark of the samples' rows with the rows before them in outcomes/, "
        "`hint_accepted` and `committed` with earlier ones in events.jsonl",
        {"produce": "backward", "consume": "backward", "commit": "backward"},
        decreases,
        optional=("produce", "consume"),
        needs={
            "produce": "an acknowledgement with its leader epoch, or a leader hint",
            "consume": "a delivery with its leader epoch, a leader hint, or a commit",
        },
    ),
    "beyond": Rule(
        "a delivery of a record beyond the high watermarks that were reported until a second later",
        "nothing",
        "a broker returned records that were not committed: read the log of the samples' broker at that time",
        {"consume": "beyond"},
        optional=("consume",),
        needs={"consume": "a delivery with the high watermark of its response"},
    ),
    "co_owned": Rule(
        "two members of a group read a partition at the same time",
        "a fault that keeps the earlier owner from its coordinator, until its session time-out and one heartbeat after "
        "the fault's end",
        "compare `assigned` and `revoked` of the group's members in events.jsonl around the samples' times",
        {"consume": "co_owned"},
        unit="assignments",
    ),
    "stale_assignment": Rule(
        "a delivery from a partition that the member had given up, or that it was never assigned",
        "nothing",
        "compare `revoked` and `lost` of the member in events.jsonl with its later deliveries: it still fetches the "
        "partition, or works off records that it had fetched",
        {"consume": "stale_assignment"},
        unit="deliveries",
        if_examined=True,
        needs={"consume": "members that report their assignments"},
    ),
    "fenced": Rule(
        "a commit that Kafka accepted from a member after another member had got the partition",
        "nothing",
        "compare `committed` with `assigned` of other members in events.jsonl: a coordinator must refuse commits of an "
        "older member epoch or generation, and a member must not commit what it has given up",
        {"consume": "fenced"},
        unit="commits",
        if_examined=True,
        needs={"consume": "a commit with the time of its sending (took_us)"},
    ),
    "commit_ahead": Rule(
        "a group committed a position beyond the records that it had read when it sent the commit",
        "nothing",
        "compare the samples' commits with the group's deliveries: does the group commit before it reads?",
        {"consume": "commit_ahead"},
        unit="commits",
        if_examined=True,
        needs={"consume": "a commit with the time of its sending (took_us)"},
    ),
    "commit_behind": Rule(
        "a group resumed before its committed position",
        "an unclean election or a power cut of the coordinator's partition, or deleted offsets of that group, between "
        "the commit and the assignment",
        "compare `committed` before `assigned` in events.jsonl: was the commit lost when the coordinator moved?",
        {"consume": "commit_behind"},
        unit="assignments",
        if_examined=True,
        needs={"consume": "an assignment after a commit"},
    ),
    "aborted_read": Rule(
        "a reader of committed records got a record whose transaction was aborted, by the markers in the log, or had "
        "not ended when the log was read; a transactional service wrote an output for an aborted input",
        "nothing",
        f"{_EXPLAIN}; compare batches/ at the sample's offset with the reader's deliveries: did it ask for committed "
        "records (isolation.level), and does it drop those of aborted transactions?",
        {"consume": "aborted_read", "pipe": "aborted_read"},
        unit="deliveries",
        if_examined=True,
        needs={
            "consume": "a consumer with isolation read_committed that got records of transactions",
            "pipe": "an output of an input in a transaction",
        },
    ),
    "torn": Rule(
        "a transaction of which some records are committed and others aborted or missing",
        "for missing records, what permits lost records",
        "compare transactions/ with batches/: which marker ended the transaction in which partition, and was an EndTxn "
        "of an earlier transaction late?",
        {"produce": "torn"},
        unit="transactions",
        if_examined=True,
        needs={"produce": "a transaction that has ended in the log"},
    ),
    "lost_commit": Rule(
        "a transaction whose commit was acknowledged, and of which a record is aborted or missing",
        "for missing records, what permits lost records",
        "compare transactions/ with batches/: which marker ended the transaction, and with which coordinator epoch?",
        {"produce": "lost_commit"},
        unit="transactions",
        if_examined=True,
        needs={"produce": "a transaction whose commit was acknowledged"},
    ),
    "unaborted": Rule(
        "a transaction that was aborted, or whose commit was never asked for, and of which a record is committed, or "
        "was written outside of it",
        "an abort after a commit without an answer (on_commit_timeout: abort), with version 1 of the transactions",
        "compare transactions/ with batches/: did an EndTxn of an earlier transaction arrive in this one?",
        {"produce": "unaborted"},
        unit="transactions",
        if_examined=True,
        needs={"produce": "a transaction that was aborted"},
    ),
    "fenced_write": Rule(
        "a batch with a lower producer epoch than an earlier batch or marker of its producer in the partition",
        "nothing",
        "compare kafka_epoch of the producer's batches in batches/: a broker has accepted a write of a fenced producer",
        {"log": "fenced_write"},
        unit="batches",
        if_examined=True,
        needs={"log": "a batch of a transactional producer (batches/)"},
    ),
    "corrupt": Rule(
        "a value that differs from the sent value",
        "nothing",
        f"{_EXPLAIN}; compare the bytes in the log of each replica (kafka-dump-log) with the sent value",
        {"log": "corrupt", "consume": "corrupt"},
        needs=dict.fromkeys(("log", "consume"), "a comparison of values (values_compared)"),
    ),
    "immediate": Rule(
        "a second retry without back-off in one leader epoch",
        "nothing",
        "read `batch_retried` of the samples in events.jsonl: a retry did not back off as KIP-951 requires",
        {"produce": "immediate"},
        immediate_retries,
        unit="batches",
        if_examined=True,
        needs={"produce": "a retry of a batch (batch_retried)"},
    ),
    "pipe_lost": Rule(
        "an input in the log that has fewer outputs than the plan asks for",
        "nothing",
        f"{_EXPLAIN}; read the service's log (logs/*-pipe*.log) around that time: did it commit, or skip, what it had "
        "not written?",
        {"pipe": "pipe_lost"},
    ),
    "pipe_duplicate": Rule(
        "an input that has more outputs than the plan allows",
        "a change of the owner of the input's partition between the outputs, for inputs that were not committed before "
        "it; a frozen member that lost the partition; a second attempt that was possible, because the outputs' leader "
        "changed or a fault broke connections. If the service has intermediate topics, any of these after the input "
        "was sent",
        f"{_EXPLAIN}; does the service read again what its group has committed, or process an input twice?",
        {"pipe": "pipe_duplicate"},
        optional=("pipe",),
        needs={"pipe": "an output that names its input"},
    ),
    "pipe_order": Rule(
        "in a partition of the outputs, the first output of an input before that of an earlier input with the same key",
        "the same as for pipe_duplicate",
        f"{_EXPLAIN}; does the service process the records of a partition, or write outputs, concurrently?",
        {"pipe": "pipe_order"},
        optional=("pipe",),
        needs={"pipe": "inputs with `keys`, and their outputs"},
    ),
    "offsets_without_output": Rule(
        "a service committed a position above an input before it had written the input's first output; a transactional "
        "service wrote an output outside of a transaction",
        "nothing",
        "let the service commit only after its outputs were acknowledged (no automatic commit), or both in one "
        "transaction: a crash in between loses the inputs",
        {"pipe": "offsets_without_output"},
        optional=("pipe",),
        needs={
            "pipe": "commits of the pipe's `group` in the coordinator's log, and no intermediate topic, like a "
            "repartition topic of Kafka Streams; or outputs in transactions"
        },
    ),
    "output_without_offset": Rule(
        "a transactional service committed an output, but no position above its input, or that outside of transactions",
        "nothing",
        "send the positions of the inputs in the transaction of their outputs (`send_offsets_to_transaction`), and let "
        "the consumer commit none: a crash in between repeats the outputs",
        {"pipe": "output_without_offset"},
        optional=("pipe",),
        needs={"pipe": "`transactional: true`, and the commits of the pipe's `group` in the coordinator's log"},
    ),
    "replica": Rule(
        "replicas that differ after the last heal, from the log or among themselves",
        "nothing",
        "compare the replicas with kafka-dump-log --deep-iteration: a replica was not truncated, or lost records",
        {"replicas": "differing"},
        unit="replicas",
    ),
}
