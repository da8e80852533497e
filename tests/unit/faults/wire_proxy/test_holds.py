"""Requests of transactions that the wire proxy holds until a later transaction of their producer is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema, load_response_schema

from aftershock.faults.wire_proxy.holds import Holds
from aftershock.faults.wire_proxy.messages import RequestHead
from aftershock.faults.wire_proxy.proxy import Control
from aftershock.faults.wire_proxy.rules import Rule
from aftershock.tests.scripted.messages import KEYS, make
from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from aftershock.faults.wire_proxy.holds import Hold
    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient

TID, PID = "payments-1", 7
CONCURRENT, FENCED = 51, 90
VERSIONS = {"EndTxn": 4, "AddPartitionsToTxn": 3, "Produce": 11, "InitProducerId": 4, "TxnOffsetCommit": 3}


def request(api: str, *, epoch: int = 0, records: int = 1, partition: int = 0, **fields: Any) -> Any:
    fields |= {"transactional_id": fields.get("transactional_id", TID), "producer_id": PID, "producer_epoch": epoch}
    if api == "AddPartitionsToTxn":
        topics = [{"name": "t", "partitions": [partition]}]
        fields = {f"v3_and_below_{name}": value for name, value in fields.items()}
        fields["v3_and_below_topics"] = topics
    if api == "Produce":
        data = batch(records, producer_id=PID, producer_epoch=epoch, base_sequence=0, transactional=True)
        fields["topic_data"] = [{"name": "t", "partition_data": [{"index": partition, "records": data}]}]
    return make(load_request_schema(KEYS[api], VERSIONS[api]), fields)


def response(api: str, error: int = 0, partition: int = 0) -> Any:
    answer: dict[str, Any] = {"error_code": error}
    if api == "Produce":
        parts = [{"index": partition, "error_code": error}]
        answer = {"responses": [{"name": "t", "partition_responses": parts}]}
    return make(load_response_schema(KEYS[api], VERSIONS[api]), answer)


class Producer:
    """One producer whose EndTxn is held; what it sends passes the proxy, and is answered."""

    def __init__(self, sent: int, api: str = "EndTxn", **fields: Any) -> None:
        self.now_ns = 0
        self.holds = Holds(lambda: self.now_ns)
        self.released = 0
        self.counts = {"exposed": 0}
        rule = Rule(name="late", do="hold_request", api=api, sent=sent)
        self.hold: Hold = self.holds.hold(
            rule, self.counts, self.head(api), request(api, **({"committed": True} | fields)), 1, self.count
        )

    def head(self, api: str, client_id: str = "p") -> RequestHead:
        return RequestHead(KEYS[api], VERSIONS[api], 1, client_id, answered=True)

    def count(self) -> None:
        self.released += 1

    def ask(self, api: str, **fields: Any) -> Callable[..., None]:
        """Send a request, and return the function that answers it."""
        head = self.head(api)
        watched = self.holds.saw_request(head, request(api, **fields))

        def answer(error: int = 0) -> None:
            self.holds.saw_response(watched, head, response(api, error, fields.get("partition", 0)))

        return answer

    def send(self, api: str, error: int = 0, **fields: Any) -> None:
        self.ask(api, **fields)(error)

    def arrive(self, error: int = 0) -> dict[str, Any]:
        """Let the broker answer the held request, and return its event."""
        self.holds.answered(self.hold, response(self.hold.api, error))
        (event,) = self.holds.take()
        return event


def test_a_request_is_released_when_enough_records_of_the_next_transaction_are_acknowledged() -> None:
    producer = Producer(sent=3)
    producer.send("Produce", records=5)  # of its own transaction
    producer.send("EndTxn", committed=True)
    producer.send("AddPartitionsToTxn")
    producer.send("Produce", records=2)
    assert not producer.released
    producer.now_ns = 4_000_000
    producer.send("Produce", partition=1)
    assert 1 == producer.released
    producer.now_ns = 7_000_000
    event = producer.arrive()
    assert ("held_request_delivered", "open", "NONE") == (event["event"], event["met"], event["answer"])
    assert (3, 4.0, 3.0) == (event["records"], event["held_ms"], event["answered_ms"])
    assert ("late", TID, PID, 0, "commit") == tuple(
        event[name] for name in ("fault", "transactional_id", "producer_id", "epoch", "outcome")
    )
    assert {"exposed": 1} == producer.counts


def test_what_is_delivered_before_the_next_transaction_begins_is_no_exposure() -> None:
    """The harmless twin: the coordinator has nothing open that the late request could end."""
    producer = Producer(sent=0)
    producer.send("EndTxn", committed=True)
    assert 1 == producer.released
    assert "between" == producer.arrive()["met"]
    waiting = Producer(sent=1)
    waiting.send("EndTxn", committed=True)
    assert not waiting.released
    waiting.hold.ends_at_release = 1  # delivered all the same
    assert "between" == waiting.arrive()["met"]
    assert {"exposed": 0} == waiting.counts


@pytest.mark.parametrize("end", ["EndTxn", "InitProducerId"])
def test_an_end_that_may_have_overtaken_the_request_leaves_doubt(end: str) -> None:
    """Nobody knows which of both requests the coordinator handled first, so this is no exposure."""
    producer = Producer(sent=1)
    producer.send("EndTxn", committed=True)
    producer.send("Produce")
    answer = producer.ask(end)
    assert "in_doubt" == producer.arrive()["met"]
    answer()
    answered = Producer(sent=1)
    answered.send("EndTxn", committed=True)
    answered.send("Produce")
    answered.send(end)
    assert "in_doubt" == answered.arrive()["met"]
    assert {"exposed": 0} == producer.counts == answered.counts


def test_records_that_were_sent_before_the_end_never_count() -> None:
    producer = Producer(sent=1)
    late = producer.ask("Produce")
    producer.send("EndTxn", committed=True)
    late()
    assert not producer.released


def test_refused_records_and_ends_do_not_count() -> None:
    producer = Producer(sent=1)
    producer.send("EndTxn", CONCURRENT, committed=True)
    producer.send("Produce")
    assert not producer.released
    producer.send("EndTxn", committed=True)
    producer.send("Produce", FENCED)
    assert not producer.released
    producer.send("Produce")
    assert 1 == producer.released


def test_a_transaction_that_ends_too_early_leaves_the_request_to_the_next_one() -> None:
    producer = Producer(sent=2)
    producer.send("EndTxn", committed=True)
    producer.send("Produce")
    producer.send("EndTxn", committed=False)
    producer.send("Produce")
    assert not producer.released
    producer.send("Produce")
    assert 1 == producer.released
    assert "open" == producer.arrive(FENCED)["met"]


def test_a_transaction_that_is_about_to_end_is_not_met() -> None:
    """The last record is acknowledged after the producer has asked for the end."""
    producer = Producer(sent=1)
    producer.send("EndTxn", committed=True)
    acknowledge = producer.ask("Produce")
    end = producer.ask("EndTxn", committed=False)
    acknowledge()
    assert not producer.released
    end()
    assert not producer.released


def test_other_producers_are_not_watched() -> None:
    producer = Producer(sent=0)
    assert producer.holds.watches(producer.head("EndTxn"))
    assert not producer.holds.watches(producer.head("EndTxn", "q"))
    assert () == producer.holds.saw_request(producer.head("EndTxn"), request("EndTxn", transactional_id="other"))
    assert not producer.holds.has_held(request("EndTxn", transactional_id="other"))
    assert producer.holds.has_held(request("Produce"))


def test_a_request_that_is_never_delivered_is_told() -> None:
    producer = Producer(sent=1)
    producer.now_ns = 5_000_000
    producer.holds.lost(producer.hold, "its rule was removed")
    producer.holds.lost(producer.hold, "the connections were closed")
    (event,) = producer.holds.take()
    told = ("held_request_lost", "its rule was removed", False, 5.0)
    assert told == (event["event"], event["why"], event["released"], event["held_ms"])
    producer.send("EndTxn", committed=True)
    producer.send("Produce")
    assert not producer.released


@pytest.mark.parametrize(
    ("api", "fields", "outcome", "held"),
    [
        ("EndTxn", {"committed": True}, None, True),
        ("EndTxn", {"committed": True}, "commit", True),
        ("EndTxn", {"committed": False}, "commit", False),
        ("EndTxn", {"committed": False}, "abort", True),
        ("AddPartitionsToTxn", {}, None, True),
        ("TxnOffsetCommit", {}, None, True),
        ("Produce", {}, None, True),
        ("Produce", {"transactional_id": None}, None, False),
        ("InitProducerId", {"transactional_id": None}, None, False),
    ],
)
def test_requests_that_can_be_held(api: str, fields: dict[str, Any], outcome: Any, *, held: bool) -> None:
    rule = Rule(name="late", do="hold_request", api=api, outcome=outcome)
    assert held == Holds().may_hold(rule, request(api, **fields))


def test_a_rule_with_an_unknown_outcome() -> None:
    with pytest.raises(ValueError, match="outcome is 'maybe'; use commit, abort"):
        Rule(name="late", do="hold_request", api="EndTxn", outcome="maybe")  # type: ignore[arg-type]


class Session:
    """A transactional producer of version 1 behind the proxy, on one connection after the other."""

    def __init__(self, hop: Hop, node: int) -> None:
        self.hop, self.node, self.sequence = hop, node, 0
        self.producer_id = self.epoch = -1

    @classmethod
    async def open(cls, hop: Hop) -> Session:
        """Begin at the node that coordinates the transactional id."""
        for node in (1, 2):
            session = cls(hop, node)
            answer = await session.ask("InitProducerId", transactional_id=TID)
            if not answer.error_code:
                session.producer_id, session.epoch = answer.producer_id, answer.producer_epoch
                return session
        raise AssertionError("no node coordinates the transactional id")

    async def dial(self) -> FrameClient:
        return await self.hop.dial("p", self.node)

    async def ask(self, api: str, **fields: Any) -> Any:
        return await (await self.dial()).ask(api, VERSIONS[api], **fields)

    @property
    def ids(self) -> dict[str, Any]:
        return {"transactional_id": TID, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def produce(self) -> int:
        fields = {f"v3_and_below_{name}": value for name, value in self.ids.items()}
        await self.ask("AddPartitionsToTxn", v3_and_below_topics=[{"name": "t", "partitions": [0]}], **fields)
        data = batch(
            1,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += 1
        topics = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
        client = await self.hop.dial("p", 1)  # the leader
        answer = await client.ask("Produce", 11, transactional_id=TID, acks=-1, topic_data=topics)
        return int(answer.responses[0].partition_responses[0].error_code)

    async def end(self, *, commit: bool) -> int:
        return int((await self.ask("EndTxn", committed=commit, **self.ids)).error_code)

    async def give_up(self, *, commit: bool = True) -> None:
        """Ask for the end, and lose the connection before the answer."""
        client = await self.dial()
        client.send("EndTxn", VERSIONS["EndTxn"], committed=commit, **self.ids)
        assert b"" == await client.rest()


async def events(control: Control) -> list[dict[str, Any]]:
    """Return the events of held requests as soon as there are some."""
    async with asyncio.timeout(10):
        while not (found := (await control.execute({"do": "held"}) or {})["events"]):  # noqa: ASYNC110 -- no event tells it
            await asyncio.sleep(0.01)
    return list(found)


async def test_a_late_commit_ends_the_next_transaction_of_version_1(broker: ScriptedBroker, hop: Hop) -> None:
    """The client's connection is closed, its repeated commit passes, and the held one ends the next transaction."""
    broker.create("t", leaders=[1])
    rule = hop.rule("hold_request", api="EndTxn", nth=1, sent=1, outcome="commit")
    session = await Session.open(hop)
    assert 0 == await session.produce()
    await session.give_up()
    assert 0 == await session.end(commit=True)
    assert 0 == await session.produce()
    (event,) = await events(Control(hop.proxy))
    assert ("held_request_delivered", "open", "NONE") == (event["event"], event["met"], event["answer"])
    assert (session.node, "p", "EndTxn") == (event["node_id"], event["worker"], event["api"])
    assert 48 == await session.end(commit=False)  # INVALID_TXN_STATE: the application's abort comes too late
    assert (1, 1) == (hop.counts(rule)["hit"], hop.counts(rule)["exposed"])
    assert 3 == len(broker.journal("EndTxn"))


