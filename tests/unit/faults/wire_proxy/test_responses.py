"""Effects of rules on responses, after the broker has served the request, as observed by client and broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from uuid import UUID

    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient


DELAY_MS = 100
SESSION_NOT_FOUND = 70


def elapsed_ms(since_s: float) -> float:
    return (asyncio.get_running_loop().time() - since_s) * 1000


async def fetch(frame_client: FrameClient, topic_id: UUID, **fields: Any) -> Any:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {"max_wait": 0, "max_bytes": 1 << 20, "session_epoch": 0} | fields
    return await frame_client.ask("Fetch", 16, topics=[{"topic_id": topic_id, "partitions": [asked]}], **fields)


async def test_a_dropped_response_was_applied(broker: ScriptedBroker, hop: Hop) -> None:
    """The acknowledgement is ambiguous: the record is in the log, and the client's connection ends."""
    broker.create("t")
    hop.rule("drop_response", api="Produce")
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    assert b"" == await frame_client.rest()
    assert broker.log("t")


async def test_a_dropped_response_can_leave_silence(broker: ScriptedBroker, hop: Hop) -> None:
    """Later requests are served and not answered either; removal of the rule closes the connection."""
    broker.create("t")
    rule = hop.rule("drop_response", api="Produce", connection="silent")
    frame_client = await hop.dial()
    for _ in range(2):
        frame_client.send_produce("t", batch())
    assert await frame_client.is_silent()
    assert 2 == len(broker.journal("Produce"))
    hop.proxy.remove_rule(rule)
    assert b"" == await frame_client.rest()


async def test_delayed_responses(hop: Hop) -> None:
    """Each response arrives after its delay, in order."""
    hop.rule("delay_response", api="Metadata", delay_ms=DELAY_MS)
    assert await three_take_ms(hop) >= DELAY_MS


async def test_serial_delays_add_up(hop: Hop) -> None:
    """`serial` is a slow request handler: three requests take three delays."""
    hop.rule("delay_response", api="Metadata", delay_ms=DELAY_MS, serial=True)
    assert await three_take_ms(hop) >= 3 * DELAY_MS


async def three_take_ms(hop: Hop) -> float:
    frame_client = await hop.dial()
    began_s = asyncio.get_running_loop().time()
    for number in [frame_client.send("Metadata", 12, topics=[]) for _ in range(3)]:
        await frame_client.answer(number)
    return elapsed_ms(began_s)


async def test_half_a_response(broker: ScriptedBroker, hop: Hop) -> None:
    """Half of the bytes arrive, then the connection ends; the request was served."""
    broker.create("t")
    hop.rule("close_mid_frame", api="Produce")
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    received = await frame_client.rest()
    assert len(received) == (4 + int.from_bytes(received[:4])) // 2
    assert broker.log("t")


async def test_hints_are_removed(broker: ScriptedBroker, hop: Hop) -> None:
    """A partition's leader has moved: the error response names neither the leader nor its endpoint."""
    broker.create("t", leaders=[1])
    broker.move_leader("t", 0, to=2)
    plain = await (await hop.dial()).ask_moved("t")
    assert 2 == plain.responses[0].partition_responses[0].current_leader.leader_id
    assert [2] == [endpoint.node_id for endpoint in plain.node_endpoints]
    rule = hop.rule("strip_hints", api="Produce", hints=("current_leader", "node_endpoints"))
    response = await (await hop.dial()).ask_moved("t")
    assert -1 == response.responses[0].partition_responses[0].current_leader.leader_id
    assert () == response.node_endpoints
    assert 6 == response.responses[0].partition_responses[0].error_code
    assert 1 == hop.counts(rule)["hit"]


async def test_hints_are_falsified(broker: ScriptedBroker, hop: Hop) -> None:
    """The response names the broker of the rule, in the current epoch, at the proxy's address of that broker."""
    broker.create("t", leaders=[1])
    epoch = broker.move_leader("t", 0, to=2)
    hop.rule("falsify_hints", api="Produce", hints=("current_leader", "node_endpoints"), broker=1)
    response = await (await hop.dial()).ask_moved("t")
    hint = response.responses[0].partition_responses[0].current_leader
    assert (1, epoch) == (hint.leader_id, hint.leader_epoch)
    assert [hop.address(1).port] == [endpoint.port for endpoint in response.node_endpoints]


async def test_fetch_sessions_are_removed_or_falsified(broker: ScriptedBroker, hop: Hop) -> None:
    """Stripped: no session is granted. Falsified: the broker does not know the session, as the next fetch shows."""
    topic_id = broker.create("t")
    hop.rule("strip_hints", hints=("session_id",))
    assert 0 == (await fetch(await hop.dial(), topic_id)).session_id
    hop.proxy.remove_rule("strip_hints")
    hop.rule("falsify_hints", api="Fetch", hints=("session_id",), session_id=4711)
    frame_client = await hop.dial()
    assert 4711 == (await fetch(frame_client, topic_id)).session_id
    again = await frame_client.ask("Fetch", 16, session_id=4711, session_epoch=1, topics=[], max_wait=0)
    assert SESSION_NOT_FOUND == again.error_code


