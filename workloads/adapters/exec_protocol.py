"""Reports of a client program, as JSON objects, one on each line, specified by ``docs/EXEC.md``.

The models are the only definition of the reports, which are parsed strictly; `schema` derives the JSON Schema of both
directions from them and from the orders in ``exec_orders.py``.
"""

from typing import Annotated, Any, Literal, NamedTuple, get_args

from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec_orders import (
    NUMBER_KEYS,
    PROTOCOL,
    Attempts,
    Base64,
    Count,
    MaybeOffset,
    MaybePartition,
    NumberKey,
    Offset,
    Order,
    Partition,
    Seq,
    TransactionOrder,
)
from aftershock.workloads.load.spool import UNKNOWN

_SHOWN = 200


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

    ``accepts`` lists what the program can do beyond the first version of the protocol: ``stop_polling``, ``topics``,
    ``transactions``, ``isolation``.
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


class Transacted(_Report):
    """Report that the order ``did`` about a transaction was carried out, or that it failed with ``error``.

    After an error, the client library wants the order repeated, the transaction aborted, or the producer reopened
    (``then``). ``in_doubt`` is True if the transaction may have been committed. ``producer_id`` and ``epoch`` are those
    of a transaction that begins; ``version`` is that of its protocol, 1 or 2 (KIP-890), in the report of the begin or
    of the end.
    """

    say: Literal["transacted"] = "transacted"
    did: TransactionOrder
    error: str | None = None
    then: Literal["repeat", "abort", "reopen"] = "reopen"
    in_doubt: bool = True
    producer_id: MaybeOffset = UNKNOWN
    epoch: MaybePartition = UNKNOWN
    version: Literal[1, 2] | None = None


class Sent(_Report):
    """Report that a program that drives its own load sent the records from ``seq`` on, at the times ``at_ns``."""

    say: Literal["sent"] = "sent"
    seq: Seq
    at_ns: tuple[Count, ...]


class AckedAll(_Report):
    """Report that Kafka acknowledged records of the program's own load, as (seq, time in ns, partition, offset)."""

    say: Literal["acked_all"] = "acked_all"
    rows: tuple[tuple[Seq, Count, MaybePartition, MaybeOffset], ...]


class Summary(_Report):
    """Report that a program has ended its own load, with the sentence in which it sums it up."""

    say: Literal["summary"] = "summary"
    text: str


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


class _PartitionsReport(_TimedReport):
    """Report about partitions of a consumer, with its member epoch (KIP-848), or the generation of a classic group."""

    topic: str | None = None
    partitions: tuple[Partition, ...]
    epoch: MaybePartition = UNKNOWN


class Assigned(_PartitionsReport):
    """Report that partitions were assigned to the consumer; ``member`` is its member id, None without a group."""

    say: Literal["assigned"] = "assigned"
    member: str | None = None


class Revoked(_PartitionsReport):
    """Report that the consumer gives up partitions, before another member may get them."""

    say: Literal["revoked"] = "revoked"


class Lost(_PartitionsReport):
    """Report that the consumer has lost partitions, which another member may have already."""

    say: Literal["lost"] = "lost"


class Committed(_TimedReport):
    """Report that Kafka accepted a commit of offsets by partition, ``took_us`` after the client asked for it.

    ``epoch`` is the member epoch or generation that the request had.
    """

    say: Literal["committed"] = "committed"
    topic: str | None = None
    offsets: Annotated[dict[NumberKey, Offset], NUMBER_KEYS]
    took_us: Count | None = None
    epoch: MaybePartition = UNKNOWN


class MemberFenced(_TimedReport):
    """Report that the coordinator does not know the consumer as a member of its group, with the error's name.

    It was the answer to a request that the client had sent ``took_us`` before.
    """

    say: Literal["member_fenced"] = "member_fenced"
    error: str
    took_us: Count


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
    """Report of an error after which the program continues; a ``fatal`` one has ended the client library's work."""

    say: Literal["error"] = "error"
    error: str
    detail: str = ""
    fatal: bool = False


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
    | Transacted
    | Sent
    | AckedAll
    | Summary
    | Record
    | Assigned
    | Revoked
    | Lost
    | Committed
    | MemberFenced
    | Traffic
    | NodeDisconnected
    | RequestTimedOut
    | ClientError
    | Died
    | Bye
)

_REPORTS: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="say")])


UNKNOWN_SERVER_ERROR = -1

_CODES: dict[str, int] = {
    # librdkafka's own errors, and its names for Kafka's
    **{name: code for name, code in vars(KafkaError).items() if isinstance(code, int)},
    **{code.name.upper(): int(code) for code in ErrorCode},
}


def error_code(name: str) -> int:
    """Return the error code for a name of Kafka's or librdkafka's; -1 for an unknown name."""
    return _CODES.get(name, UNKNOWN_SERVER_ERROR)


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
    **dict.fromkeys(("acked", "failed", "sent", "acked_all", "summary"), "produce"),
    "transacted": "Transactions",
    **dict.fromkeys(("assigned", "revoked", "lost", "committed", "member_fenced", "record"), "consume"),
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
