"""Transparency: messages without a matching rule pass unchanged, changed messages differ only where intended,
and invalid peers lose their connection.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema

from aftershock.faults.wire_proxy.messages import RequestHead, decoded_response, response_frame
from aftershock.faults.wire_proxy.proxy import Proxy, Route
from aftershock.faults.wire_proxy.rules import Rule
from aftershock.tests.scripted.messages import KEYS, make
from aftershock.tests.unit.scripted.client import batch
from aftershock.workloads.kafka.wire.codec import encode_frame
from aftershock.workloads.kafka.wire.connection import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop


REAL = json.loads((Path(__file__).parents[2] / "workloads" / "kafka" / "wire" / "real_responses.json").read_text())
DEADLINE_S = 10.0


class RecordingBroker:
    """A broker that records received data and sends prepared responses."""

    def __init__(self) -> None:
        self.heard = b""
        self.writers: list[asyncio.StreamWriter] = []
        self.news = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while data := await reader.read(1 << 16):
            async with self.news:
                self.heard += data
                self.news.notify_all()

    async def hears(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S), self.news:
            await self.news.wait_for(lambda: len(self.heard) >= len(data))
        assert data == self.heard


@pytest.fixture
async def recording_broker() -> AsyncIterator[RecordingBroker]:
    broker = RecordingBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = Address(*server.sockets[0].getsockname())  # type: ignore[attr-defined]
    yield broker
    for writer in broker.writers:
        writer.close()
    server.close()


@pytest.fixture
async def proxy(recording_broker: RecordingBroker) -> AsyncIterator[Proxy]:
    proxy = Proxy([Route("client_a-k1", "a", 1, recording_broker.address)])  # type: ignore[attr-defined]
    await proxy.open()
    yield proxy
    proxy.close()
    await asyncio.sleep(0)


def kind_of(real: dict[str, str]) -> Any:
    module, _, name = real["type"].rpartition(".")
    return getattr(import_module(module), name)


def request_to(real: dict[str, str]) -> bytes:
    """Return a request that this response answers, with the response's correlation id."""
    kind, message = kind_of(real), base64.b64decode(real["message"])
    (correlation_id,) = struct.unpack_from(">i", message)
    body = b"\x01\x00\x01" + bytes(8)  # of a Produce: no transactional id, and acks that require a response
    head = struct.pack(">hhih", kind.__api_key__, kind.__version__, correlation_id, 6) + b"tester"
    flexible = b"\x00" if kind.__header_schema__.__flexible__ else b""
    return struct.pack(">i", len(head + flexible + body)) + head + flexible + body


def framed(real: dict[str, str]) -> bytes:
    message = base64.b64decode(real["message"])
    return struct.pack(">i", len(message)) + message


RULES = {
    "none": [],
    "one that meets others": [Rule(name="r", do="drop_response", clients=("somebody-else",))],
    "one that finds nothing to change": [
        Rule(name="r", do="falsify_hints", hints=("current_leader",), broker=9, api="ListOffsets")
    ],
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
async def test_recorded_responses_pass_byte_by_byte(
    recording_broker: RecordingBroker, proxy: Proxy, rules: list[Rule]
) -> None:
    """Each recorded response and a request for it pass unchanged, also in pieces."""
    for rule in rules:
        proxy.add_rule(rule)
    reader, writer = await asyncio.open_connection(*proxy.addresses["client_a-k1"])
    asked = b"".join(map(request_to, REAL))
    for at in range(0, len(asked), 997):
        writer.write(asked[at : at + 997])
        await writer.drain()
    await recording_broker.hears(asked)
    answers = b"".join(map(framed, REAL))
    recording_broker.writers[0].write(answers)
    async with asyncio.timeout(DEADLINE_S):
        assert answers == await reader.readexactly(len(answers))
    writer.close()


@pytest.mark.parametrize("real", REAL, ids=lambda real: real["type"].split(".")[-3] + real["message"][:6])
def test_recorded_responses_are_encoded_to_the_same_bytes(real: dict[str, str]) -> None:
    """Decoding and encoding gives the same bytes, so a rule may change the response."""
    kind, message = kind_of(real), base64.b64decode(real["message"])
    (correlation_id,) = struct.unpack_from(">i", message)
    body = decoded_response(
        framed(real), RequestHead(kind.__api_key__, kind.__version__, correlation_id, None, answered=True)
    )
    assert body is not None
    assert framed(real) == response_frame(body, correlation_id)


def test_responses_with_unknown_tags_are_not_changed() -> None:
    """Decoding would lose the tag, so the response passes unchanged."""
    real = next(each for each in REAL if ".metadata." in each["type"])
    kind, message = kind_of(real), base64.b64decode(real["message"])
    tagged = message[:-1] + b"\x01\x63\x02ab"  # one more tagged field: number 99, two bytes
    head = RequestHead(kind.__api_key__, kind.__version__, 0, None, answered=True)
    assert decoded_response(struct.pack(">i", len(tagged)) + tagged, head) is None


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", bytes(8), b"\xff" * 64],
    ids=["http", "tls", "zeros", "ones"],
)
async def test_a_peer_without_the_kafka_protocol_loses_its_connection(hop: Hop, sent: bytes) -> None:
    """None of its bytes reach the broker, and other connections continue."""
    other, bad = await hop.dial(), await hop.dial()
    bad.writer.write(sent)
    assert b"" == await bad.rest()
    await other.ask("Metadata", 12, topics=[])


async def test_a_slow_client_stops_reading_from_the_broker(recording_broker: RecordingBroker, proxy: Proxy) -> None:
    """Bytes that a client does not read are not buffered: the proxy stops reading from the broker."""
    _, writer = await asyncio.open_connection(*proxy.addresses["client_a-k1"])
    request = metadata_request()
    writer.write(request)
    await recording_broker.hears(request)
    large = struct.pack(">ii", 64_000_000, 1)
    recording_broker.writers[0].write(large + bytes(48_000_000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await recording_broker.writers[0].drain()
    writer.close()


async def test_a_delay_keeps_no_more_than_its_limit(recording_broker: RecordingBroker, proxy: Proxy) -> None:
    """Behind a delayed request the proxy stops reading from the client once about a megabyte waits."""
    proxy.add_rule(Rule(name="r", do="delay_request", delay_ms=600_000))
    _, writer = await asyncio.open_connection(*proxy.addresses["client_a-k1"])
    frame = struct.pack(">ihhih", 500_000, 3, 12, 1, -1) + bytes(499_990)
    writer.write(frame * 60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.drain()
    assert b"" == recording_broker.heard
    writer.transport.abort()


def metadata_request() -> bytes:
    return encode_frame(make(load_request_schema(KEYS["Metadata"], 12), {"topics": []}), 1, "tester")


async def test_a_broker_that_is_down(broker: ScriptedBroker, hop: Hop) -> None:
    """A connection is accepted and closed at once; when the broker is up again, the next connection works."""
    broker.create("t")
    broker.down(2)
    assert b"" == await (await hop.dial(node=2)).rest()
    broker.up(2)
    await (await hop.dial(node=2)).ask("Metadata", 12, topics=[])


async def test_the_last_response_arrives_before_the_end(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker answers and closes: the delayed response arrives, then the end of the connection."""
    broker.create("t")
    broker.script("Produce", cut_bytes=1_000)
    hop.rule("delay_response", api="Produce", delay_ms=100)
    frame_client = await hop.dial()
    assert 0 == (await frame_client.produce("t", batch())).error_code
    assert b"" == await frame_client.rest()