async def test_a_late_commit_before_the_next_transaction_does_no_harm(broker: ScriptedBroker, hop: Hop) -> None:
    """The twin: released at the end of its own transaction, it repeats what has been done."""
    broker.create("t", leaders=[1])
    hop.rule("hold_request", api="EndTxn", nth=1, sent=0)
    session = await Session.open(hop)
    await session.produce()
    await session.give_up()
    assert 0 == await session.end(commit=True)
    (event,) = await events(Control(hop.proxy))
    assert ("between", "NONE") == (event["met"], event["answer"])
    assert 0 == await session.produce()
    assert 0 == await session.end(commit=False)


async def test_a_client_that_waits_gets_the_late_answer(broker: ScriptedBroker, hop: Hop) -> None:
    """With a silent connection, the client may be patient; what it sends behind the held request waits, too."""
    broker.create("t", leaders=[1])
    hop.rule("hold_request", api="EndTxn", nth=1, sent=0, connection="silent")
    session = await Session.open(hop)
    await session.produce()
    patient = await session.dial()
    held = patient.send("EndTxn", VERSIONS["EndTxn"], committed=True, **session.ids)
    behind = patient.send("Metadata", 12, topics=[])
    assert await patient.is_silent()
    assert 0 == await session.end(commit=True)
    assert 0 == (await patient.answer(held)).error_code
    await patient.answer(behind)


