"""Orders to and reports of a client program, as JSON objects, one on each line, specified by ``docs/EXEC.md``."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.security import java_config, librdkafka_config
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.spool import UNKNOWN

PROTOCOL = 1
"""Version of the exec protocol, which changes only when a correct client program would become incorrect."""

_SHOWN = 200


def _bytes(text: object) -> object:
    """Decode base64 strictly; pydantic's own decoder ignores invalid characters."""
    return b64decode(text, validate=True) if isinstance(text, str) else text


Partition = Annotated[int, Field(ge=0, lt=2**31)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
MaybePartition = Annotated[int, Field(ge=UNKNOWN, lt=2**31)]
MaybeOffset = Annotated[int, Field(ge=UNKNOWN, lt=2**63)]
Header = tuple[str, bytes | None]


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ready(_Report):
    """Report that the client can send or read its first record, and that a consumer has its assigned partitions."""

    say: Literal["ready"] = "ready"


class Acked(_Report):
    """Report that Kafka acknowledged record or commit ``seq``; -1 is a partition or offset that Kafka didn't return."""

    say: Literal["acked"] = "acked"
    seq: int
    partition: MaybePartition = UNKNOWN
    offset: MaybeOffset = UNKNOWN


class Failed(_Report):
    """Report that record or commit ``seq`` failed; ``in_doubt`` is True if Kafka may have written it nevertheless.

    Without a value of ``in_doubt``, the error code decides whether Kafka may have written the record or commit.
    """

    say: Literal["failed"] = "failed"
    seq: int
    error: str
    in_doubt: bool | None = None


class Record(_Report):
    """Report of a record that the consumer received; ``mark`` is the value of its header ``aftershock``, if any."""

    say: Literal["record"] = "record"
    partition: Partition
    offset: Offset
    mark: Annotated[bytes, BeforeValidator(_bytes)] | None
    size_bytes: Annotated[int, Field(ge=0, lt=2**31)]
    high_watermark: MaybeOffset = UNKNOWN
    leader_epoch: MaybePartition = UNKNOWN


class Assigned(_Report):
    """Report that partitions were assigned to the consumer; ``member`` is its member id, None without a group."""

    say: Literal["assigned"] = "assigned"
    partitions: tuple[Partition, ...]
    member: str | None = None


class Revoked(_Report):
    """Report that partitions were revoked from the consumer."""

    say: Literal["revoked"] = "revoked"
    partitions: tuple[Partition, ...]


class Traffic(_Report):
    """Report of the bytes (sent, received) by broker since the client's start."""

    say: Literal["traffic"] = "traffic"
    brokers: dict[int, tuple[int, int]]


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


Report = Ready | Acked | Failed | Record | Assigned | Revoked | Traffic | ClientError | Died | Bye

_ADAPTER: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="say")])


def parse_report(line: bytes) -> Report:
    """Parse a line that a client program wrote; raise ``WorkloadError`` if the line is not a report."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        start = repr(line[:_SHOWN].decode(errors="replace")) + (" ..." if len(line) > _SHOWN else "")
        raise WorkloadError(
            "the client wrote a line that is not a report "
            f"({where + ': ' if where else ''}{problem['msg']}): {start}; "
            "see docs/EXEC.md for what it may write to its standard output"
        ) from error


def start_order(assignment: Assignment, positions: Mapping[int, int] | None = None) -> bytes:
    """Return the first order to a client program; ``positions`` are a consumer's start offsets by partition."""
    # No other message or file contains the secrets of an attached cluster.
    security = assignment.security.resolved()
    connection = java_config(security) if assignment.client == "java" else librdkafka_config(security)
    order: dict[str, Any] = {
        "do": "start",
        "protocol": PROTOCOL,
        "op": assignment.op,
        "bootstrap": assignment.bootstrap,
        "client_id": assignment.worker,
        "client_rack": assignment.client_rack,
        "topic": assignment.topic,
        "partitions": assignment.partitions,
        "settings": {**connection, **assignment.settings},
    }
    if isinstance(assignment, ConsumeAssignment):
        return _line(order | {"group": assignment.group, "from": assignment.from_, "positions": positions})
    order["deadline_ms"] = assignment.deadline_ms
    if isinstance(assignment, ProduceAssignment):
        order |= {"acks": assignment.acks, "idempotence": assignment.idempotence, "linger_ms": assignment.linger_ms}
    if isinstance(assignment, CommitAssignment):
        order["groups"] = [assignment.group_of(seq) for seq in range(assignment.groups)]
    return _line(order)


def send_order(seq: int, key: bytes | None, value: bytes, headers: Sequence[Header]) -> bytes:
    named = [[name, _text(content)] for name, content in headers]
    return _line({"do": "send", "seq": seq, "key": _text(key), "value": _text(value), "headers": named})


def commit_order(seq: int, group: str, partition: int, offset: int) -> bytes:
    return _line({"do": "commit", "seq": seq, "group": group, "partition": partition, "offset": offset})


def close_order() -> bytes:
    return _line({"do": "close"})


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()
