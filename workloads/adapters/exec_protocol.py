"""Orders to and reports of a client program, as JSON objects, one on each line, specified by ``docs/EXEC.md``.

The models below are the only definition of the messages: orders are written and reports are parsed with them, strictly,
and `schema` derives the JSON Schema of both directions from them.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import models_json_schema

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import (
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    Place,
    Setting,
)
from aftershock.workloads.load.security import java_config, librdkafka_config
from aftershock.workloads.load.spool import UNKNOWN

PROTOCOL: Literal[1] = 1
"""Version of the exec protocol, which changes only when a correct client program would become incorrect."""

STOP_POLLING: Literal["stop_polling"] = "stop_polling"
TOPICS: Literal["topics"] = "topics"
"""What a program can do beyond the first version of this protocol, by the words of ``accepts`` in its ``ready``."""

_SHOWN = 200
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


class StartProduce(_Start):
    """First order to a producer."""

    op: Literal["produce"] = "produce"
    acks: Literal["all", "1", "0"]
    idempotence: bool
    linger_ms: Count
    deadline_ms: Count


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


class _Report(BaseModel):
    # without its default, so that the schema requires it
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        json_schema_extra=lambda schema: schema.update(required=["say", *schema.get("required", ())]),
    )


class Ready(_Report):
    """Report that the client can send or read its first record, and that a consumer has its assigned partitions.

    ``accepts`` lists what the program can do beyond the first version of the protocol: ``stop_polling``, ``topics``.
    ``reports`` lists what the program always reports although it may leave it out: ``attempts``, ``node_disconnected``,
    ``request_timed_out``.
    """

    say: Literal["ready"] = "ready"
    accepts: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()


class Acked(_Report):
    """Report that Kafka acknowledged record or commit ``seq``; -1 is a partition or offset that Kafka didn't return.

    ``attempts`` is how often the record or commit was sent.
    """

    say: Literal["acked"] = "acked"
    seq: Seq
    partition: MaybePartition = UNKNOWN
    offset: MaybeOffset = UNKNOWN
    attempts: Attempts = 0


class Failed(_Report):
    """Report that record or commit ``seq`` failed; ``in_doubt`` is True if Kafka may have written it nevertheless.

    Without a value of ``in_doubt``, the error code decides whether Kafka may have written the record or commit.
    """

    say: Literal["failed"] = "failed"
    seq: Seq
    error: str
    in_doubt: bool | None = None
    attempts: Attempts = 0


class _TimedReport(_Report):
    """Report with the time ``at_ns`` of what it reports on CLOCK_MONOTONIC, by default the time of reading it."""

    at_ns: Count | None = None


class Record(_TimedReport):
    """Report of a record that the consumer received; ``mark`` is the value of its header ``aftershock``, if any.

    ``topic`` is needed if the start order has several topics or a pattern, here and in the reports about partitions.
    """

    say: Literal["record"] = "record"
    topic: str | None = None
    partition: Partition
    offset: Offset
    mark: Base64 | None
    size_bytes: Annotated[int, Field(ge=0, lt=2**31)]
    high_watermark: MaybeOffset = UNKNOWN
    leader_epoch: MaybePartition = UNKNOWN


class Assigned(_TimedReport):
    """Report that partitions were assigned to the consumer; ``member`` is its member id, None without a group.

    ``epoch`` is the consumer's member epoch (KIP-848), or the generation of a classic group.
    """

    say: Literal["assigned"] = "assigned"
    topic: str | None = None
    partitions: tuple[Partition, ...]
    member: str | None = None
    epoch: MaybePartition = UNKNOWN


class Revoked(_TimedReport):
    """Report that the consumer gives up partitions, before another member may get them."""

    say: Literal["revoked"] = "revoked"
    topic: str | None = None
    partitions: tuple[Partition, ...]
    epoch: MaybePartition = UNKNOWN


class Lost(_TimedReport):
    """Report that the consumer has lost partitions, which another member may have already."""

    say: Literal["lost"] = "lost"
    topic: str | None = None
    partitions: tuple[Partition, ...]
    epoch: MaybePartition = UNKNOWN


class Committed(_TimedReport):
    """Report that Kafka accepted a commit of offsets by partition, ``took_us`` after the client asked for it.

    ``epoch`` is the member epoch or generation that the request had.
    """

    say: Literal["committed"] = "committed"
    topic: str | None = None
    offsets: Annotated[dict[NumberKey, Offset], NUMBER_KEYS]
    took_us: Count | None = None
    epoch: MaybePartition = UNKNOWN


class Traffic(_Report):
    """Report of the bytes (sent, received) by broker since the client's start."""

    say: Literal["traffic"] = "traffic"
    brokers: Annotated[dict[NumberKey, tuple[Count, Count]], NUMBER_KEYS]


class NodeDisconnected(_TimedReport):
    """Report that a connection to a broker ended, for any reason but the program's own decision."""

    say: Literal["node_disconnected"] = "node_disconnected"
    broker: Partition


