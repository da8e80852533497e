"""Effects of rules on requests, as observed by client and broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop


NOT_LEADER, UNKNOWN_TOPIC = 6, 3
DELAY_MS = 200


def elapsed_ms(since_s: float) -> float:
    return (asyncio.get_running_loop().time() - since_s) * 1000


async def test_a_delayed_request_arrives_late_and_holds_up_what_follows(broker: ScriptedBroker, hop: Hop) -> None:
    """The next request does not overtake the delayed one; both are answered in order."""
    broker.create("t")
    rule = hop.rule("delay_request", api="Produce", delay_ms=DELAY_MS)
    frame_client = await hop.dial()
    began_s = asyncio.get_running_loop().time()
    produced, described = frame_client.send_produce("t", batch()), frame_client.send("Metadata", 12, topics=[])
    assert 0 == (await frame_client.answer(produced)).responses[0].partition_responses[0].error_code
    assert elapsed_ms(began_s) >= DELAY_MS
    await frame_client.answer(described)
    assert ["Produce", "Metadata"] == [seen.api for seen in broker.journal()]
    assert {"matched": 1, "hit": 1, "untouched": 0, "probed": 0} == hop.counts(rule)


async def test_a_dropped_request_never_arrives_and_its_connection_is_closed(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker does not receive the request, and the client's connection ends."""
    broker.create("t")
    hop.rule("drop_request", api="Produce")
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    assert b"" == await frame_client.rest()
    assert [] == broker.journal("Produce")


async def test_a_dropped_request_can_leave_silence(broker: ScriptedBroker, hop: Hop) -> None:
    """Later requests do not arrive either, as with lost packets; removal of the rule closes the connection."""
    broker.create("t")
    rule = hop.rule("drop_request", api="Produce", connection="silent")
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    frame_client.send("Metadata", 12, topics=[])
    assert await frame_client.is_silent()
    assert [] == broker.journal()
    hop.proxy.remove_rule(rule)
    assert b"" == await frame_client.rest()


async def test_a_doubled_request_is_applied_twice_and_answered_once(broker: ScriptedBroker, hop: Hop) -> None:
    """Without idempotence the records are in the log twice, and the next response belongs to the next request."""
    broker.create("t")
    hop.rule("duplicate_request", api="Produce")
    frame_client = await hop.dial()
    assert 0 == (await frame_client.produce("t", batch(count=3))).base_offset
    assert 6 == (await frame_client.produce("t", batch(count=3))).base_offset
    assert 4 == len(broker.journal("Produce"))
    await frame_client.ask("Metadata", 12, topics=[])


async def test_the_client_gets_the_second_response_to_a_doubled_request(broker: ScriptedBroker, hop: Hop) -> None:
    """The first response is discarded; the records that the client knows of are the second ones."""
    broker.create("t")
    hop.rule("duplicate_request", api="Produce", answer="second")
    frame_client = await hop.dial()
    assert 3 == (await frame_client.produce("t", batch(count=3))).base_offset
    assert 9 == (await frame_client.produce("t", batch(count=3))).base_offset
    await frame_client.ask("Metadata", 12, topics=[])


async def test_a_refused_produce_is_not_applied(broker: ScriptedBroker, hop: Hop) -> None:
    """The proxy answers with the rule's error without the broker: the response names the partition and has no
    offset.
    """
    broker.create("t")
    hop.rule("answer_error", api="Produce", error=NOT_LEADER)
    answer = await (await hop.dial()).produce("t", batch())
    assert (0, NOT_LEADER, -1) == (answer.index, answer.error_code, answer.base_offset)
    assert [] == broker.journal("Produce")


async def test_a_refusal_waits_for_the_answers_before_it(broker: ScriptedBroker, hop: Hop) -> None:
    """Responses keep the order of requests, also those made by the proxy."""
    broker.create("t")
    broker.script("Metadata", delay_ms=DELAY_MS)
    hop.rule("answer_error", api="Produce", error=NOT_LEADER)
    frame_client = await hop.dial()
    described, refused = frame_client.send("Metadata", 12, topics=[]), frame_client.send_produce("t", batch())
    await frame_client.answer(described)
    assert NOT_LEADER == (await frame_client.answer(refused)).responses[0].partition_responses[0].error_code


async def test_an_error_is_set_in_a_fetch_response(broker: ScriptedBroker, hop: Hop) -> None:
    """A read request is served by the broker, and its response is unchanged except for the error."""
    broker.create("t", partitions=2)
    hop.rule("answer_error", api="Metadata", error=UNKNOWN_TOPIC)
    response = await (await hop.dial()).ask("Metadata", 12, topics=[{"name": "t"}])
    assert [UNKNOWN_TOPIC] == [topic.error_code for topic in response.topics]
    assert 2 == len(response.brokers)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_produce_without_acks_is_never_answered(broker: ScriptedBroker, hop: Hop, version: int) -> None:
    """The proxy expects no response in any header version, so the next response matches its own request."""
    broker.create("t")
    frame_client = await hop.dial()
    for _ in range(3):
        frame_client.send_produce("t", batch(), acks=0, version=version)
    assert 9 == (await frame_client.produce("t", batch(), version=version)).base_offset
    hop.rule("answer_error", api="Produce", error=NOT_LEADER)
    frame_client.send_produce("t", batch(), acks=0, version=version)
    assert b"" == await frame_client.rest()


async def test_half_a_request(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker receives no complete request, and both connections end."""
    broker.create("t")
    hop.rule("close_mid_frame", api="Produce", message="request")
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    assert b"" == await frame_client.rest()
    assert [] == broker.journal("Produce")
