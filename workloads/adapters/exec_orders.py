"""Orders to a client program, as JSON objects, one on each line, specified by ``docs/EXEC.md``.

The models are the only definition of the orders; the reports of the program are in ``exec_protocol.py``.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, WithJsonSchema

from aftershock.workloads.load.assignment import (
    WARMUP_RECORDS,
    ClientAssignment,
    CommitAssignment,
    ConsumeAssignment,
    Place,
    ProduceAssignment,
    Setting,
)
from aftershock.workloads.load.schedule import STRIDE, Filler, Schedule
from aftershock.workloads.load.security import java_config, librdkafka_config
from aftershock.workloads.load.spool import UNKNOWN

PROTOCOL: Literal[1] = 1
"""Version of the exec protocol, which changes only when a correct client program would become incorrect."""

STOP_POLLING: Literal["stop_polling"] = "stop_polling"
TOPICS: Literal["topics"] = "topics"
TRANSACTIONS: Literal["transactions"] = "transactions"
ISOLATION: Literal["isolation"] = "isolation"
"""What a program can do beyond the first version of this protocol, by the words of ``accepts`` in its ``ready``."""

_NUMBER_KEY = r"^(0|[1-9][0-9]{0,9})$"


def _bytes(text: object) -> object:
    """Decode base64 strictly; pydantic's own decoder ignores invalid characters."""
    return b64decode(text, validate=True) if isinstance(text, str) else text


def _number(key: object) -> object:
    """Convert a number that is a key of a JSON object; pydantic's own conversion accepts ``1.0`` and ``1_0``."""
    return int(key) if isinstance(key, str) and re.fullmatch(_NUMBER_KEY, key) else key


