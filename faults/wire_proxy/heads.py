"""How a request begins: what stands before its body in every version, and the ``acks`` of a Produce.

API key, version, correlation id and client id stand in the same places in versions 1 and 2 of the request header
(``RequestHeader.json`` of Kafka 4.3 keeps the client id's length short for that very reason). ``acks`` matters because
a Produce with ``acks=0`` has no answer: whoever waits for one takes the next request's answer for it.
"""

import struct
from typing import NamedTuple

from aftershock.faults.wire_proxy.apis import PRODUCE
from aftershock.workloads.wire.primitives import read_uvarint

Data = bytes | memoryview
CORRELATION = struct.Struct(">i")
_FIXED = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_SHORT = struct.Struct(">h")
_PRODUCE_FLEXIBLE_SINCE = 9


class Head(NamedTuple):
    """What a request's first bytes say. ``answered``: whether the broker will answer it."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    answered: bool


def read_head(data: Data, at: int) -> Head:
    """The head of the request whose message begins at ``at``; IndexError or struct.error if it ends within it."""
    key, version, correlation_id, size = _FIXED.unpack_from(data, at)
    at += _FIXED.size
    end = at + max(0, size)
    if end > len(data):
        raise IndexError
    client_id = None if size < 0 else str(data[at:end], "utf-8", "replace")
    answered = key != PRODUCE or _acks(data, end, flexible=version >= _PRODUCE_FLEXIBLE_SINCE) != 0
    return Head(key, version, correlation_id, client_id, answered)


def _acks(data: Data, at: int, *, flexible: bool) -> int:
    """Behind the header's tags, if it has any, and the transactional id."""
    if flexible:
        at = _behind_tags(data, at)
        size, at = read_uvarint(data, at)
        at += max(0, size - 1)
    else:
        (size,) = _SHORT.unpack_from(data, at)
        at += _SHORT.size + max(0, size)
    acks: int = _SHORT.unpack_from(data, at)[0]
    return acks


def _behind_tags(data: Data, at: int) -> int:
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise IndexError
    return at
