"""Requests that a rule matches, and the counters of a rule."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.faults.wire_proxy.rules import Rule, probe_id, rule_from
from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from uuid import UUID

    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop


REFUSED = 6


async def errors(hop: Hop, topic: str, partitions: list[int], client_id: str | None = "tester") -> list[int]:
    """Return the error codes of Produce requests to each of the partitions, one after the other."""
    frame_client = await hop.dial(client_id)
    return [int((await frame_client.produce(topic, batch(), partition=number)).error_code) for number in partitions]


def refuse(hop: Hop, **scope: Any) -> str:
    return hop.rule("answer_error", api="Produce", error=REFUSED, **scope)


async def test_by_topic_and_partition(broker: ScriptedBroker, hop: Hop) -> None:
    """Only requests with this topic and partition match; other requests are not counted."""
    for topic in ("t", "u"):
        broker.create(topic, partitions=2, leaders=[1, 1])
    rule = refuse(hop, topic="t", partition=1)
    assert [0, REFUSED] == await errors(hop, "t", [0, 1])
    assert [0, 0] == await errors(hop, "u", [0, 1])
    assert (1, 1) == (hop.counts(rule)["matched"], hop.counts(rule)["hit"])


async def test_by_topic_id(broker: ScriptedBroker, hop: Hop) -> None:
    """Requests that name topics only by id match by the id in the rule."""
    ids = {topic: broker.create(topic) for topic in ("t", "u")}
    hop.rule("answer_error", api="Fetch", error=1, topic="t", topic_id=kafkas(ids["t"]))
    frame_client = await hop.dial()
    told = {}
    for topic, topic_id in ids.items():
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        answer = await frame_client.ask(
            "Fetch", 16, topics=[{"topic_id": topic_id, "partitions": [asked]}], max_wait=0, session_epoch=-1
        )
        told[topic] = [int(partition.error_code) for topic in answer.responses for partition in topic.partitions]
    assert {"t": [1], "u": [0]} == {topic: codes or [0] for topic, codes in told.items()}


def kafkas(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


async def test_a_fetch_of_a_session_may_be_about_any_topic(broker: ScriptedBroker, hop: Hop) -> None:
    """An incremental fetch names only changes (KIP-227), so a rule for a topic matches it; a full fetch must
    name the topic.
    """
    broker.create("t")
    rule = hop.rule("delay_request", api="Fetch", topic="t", topic_id=kafkas(broker.create("u")))
    frame_client = await hop.dial()
    await frame_client.ask("Fetch", 16, session_id=0, session_epoch=0, topics=[], max_wait=0)
    assert 0 == hop.counts(rule)["matched"]
    await frame_client.ask("Fetch", 16, session_id=1, session_epoch=1, topics=[], max_wait=0)
    assert 1 == hop.counts(rule)["matched"]


async def test_by_client(broker: ScriptedBroker, hop: Hop) -> None:
    """A client matches by its id, also with a number appended; other clients and requests without client id do
    not match.
    """
    broker.create("t")
    refuse(hop, clients=("w-a-produce",))
    told = {name: await errors(hop, "t", [0], name) for name in ("w-a-produce", "w-a-produce-3", "w-a-producer", None)}
    assert {"w-a-produce": [6], "w-a-produce-3": [6], "w-a-producer": [0], None: [0]} == told


async def test_the_nth(broker: ScriptedBroker, hop: Hop) -> None:
    """One matching request is hit, on whichever connection it arrives."""
    broker.create("t")
    rule = refuse(hop, nth=3)
    assert [0, 0] == await errors(hop, "t", [0, 0])
    assert [REFUSED, 0] == await errors(hop, "t", [0, 0])
    assert (4, 1) == (hop.counts(rule)["matched"], hop.counts(rule)["hit"])


async def test_by_drawn_chances(broker: ScriptedBroker, hop: Hop) -> None:
    """The draws are used in order, and again from the start."""
    broker.create("t")
    refuse(hop, chances="011")
    assert [0, 6, 6, 0, 6, 6, 0] == await errors(hop, "t", [0] * 7)


async def test_a_probe_matches_only_its_own_rule(broker: ScriptedBroker, hop: Hop) -> None:
    """A probe matches its rule despite the rule's scope, is not counted, and uses no draw."""
    broker.create("t")
    rule = refuse(hop, topic="elsewhere", clients=("nobody",), nth=1)
    hop.rule("drop_request", api="Produce", topic="t", clients=("somebody",))
    assert [REFUSED] == await errors(hop, "t", [0], probe_id(rule))
    assert {"matched": 0, "hit": 0, "untouched": 0, "probed": 1} == hop.counts(rule)
    assert [0] == await errors(hop, "t", [0], probe_id("some-other-rule"))


async def test_unreadable_requests_pass_and_are_counted(hop: Hop) -> None:
    """A request of an unknown version passes a rule for a topic unchanged, and is counted as untouched."""
    rule = hop.rule("drop_request", topic="t")
    frame_client = await hop.dial()
    head = bytes.fromhex("0003 7fff 00000001 0006") + b"tester"
    frame_client.writer.write(len(head).to_bytes(4) + head)
    await frame_client.rest()
    assert (0, 1) == (hop.counts(rule)["hit"], hop.counts(rule)["untouched"])


async def test_several_rules_on_one_request(broker: ScriptedBroker, hop: Hop) -> None:
    """Each rule applies: the request is duplicated, and its response is delayed."""
    broker.create("t")
    names = [hop.rule("duplicate_request", api="Produce"), hop.rule("delay_response", api="Produce", delay_ms=50)]
    assert [0] == await errors(hop, "t", [0])
    assert 2 == len(broker.journal("Produce"))
    assert [1, 1] == [hop.counts(name)["hit"] for name in names]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"do": "explode"}, "explode"),
        ({"api": "Prodcue"}, "Prodcue"),
        ({"hints": ["leader"]}, "leader"),
        ({"delay_ms": -1}, "delay"),
        ({"chances": "0x1"}, "chances"),
        ({"colour": "red"}, "invalid rule"),
    ],
)
def test_invalid_rules(fields: dict[str, Any], wrong: str) -> None:
    """The error names the mistake."""
    with pytest.raises(ValueError, match=wrong):
        rule_from({"name": "r", "do": "drop_request", **fields})


def test_a_rule_through_json() -> None:
    """A rule reads back equal, and only its given fields are written."""
    rule = Rule(name="r", do="cap_versions", api="ApiVersions", versions={"Fetch": 3}, clients=("a", "b"))
    assert rule == rule_from(rule.as_json())
    assert {"name", "do", "api", "versions", "clients"} == set(rule.as_json())
