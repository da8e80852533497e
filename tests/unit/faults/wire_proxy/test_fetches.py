"""What the wire proxy observes of fetches: sessions, replicas and bytes, of clients that we wrote and of librdkafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema

from aftershock.faults.wire_proxy.fetches import Asked, read_asked
from aftershock.faults.wire_proxy.proxy import Control
from aftershock.tests.scripted.messages import KEYS, make
from aftershock.tests.unit.faults.wire_proxy.test_clients import RECORDS, consume, produce
from aftershock.tests.unit.scripted.client import batch
from aftershock.workloads.kafka.wire.codec import encode_frame

if TYPE_CHECKING:
    from uuid import UUID

    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient

OLDEST, NEWEST = 4, 18
NAMES = "established", "refused", "lost", "closed"


async def observe(hop: Hop) -> Control:
    control = Control(hop.proxy)
    await control.execute({"do": "observe", "on": True})
    return control


async def observed(control: Control) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the counters summed over brokers by client, and the new events."""
    found = await control.execute({"do": "observed"})
    assert found is not None
    totals: dict[str, Any] = {}
    for client, _, counts in found["counters"]:
        own = totals.setdefault(client, {})
        own |= {name: own.get(name, 0) + count for name, count in counts.items()}
    return totals, found["events"]


async def fetch(
    client: FrameClient, topic_id: UUID, session: int, epoch: int, *, lists: bool = True, **more: Any
) -> Any:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic_id": topic_id, "partitions": [asked]}] if lists else []
    fields = {"max_wait": 0, "max_bytes": 1 << 20, "session_id": session, "session_epoch": epoch, "topics": topics}
    return await client.ask("Fetch", 16, **fields, **more)


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
@pytest.mark.parametrize("client_id", [None, "a", "reader-b-consume"])
def test_the_session_of_a_request_in_each_version(version: int, client_id: str | None) -> None:
    fields = {"max_wait": 500, "max_bytes": 1 << 20, "session_id": 77, "session_epoch": 3}
    known = load_request_schema(KEYS["Fetch"], version)
    frame = encode_frame(make(known, fields), 9, client_id)
    assert (Asked(77, 3) if version >= 7 else Asked(0, -1)) == read_asked(frame, version)


async def test_a_fetch_session_from_its_grant_to_its_loss(broker: ScriptedBroker, hop: Hop) -> None:
    """A grant, an incremental fetch, an epoch that is not the next, and a close; bytes are those of whole frames."""
    topic_id = broker.create("t")
    control = await observe(hop)
    client = await hop.dial()
    client.send_produce("t", batch())
    await client.frame()
    session = (await fetch(client, topic_id, 0, 0)).session_id
    await fetch(client, topic_id, session, 1, lists=False)
    lost = await fetch(client, topic_id, session, 7, lists=False)
    await fetch(client, topic_id, session, -1, lists=False)
    await fetch(client, topic_id, 0, -1)
    totals, events = await observed(control)
    assert 71 == lost.error_code
    of_sessions = [(e["event"].removeprefix("wire_session_"), e["session_id"]) for e in events if "session_id" in e]
    assert [("established", session), ("lost", session), ("closed", session)] == of_sessions
    assert ["invalid_fetch_session_epoch"] == [event["error"] for event in events if "error" in event]
    counts = totals["tester"]
    assert (3, 2, 1) == tuple(counts[f"fetches_{kind}"] for kind in ("full", "incremental", "sessionless"))
    assert 2 * len(broker.log("t", 0)) == counts["fetch_record_bytes_full"]
    assert counts["fetch_response_bytes_full"] > counts["fetch_record_bytes_full"]
    assert counts["sent_bytes"] > counts["fetch_request_bytes_full"] + counts["fetch_request_bytes_incremental"]
    assert len(broker.log("t", 0)) == counts["fetch_record_bytes_incremental"]  # its offset has not moved
    assert [] == (await observed(control))[1]  # events are given once


async def test_librdkafka_opens_no_session(broker: ScriptedBroker, hop: Hop) -> None:
    """Each of its fetches lists all partitions and asks for no session; each leader serves its own partition."""
    broker.create("t", partitions=2, leaders=[1, 2])
    await asyncio.to_thread(produce, hop)
    control = await observe(hop)
    values = await asyncio.to_thread(consume, hop, **{"client.id": "rd"})
    totals, events = await observed(control)
    assert RECORDS == len(values)
    assert totals["rd"]["fetches_full"] == totals["rd"]["fetches_sessionless"] > 0
    assert "fetches_incremental" not in totals["rd"]
    assert [] == [event for event in events if "session" in event["event"]]
    served = {(e["partition"], e["node_id"]) for e in events if e["event"] == "wire_served"}
    assert {(0, 1), (1, 2)} == served
    logs = sum(len(broker.log("t", number)) for number in range(2))
    assert logs <= totals["rd"]["fetch_record_bytes_full"]


async def test_the_replica_that_a_leader_names(broker: ScriptedBroker, hop: Hop) -> None:
    topic_id = broker.create("t", replicas=[[1, 2]], leaders=[1])
    broker.prefer_replica("t", 0, 2, rack="a")
    control = await observe(hop)
    client = await hop.dial()
    await fetch(client, topic_id, 0, 0, rack_id="a")
    await fetch(client, topic_id, 0, 0)
    named = [e for e in (await observed(control))[1] if e["event"] == "wire_replica_named"]
    assert [(1, 0, 2)] == [(e["node_id"], e["partition"], e["replica"]) for e in named]


async def test_nothing_is_observed_unless_a_run_asks(broker: ScriptedBroker, hop: Hop) -> None:
    topic_id = broker.create("t")
    control = await observe(hop)
    await control.execute({"do": "observe", "on": False})
    await fetch(await hop.dial(), topic_id, 0, 0)
    assert await control.execute({"do": "observed"}) is None