Base64 = Annotated[
    bytes,
    BeforeValidator(_bytes),
    PlainSerializer(lambda content: b64encode(content).decode()),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
Seq = Annotated[int, Field(ge=0, lt=2**63)]
Partition = Annotated[int, Field(ge=0, lt=2**31)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
MaybePartition = Annotated[int, Field(ge=UNKNOWN, lt=2**31)]
MaybeOffset = Annotated[int, Field(ge=UNKNOWN, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Attempts = Annotated[int, Field(ge=0, lt=2**31)]
NumberKey = Annotated[int, BeforeValidator(_number), Field(ge=0, lt=2**31), WithJsonSchema({"type": "string"})]
NUMBER_KEYS = Field(json_schema_extra={"propertyNames": {"pattern": _NUMBER_KEY}})
Header = tuple[str, Base64 | None]


class _Order(BaseModel):
    # a later version may add fields, which a program must ignore
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        serialize_by_alias=True,
        validate_by_name=True,
        json_schema_serialization_defaults_required=True,
    )

    def line(self) -> bytes:
        return self.model_dump_json(ensure_ascii=True).encode() + b"\n"


class StartTopic(_Order):
    """Topic of a start order; ``positions`` are a consumer's start offsets by partition if it has no group."""

    name: str
    partitions: Annotated[int, Field(ge=1, lt=2**31)]
    positions: Annotated[dict[NumberKey, Offset] | None, NUMBER_KEYS]


class _Start(_Order):
    do: Literal["start"] = "start"
    protocol: Literal[1] = PROTOCOL
    bootstrap: str
    topic: str
    partitions: Annotated[int, Field(ge=1, lt=2**31)]
    topics: tuple[StartTopic, ...]
    client_id: str
    client_rack: str | None
    settings: dict[str, Setting]


class StartLoad(_Order):
    """Load that a program drives itself: Kafka's ProducerPerformance, which ``client: java`` can run.

    Record n has the mark (producer_id, n, intended time), and as value ``size_bytes`` of ``filler`` from byte n modulo
    (length of ``filler`` less ``size_bytes``). It is due ``n * period_us[0] // period_us[1]`` after ``Go.start_us``.
    """

    records: Count
    warmup_records: Count
    period_us: tuple[Count, Count]
    size_bytes: Count
    producer_id: Count
    filler: Base64


class StartTransaction(_Order):
    """Transactions of a producer: its ``transactional.id``, and Kafka's ``transaction.timeout.ms``."""

    id: str
    timeout_ms: Count


class StartProduce(_Start):
    """First order to a producer; a record of a ``transaction`` is given up after its ``timeout_ms``, if shorter."""

    op: Literal["produce"] = "produce"
    acks: Literal["all", "1", "0"]
    idempotence: bool
    linger_ms: Count
    deadline_ms: Count
    load: StartLoad | None = None
    transaction: StartTransaction | None = None


class Go(_Order):
    """Order to start the load of the start order at ``start_ns`` on CLOCK_MONOTONIC, ``start_us`` of the run."""

    do: Literal["go"] = "go"
    start_ns: Count
    start_us: Count


class CommitEvery(_Order):
    """When a consumer must commit what it has processed: after a time, or after a number of records."""

    every_ms: int | None
    every_records: int | None


class StartConsume(_Start):
    """First order to a consumer, whose start offsets by partition are ``positions`` if it has no group.

    ``positions`` are those of ``topic``; ``topics`` has those of each topic. With a ``pattern`` the consumer subscribes
    to the topics whose whole names match.
    Without ``commit`` the client's own automatic commits apply. The program spends ``processing_ms`` on each record
    before it reports the record.
    """

    op: Literal["consume"] = "consume"
    pattern: str | None
    group: str | None
    members: int
    group_protocol: Literal["consumer", "classic"] | None
    assignor: str | None
    instance_id: str | None
    commit: CommitEvery | None
    processing_ms: int
    from_: Annotated[Literal["earliest", "latest"], Field(alias="from")]
    isolation: Literal["read_committed", "read_uncommitted"] | None = None
    positions: Annotated[dict[NumberKey, Offset] | None, NUMBER_KEYS]


class StartCommit(_Start):
    """First order to a committer, with the names of all its groups."""

    op: Literal["commit"] = "commit"
    deadline_ms: Count
    groups: tuple[str, ...]


class Send(_Order):
    """Order to send a record to a topic."""

    do: Literal["send"] = "send"
    seq: Seq
    topic: str
    key: Base64 | None
    value: Base64
    headers: tuple[Header, ...]


TransactionOrder = Literal["begin_transaction", "commit_transaction", "abort_transaction", "reopen_producer"]


class Transact(_Order):
    """Order about the producer's transaction; the next such order follows the report of this one.

    ``reopen_producer`` closes the producer, and opens another with the same ``transactional.id``.
    """

    do: TransactionOrder


class Commit(_Order):
    """Order to commit an offset of the topic for a group."""

    do: Literal["commit"] = "commit"
    seq: Seq
    group: str
    partition: Partition
    offset: Offset


class KeepPolling(_Order):
    """Order to a consumer that accepts it to stop or resume polling, while its client library goes on."""

    do: Literal["stop_polling", "resume_polling"]


class Close(_Order):
    """Last order, after which the program reports ``bye`` and exits."""

    do: Literal["close"] = "close"


Order = StartProduce | Go | StartConsume | StartCommit | Send | Transact | Commit | KeepPolling | Close
parse_order = TypeAdapter[Order](Order).validate_json
"""Parse an order; raise pydantic's ``ValidationError`` if the line is not an order."""


def start_order(assignment: ClientAssignment, positions: Mapping[Place, int] | None = None) -> bytes:
    """Return the first order to a client program; ``positions`` are a consumer's start offsets by place."""
    # No other message or file contains the secrets of an attached cluster.
    security = assignment.security.resolved()
    connection = java_config(security) if assignment.client == "java" else librdkafka_config(security)
    topics = tuple(
        StartTopic(
            name=topic.name,
            partitions=topic.partitions,
            positions=None
            if positions is None
            else {number: offset for (name, number), offset in positions.items() if name == topic.name},
        )
        for topic in assignment.topics
    )
    common: dict[str, Any] = {
        "bootstrap": assignment.bootstrap,
        "client_id": assignment.worker,
        "client_rack": assignment.client_rack,
        "topic": assignment.topic,
        "partitions": assignment.partitions,
        "topics": topics,
        "settings": {**connection, **assignment.settings},
    }
    if isinstance(assignment, ConsumeAssignment):
        commit = assignment.own_commits
        return StartConsume(
            **common,
            pattern=assignment.pattern,
            group=assignment.group,
            members=assignment.members,
            group_protocol=assignment.protocol,
            assignor=assignment.assignor,
            instance_id=assignment.instance_id,
            commit=CommitEvery(**commit.model_dump()) if commit else None,
            processing_ms=assignment.processing_ms,
            from_=assignment.from_,
            isolation=assignment.isolation,
            positions=topics[0].positions,
        ).line()
    if isinstance(assignment, CommitAssignment):
        groups = tuple(assignment.group_of(seq) for seq in range(assignment.groups))
        return StartCommit(**common, deadline_ms=assignment.deadline_ms, groups=groups).line()
    return StartProduce(
        **common,
        acks=assignment.acks,
        idempotence=assignment.idempotence,
        linger_ms=ceil(assignment.linger_ms),  # Kafka's own clients count whole milliseconds
        deadline_ms=assignment.deadline_ms,
        load=_load(assignment),
        transaction=_transaction(assignment),
    ).line()


def _transaction(assignment: ProduceAssignment) -> StartTransaction | None:
    settings = assignment.transaction
    if settings is None:
        return None
    return StartTransaction(id=assignment.transactional_id or "", timeout_ms=settings.timeout_ms)


def _load(assignment: ProduceAssignment) -> StartLoad | None:
    """Return the load that the program drives itself; None if it sends what it is ordered to send."""
    if assignment.num_records is None:
        return None
    size_bytes = assignment.record_size_max
    return StartLoad(
        records=assignment.num_records,
        warmup_records=int(assignment.settings.get(WARMUP_RECORDS, 0)),
        period_us=Schedule(0, 0, assignment.rate_per_s).period_us,
        size_bytes=size_bytes,
        producer_id=assignment.producer_id,
        filler=Filler(size_bytes).value(0, size_bytes + STRIDE),
    )


def commit_order(assignment: CommitAssignment, seq: int) -> bytes:
    """Return the order to make commit ``seq`` of a committer."""
    group, partition, offset = assignment.group_of(seq), assignment.partition_of(seq), assignment.offset_of(seq)
    return Commit(seq=seq, group=group, partition=partition, offset=offset).line()