async def test_preferred_replicas_are_falsified_or_removed(broker: ScriptedBroker, hop: Hop) -> None:
    """A falsified response has another replica and no records, as from a broker; a stripped response has no replica."""
    topic_id = broker.create("t", leaders=[1])
    broker.append("t", 0, batch())
    hop.rule("falsify_hints", api="Fetch", hints=("preferred_replica",), broker=2)
    read = (await fetch(await hop.dial(), topic_id)).responses[0].partitions[0]
    assert (2, b"") == (read.preferred_read_replica, bytes(read.records))
    hop.proxy.remove_rule("falsify_hints")
    broker.prefer_replica("t", 0, 2)
    hop.rule("strip_hints", api="Fetch", hints=("preferred_replica",))
    read = (await fetch(await hop.dial(), topic_id)).responses[0].partitions[0]
    assert -1 == read.preferred_read_replica


async def test_errors_of_a_whole_fetch_and_of_its_partitions(broker: ScriptedBroker, hop: Hop) -> None:
    """A session error is set for the whole response; other errors are set per partition, whose records are removed."""
    topic_id = broker.create("t")
    broker.append("t", 0, batch())
    hop.rule("answer_error", api="Fetch", error=SESSION_NOT_FOUND)
    response = await fetch(await hop.dial(), topic_id)
    assert SESSION_NOT_FOUND == response.error_code
    hop.proxy.remove_rule("answer_error")
    hop.rule("answer_error", api="Fetch", error=1)
    response = await fetch(await hop.dial(), topic_id)
    assert (0, 1, b"") == (
        response.error_code,
        response.responses[0].partitions[0].error_code,
        bytes(response.responses[0].partitions[0].records),
    )


async def test_hidden_errors_of_a_whole_response_and_of_its_items(broker: ScriptedBroker, hop: Hop) -> None:
    """Only the rule's error becomes success, of a whole response and of its items; other responses pass unchanged."""
    topic_id = broker.create("t")
    frame_client = await hop.dial()
    rule = hop.rule("hide_error", api="Fetch", error=SESSION_NOT_FOUND)
    broker.script("Fetch", top_error=SESSION_NOT_FOUND)
    assert 0 == (await fetch(frame_client, topic_id)).error_code
    assert 1 == hop.counts(rule)["hit"]
    broker.script("Fetch", error=1)
    assert 1 == (await fetch(frame_client, topic_id)).responses[0].partitions[0].error_code
    hop.proxy.remove_rule("hide_error")
    rule = hop.rule("hide_error", api="Fetch", error=1)
    broker.script("Fetch", error=1)
    assert 0 == (await fetch(frame_client, topic_id)).responses[0].partitions[0].error_code
    await fetch(frame_client, topic_id)
    assert 1 == hop.counts(rule)["hit"]


async def test_capped_api_versions(hop: Hop) -> None:
    """Versions above the cap are not offered; an API capped below its lowest version or by None is not offered
    at all.
    """
    hop.rule("cap_versions", versions={"Fetch": 11, "Produce": 2, "Metadata": None}, api="ApiVersions")
    response = await (await hop.dial()).ask("ApiVersions", 3, client_software_name="x", client_software_version="1")
    offered = {entry.api_key: entry.max_version for entry in response.api_keys}
    assert 11 == offered[1]
    assert {0, 3}.isdisjoint(offered)
    assert {2, 8, 18} <= set(offered)


async def test_capped_features(hop: Hop, broker: ScriptedBroker) -> None:
    """The finalized level is lowered under a new epoch; with a level of 0 the feature is not finalized at all."""

    async def features() -> tuple[int, dict[str, int]]:
        asked = {"client_software_name": "x", "client_software_version": "1"}
        response = await (await hop.dial()).ask("ApiVersions", 3, **asked)
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        return response.finalized_features_epoch, levels

    broker.set_transaction_version(2)
    epoch, levels = await features()
    assert {"transaction.version": 2} == levels
    for cap, capped in ((1, {"transaction.version": 1}), (0, {})):
        hop.rule("cap_versions", api="ApiVersions", features={"transaction.version": cap})
        assert (epoch + 1, capped) == await features()
        hop.proxy.remove_rule("cap_versions")
    hop.rule("cap_versions", api="ApiVersions", features={"transaction.version": 2, "kraft.version": 0})
    assert (epoch, levels) == await features()


async def test_clients_negotiate_versions_again(hop: Hop) -> None:
    """A cap closes its clients' connections when it is added and when it is removed; other connections stay."""
    ours, other = await hop.dial("ours"), await hop.dial("other")
    for frame_client in (ours, other):
        await frame_client.ask("Metadata", 12, topics=[])
    hop.rule("cap_versions", api="ApiVersions", versions={"Fetch": 11}, clients=("ours",))
    assert b"" == await ours.rest()
    await other.ask("Metadata", 12, topics=[])
    again = await hop.dial("ours")
    await again.ask("Metadata", 12, topics=[])
    hop.proxy.remove_rule("cap_versions")
    assert b"" == await again.rest()


async def test_a_broker_that_refuses_the_version_of_api_versions(hop: Hop, broker: ScriptedBroker) -> None:
    """The broker answers an unknown version of ApiVersions in version 0 (KIP-511), which is capped as well."""
    hop.rule("cap_versions", api="ApiVersions", versions={"ApiVersions": 1})
    broker.script("ApiVersions", top_error=35)
    frame_client = await hop.dial()
    number = frame_client.send("ApiVersions", 0)
    response = await frame_client.answer(number)
    assert 35 == response.error_code