async def test_the_heal_loses_what_is_held(broker: ScriptedBroker, hop: Hop) -> None:
    """The request never arrives, and a client that waits for its answer loses its connection."""
    broker.create("t", leaders=[1])
    rule = hop.rule("hold_request", api="EndTxn", sent=1, connection="silent")
    session = await Session.open(hop)
    await session.produce()
    patient = await session.dial()
    patient.send("EndTxn", VERSIONS["EndTxn"], committed=True, **session.ids)
    assert await patient.is_silent()
    hop.proxy.remove_rule(rule)
    assert b"" == await patient.rest()
    (event,) = await events(Control(hop.proxy))
    assert ("held_request_lost", "its rule was removed") == (event["event"], event["why"])
    assert [] == broker.journal("EndTxn")


async def test_a_broker_that_dies_takes_the_held_request_with_it(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t", leaders=[1])
    hop.rule("hold_request", api="EndTxn", nth=1, sent=1)
    session = await Session.open(hop)
    await session.produce()
    await session.give_up()
    (held,) = [pair for pair in hop.proxy.pairs if pair.conversation.held]
    held.broker.abort()
    (event,) = await events(Control(hop.proxy))
    assert ("held_request_lost", "the broker's connection ended") == (event["event"], event["why"])
    assert held not in hop.proxy.pairs


@pytest.mark.parametrize(
    "do", ["delay_request", "delay_response", "drop_request", "drop_response", "duplicate_request"]
)
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "EndTxn"])
async def test_the_other_rules_know_transactional_apis(broker: ScriptedBroker, hop: Hop, do: str, api: str) -> None:
    """Each rule applies to a transactional request as to any other: late, lost before or after it was served, twice."""
    broker.create("t", leaders=[1])
    fields: dict[str, Any] = {"delay_ms": 20} if do.startswith("delay") else {}
    session = await Session.open(hop)
    await session.produce()
    rule = hop.rule(do, api=api, nth=1, **fields)
    asked = dict(session.ids, committed=True)
    if api == "AddPartitionsToTxn":
        asked = {f"v3_and_below_{name}": value for name, value in session.ids.items()}
        asked["v3_and_below_topics"] = [{"name": "t", "partitions": [0]}]
    before = len(broker.journal(api))
    client = await session.dial()
    number = client.send(api, VERSIONS[api], **asked)
    if do.startswith("drop"):
        assert b"" == await client.rest()
    else:
        await client.answer(number)
    served = {"drop_request": 0, "duplicate_request": 2}.get(do, 1)
    assert served == len(broker.journal(api)) - before
    assert 1 == hop.counts(rule)["hit"]


@pytest.mark.parametrize(("api", "field"), [("EndTxn", "error_code"), ("AddPartitionsToTxn", "partition_error_code")])
async def test_a_transactional_request_is_refused(broker: ScriptedBroker, hop: Hop, api: str, field: str) -> None:
    """The proxy answers for the broker, with the error where the API has it."""
    broker.create("t", leaders=[1])
    session = await Session.open(hop)
    hop.rule("answer_error", api=api, error=CONCURRENT)
    asked = dict(session.ids, committed=True)
    if api == "AddPartitionsToTxn":
        asked = {f"v3_and_below_{name}": value for name, value in session.ids.items()}
        asked["v3_and_below_topics"] = [{"name": "t", "partitions": [0]}]
    answer = await session.ask(api, **asked)
    if api == "AddPartitionsToTxn":
        answer = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
    assert CONCURRENT == getattr(answer, field)
    assert [] == broker.journal(api)