class RequestTimedOut(_TimedReport):
    """Report that a request to a broker got no response within the client's time limit."""

    say: Literal["request_timed_out"] = "request_timed_out"
    broker: Partition


class ClientError(_Report):
    """Report of an error after which the client continues."""

    say: Literal["error"] = "error"
    error: str
    detail: str = ""


class Died(_Report):
    """Last report of a client program that cannot continue."""

    say: Literal["died"] = "died"
    why: str


class Bye(_Report):
    """Last report of a client program that was ordered to close, after it has reported all results and closed."""

    say: Literal["bye"] = "bye"


Report = (
    Ready
    | Acked
    | Failed
    | Record
    | Assigned
    | Revoked
    | Lost
    | Committed
    | Traffic
    | NodeDisconnected
    | RequestTimedOut
    | ClientError
    | Died
    | Bye
)

Order = StartProduce | StartConsume | StartCommit | Send | Commit | KeepPolling | Close
_ORDERS: TypeAdapter[Order] = TypeAdapter(Order)
_REPORTS: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="say")])


class Rule(NamedTuple):
    """Sentence, or part of one, of a section of ``docs/EXEC.md``, quoted word for word."""

    section: str
    sentence: str

    def __str__(self) -> str:
        return f'docs/EXEC.md, {self.section}: "{self.sentence}"'


ONE_OBJECT = Rule("Rules", "**A line is one JSON object in UTF-8 and a newline**")
INTEGERS = Rule("Rules", "Numbers are integers, without fraction or exponent")
BASE64 = Rule("Rules", "Bytes are base64.")
RESERVED = Rule("Rules", "**Standard output is reserved for the protocol.**")
_SECTIONS = {
    **dict.fromkeys(("acked", "failed"), "produce"),
    **dict.fromkeys(("assigned", "revoked", "lost", "committed", "record"), "consume"),
    **dict.fromkeys(("ready", "bye", "traffic", "error", "died"), "All operations"),
    **dict.fromkeys(("node_disconnected", "request_timed_out"), "All operations"),
}
REPORT_RULES = {say: Rule(section, f'{{"say": "{say}"') for say, section in _SECTIONS.items()}


class ReportError(WorkloadError):
    """A line of a client program that is no report; ``rule`` is the sentence of ``docs/EXEC.md`` that it breaks."""

    def __init__(self, text: str, rule: Rule) -> None:
        super().__init__(text)
        self.rule = rule


def parse_report(line: bytes) -> Report:
    """Parse a line that a client program wrote; raise ``ReportError`` if the line is not a report."""
    try:
        return _REPORTS.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        say, *field = map(str, problem["loc"] or [""])
        if problem["type"].startswith("int_"):
            rule = INTEGERS
        elif problem["type"] == "value_error":
            rule = BASE64
        elif say:
            rule = REPORT_RULES[say]
        else:
            rule = RESERVED if problem["type"].startswith("union_tag") else ONE_OBJECT
        where = f"field {'.'.join(field)} of {say}: " if field else ""
        start = repr(line[:_SHOWN].decode(errors="replace")) + (" ..." if len(line) > _SHOWN else "")
        raise ReportError(
            f"the client wrote a line that is not a report ({where}{problem['msg']}): {start}; see {rule}", rule
        ) from error


def parse_order(line: bytes) -> Order:
    """Parse an order; raise pydantic's ``ValidationError`` if the line is not an order."""
    return _ORDERS.validate_json(line)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of all messages; it has the definitions ``Order`` and ``Report``."""
    orders, reports = get_args(Order), get_args(Report)
    modes: list[Any] = [
        *((order, "serialization") for order in orders),
        *((report, "validation") for report in reports),
    ]
    definitions = models_json_schema(modes)[1]["$defs"]
    for name, messages in (("Order", orders), ("Report", reports)):
        definitions[name] = {"oneOf": [{"$ref": f"#/$defs/{message.__name__}"} for message in messages]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Aftershock exec protocol {PROTOCOL}",
        "description": "A line of the program's standard input is an Order, a line of its standard output a Report.",
        "oneOf": [{"$ref": "#/$defs/Order"}, {"$ref": "#/$defs/Report"}],
        "$defs": definitions,
    }


def start_order(assignment: Assignment, positions: Mapping[Place, int] | None = None) -> bytes:
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
    ).line()


def send_order(seq: int, topic: str, key: bytes | None, value: bytes, headers: Sequence[Header]) -> bytes:
    return Send(seq=seq, topic=topic, key=key, value=value, headers=tuple(headers)).line()


def commit_order(seq: int, group: str, partition: int, offset: int) -> bytes:
    return Commit(seq=seq, group=group, partition=partition, offset=offset).line()


def polling_order(*, polls: bool) -> bytes:
    return KeepPolling(do="resume_polling" if polls else STOP_POLLING).line()


def close_order() -> bytes:
    return Close().line()
