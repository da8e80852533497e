"""What a worker and the user's own client say to each other: one JSON object a line. ``docs/EXEC.md`` is the document.

The worker writes orders (``do``) to the client's standard input, the client writes reports (``say``) to its standard
output. Bytes are base64. Rule: a line that is no report is an error that shows the line; nothing is guessed at.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.security import kafka, librdkafka
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.spool import UNKNOWN

PROTOCOL = 1
"""The version of the protocol; it changes when a client that was right becomes wrong."""

_SHOWN = 200


def _bytes(text: object) -> object:
    """base64 as it should be; pydantic's own decoder passes over what is none."""
    return b64decode(text, validate=True) if isinstance(text, str) else text


Partition = Annotated[int, Field(ge=0, lt=2**31)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
MaybePartition = Annotated[int, Field(ge=UNKNOWN, lt=2**31)]
MaybeOffset = Annotated[int, Field(ge=UNKNOWN, lt=2**63)]
Header = tuple[str, bytes | None]


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ready(_Report):
    """The first record can be sent, or read; a member of a group has been assigned its partitions."""

    say: Literal["ready"] = "ready"


class Acked(_Report):
    """Kafka acknowledged record (or commit) ``seq``; -1 for a partition or an offset that the client wasn't told."""

    say: Literal["acked"] = "acked"
    seq: int
    partition: MaybePartition = UNKNOWN
    offset: MaybeOffset = UNKNOWN


class Failed(_Report):
    """The client gave ``seq`` up. ``in_doubt``: it may have been written all the same; None: judge by the error."""

    say: Literal["failed"] = "failed"
    seq: int
    error: str
    in_doubt: bool | None = None


class Record(_Report):
    """A record was handed to the application. ``mark`` is the value of its header ``aftershock``, None without one."""

    say: Literal["record"] = "record"
    partition: Partition
    offset: Offset
    mark: Annotated[bytes, BeforeValidator(_bytes)] | None
    size_bytes: Annotated[int, Field(ge=0, lt=2**31)]
    high_watermark: MaybeOffset = UNKNOWN
    leader_epoch: MaybePartition = UNKNOWN


class Assigned(_Report):
    """These partitions are read from now on; ``member`` is the client's id in its group, None outside one."""

    say: Literal["assigned"] = "assigned"
    partitions: tuple[Partition, ...]
    member: str | None = None


class Revoked(_Report):
    """These partitions are no longer read."""

    say: Literal["revoked"] = "revoked"
    partitions: tuple[Partition, ...]


class Traffic(_Report):
    """Bytes (sent, received) of each broker so far, over all connections: how exposure to faulty links is known."""

    say: Literal["traffic"] = "traffic"
    brokers: dict[int, tuple[int, int]]


class Trouble(_Report):
    """An error that ends nothing, for the run's events."""

    say: Literal["error"] = "error"
    error: str
    detail: str = ""


class Died(_Report):
    """The client can't go on; the last that it says."""

    say: Literal["died"] = "died"
    why: str


class Bye(_Report):
    """All is told and closed; the last that a client says after ``close``."""

    say: Literal["bye"] = "bye"


Report = Ready | Acked | Failed | Record | Assigned | Revoked | Traffic | Trouble | Died | Bye

_ADAPTER: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="say")])


def parse_report(line: bytes) -> Report:
    """The report in one line; ``WorkloadError`` that shows the line when it isn't one."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise WorkloadError(
            f"the client wrote what is no report ({where + ': ' if where else ''}{problem['msg']}): {shown(line)}; "
            "see docs/EXEC.md for what may stand on its standard output"
        ) from error


def shown(line: bytes) -> str:
    """The line, or how it begins, as text fit for a message."""
    return repr(line[:_SHOWN].decode(errors="replace")) + (" ..." if len(line) > _SHOWN else "")


def start_order(assignment: Assignment, positions: Mapping[int, int] | None = None) -> bytes:
    """The first line a client reads: what to be, where, and with which settings.

    ``positions`` is for a consumer without a group: where each partition is to be read from.
    """
    told: dict[str, Any] = {
        "do": "start",
        "protocol": PROTOCOL,
        "op": assignment.op,
        "bootstrap": assignment.bootstrap,
        "client_id": assignment.worker,
        "client_rack": assignment.client_rack,
        "topic": assignment.topic,
        "partitions": assignment.partitions,
        "settings": {**_secured(assignment), **assignment.settings},
    }
    return _line(told | _of_its_op(assignment, positions))


def _secured(assignment: Assignment) -> Mapping[str, Any]:
    """How to connect to an attached cluster, secrets included: this line is the one place where they are written."""
    security = assignment.security.resolved()
    return kafka(security) if assignment.client == "java" else librdkafka(security)


def _of_its_op(assignment: Assignment, positions: Mapping[int, int] | None) -> dict[str, Any]:
    if isinstance(assignment, ConsumeAssignment):
        return {"group": assignment.group, "from": assignment.from_, "positions": positions}
    told: dict[str, Any] = {"deadline_ms": assignment.deadline_ms}
    if isinstance(assignment, ProduceAssignment):
        told |= {"acks": assignment.acks, "idempotence": assignment.idempotence, "linger_ms": assignment.linger_ms}
    if isinstance(assignment, CommitAssignment):
        told["groups"] = [assignment.group_of(seq) for seq in range(assignment.groups)]
    return told


def send_order(seq: int, key: bytes | None, value: bytes, headers: Sequence[Header]) -> bytes:
    """Send this record."""
    named = [[name, _text(content)] for name, content in headers]
    return _line({"do": "send", "seq": seq, "key": _text(key), "value": _text(value), "headers": named})


def commit_order(seq: int, group: str, partition: int, offset: int) -> bytes:
    """Commit this offset of the topic for this group, which has no members."""
    return _line({"do": "commit", "seq": seq, "group": group, "partition": partition, "offset": offset})


def close_order() -> bytes:
    """Tell what is still to be told, leave the group, close, say bye and end with status 0."""
    return _line({"do": "close"})


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()
