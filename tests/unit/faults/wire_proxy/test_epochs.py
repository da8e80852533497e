"""Leader epochs that clients see through the wire proxy, and requests that brokers do not fence for them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient


FENCED = 74


def false_epochs(hop: Hop, topic_id: Any, *highest: int, **scope: Any) -> str:
    named = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return hop.rule("falsify_epochs", topic="t", topic_id=named, epochs=highest, **scope)


async def described(frame_client: FrameClient, *topics: str) -> dict[str, list[tuple[int, int]]]:
    """Return (leader, epoch) of each partition; without names, of all topics."""
    asked = [{"name": topic} for topic in topics] or None
    response = await frame_client.ask("Metadata", 12, topics=asked)
    return {topic.name: [(part.leader_id, part.leader_epoch) for part in topic.partitions] for topic in response.topics}


@pytest.mark.parametrize("names", [(), ("t", "u")])
async def test_metadata(broker: ScriptedBroker, hop: Hop, names: tuple[str, ...]) -> None:
    """The leader moves, and its epoch does not rise; other topics are told truly, also in metadata of all topics."""
    topic_id = broker.create("t", partitions=2, leaders=[1, 1])
    broker.create("u", leaders=[1])
    frame_client = await hop.dial()
    (_, first), (_, second) = (await described(frame_client, "t"))["t"]
    rule = false_epochs(hop, topic_id, first, -1)
    assert {"t": [(1, first), (1, -1)]} == await described(frame_client, "t")
    raised = broker.move_leader("t", 0, to=2), broker.move_leader("u", 0, to=2)
    assert raised > (first, second)
    assert {"t": [(2, first), (1, -1)], "u": [(2, raised[1])]} == await described(frame_client, *names)
    hop.proxy.remove_rule(rule)
    assert {"t": [(2, raised[0]), (1, second)]} == await described(frame_client, "t")


async def test_one_partition(broker: ScriptedBroker, hop: Hop) -> None:
    topic_id = broker.create("t", partitions=2, leaders=[1, 1])
    before = (await described(await hop.dial(), "t"))["t"]
    false_epochs(hop, topic_id, -1, -1, partition=1)
    assert [before[0], (1, -1)] == (await described(await hop.dial(), "t"))["t"]


async def test_the_hint_beside_an_error(broker: ScriptedBroker, hop: Hop) -> None:
    """The true leader in a false epoch; the count is of changed responses."""
    topic_id = broker.create("t", leaders=[1])
    broker.move_leader("t", 0, to=2)
    rule = false_epochs(hop, topic_id, 0)
    hint = (await (await hop.dial()).ask_moved("t")).responses[0].partition_responses[0].current_leader
    assert (2, 0) == (hint.leader_id, hint.leader_epoch)
    assert (1, 0) == (hop.counts(rule)["hit"], hop.counts(rule)["untouched"])


async def test_a_client_that_repeats_a_false_epoch_is_not_fenced(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker would fence it; the wire proxy removes the epoch from its requests."""
    topic_id = broker.create("t", leaders=[2])
    broker.append("t", 0, batch())
    broker.move_leader("t", 0, to=1)
    part = {"partition": 0, "current_leader_epoch": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}

    async def fetched() -> Any:
        frame_client = await hop.dial()
        answer = await frame_client.ask(
            "Fetch", 16, topics=[{"topic_id": topic_id, "partitions": [part]}], max_wait=0, session_epoch=-1
        )
        return answer.responses[0].partitions[0]

    assert FENCED == (await fetched()).error_code
    false_epochs(hop, topic_id, 0)
    served = await fetched()
    assert 0 == served.error_code
    assert served.records


async def test_epochs_of_the_log_stay_true(broker: ScriptedBroker, hop: Hop) -> None:
    """OffsetForLeaderEpoch answers about the log, which a consumer needs to find a truncation."""
    topic_id = broker.create("t", leaders=[2])
    broker.append("t", 0, batch())
    epoch = broker.move_leader("t", 0, to=1)
    false_epochs(hop, topic_id, -1)
    part = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": epoch}
    answer = await (await hop.dial()).ask("OffsetForLeaderEpoch", 4, topics=[{"topic": "t", "partitions": [part]}])
    (end,) = answer.topics[0].partitions
    assert (0, epoch) == (end.error_code, end.leader_epoch)
