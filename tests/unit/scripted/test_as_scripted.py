"""With scripts, the scripted broker does what the script says, and reports it."""

import socket
import struct
import time
from typing import Any

import pytest

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.scripted.client import SHORT_S, TIMEOUT_S, Dial, bases, batch


def test_a_script_meets_the_nth_request_and_following_ones(broker: ScriptedBroker, dial: Dial) -> None:
    """Counted by API, node and partition; the count starts with the script."""
    broker.create("t", leaders=[1])
    client, other = dial(broker), dial(broker, 2)
    script = broker.script("Produce", nth=2, times=2, node=1, partition=("t", 0), error=19)
    other.produce("t", batch())
    client.produce("u", batch())
    assert [0, 19, 19, 0] == [client.produce("t", batch())[0].error_code for _ in range(4)]
    assert 2 == broker.fired(script)
    assert [0, 3] == bases(broker.log("t"))
    broker.script("Produce", error=19)
    broker.clear()
    assert 0 == client.produce("t", batch())[0].error_code


def test_an_error_after_the_append(broker: ScriptedBroker, dial: Dial) -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND: the batch is in the log."""
    broker.create("t")
    broker.script("Produce", error=20, applied=True)
    assert 20 == dial(broker).produce("t", batch())[0].error_code
    assert [0] == bases(broker.log("t"))


def test_hints_of_any_kind(broker: ScriptedBroker, dial: Dial) -> None:
    """A leader that isn't, of an epoch of one's choice, with or without its endpoint; or no hints at all."""
    broker.create("t", leaders=[1])
    broker.script("Produce", error=6, hint=(3, 17))
    broker.script("Produce", error=6, hint=(3, 17), endpoints=False, nth=1)
    answers = [dial(broker).produce("t", batch()) for _ in range(2)]
    for answer, _ in answers:
        assert (6, 3, 17) == (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch)
    assert [[3], []] == [[node.node_id for node in response.node_endpoints] for _, response in answers]
    with ScriptedBroker(hints=False) as silent:
        silent.create("t")
        silent.script("Produce", error=6)
        answer, response = dial(silent).produce("t", batch())
        assert (6, -1, ()) == (answer.error_code, answer.current_leader.leader_id, response.node_endpoints)


def test_errors_at_the_top(broker: ScriptedBroker, dial: Dial) -> None:
    """Fetch's session errors; and an API that has no other place for one."""
    topic = broker.create("t")
    broker.script("Fetch", top_error=106)
    broker.script("InitProducerId", error=15)
    assert 106 == dial(broker).fetch(topic, 0).error_code
    assert 15 == dial(broker).ask("InitProducerId", 4).error_code
    assert 0 == dial(broker).ask("InitProducerId", 4).error_code


def test_unknown_error_codes(broker: ScriptedBroker, dial: Dial) -> None:
    """A broker newer than the client: the number is sent unchanged."""
    broker.create("t")
    broker.script("Metadata", error=999)
    (topic,) = dial(broker).ask("Metadata", 12, topics=[{"name": "t"}]).topics
    assert 999 == topic.error_code


@pytest.mark.parametrize(("answer", "stored"), [("none", [0]), ("lost", []), ("close", [0]), ("refuse", [])])
def test_answers_that_never_come(broker: ScriptedBroker, answer: Any, stored: list[int], dial: Dial) -> None:
    """With the request done or not; the connection left open or closed."""
    broker.create("t")
    broker.script("Produce", answer=answer)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch()}]}]
    with pytest.raises(ConnectionResetError if answer in {"close", "refuse"} else TimeoutError):
        dial(broker).ask(
            "Produce", 12, timeout_s=SHORT_S if answer in {"none", "lost"} else TIMEOUT_S, acks=-1, topic_data=data
        )
    assert stored == bases(broker.log("t"))


def test_late_answers_are_late_by_that_much(broker: ScriptedBroker, dial: Dial) -> None:
    """No answer before the delay is over; the one that comes is right."""
    broker.create("t")
    broker.script("Produce", delay_ms=150)
    begun_s = time.monotonic()
    assert 0 == dial(broker).produce("t", batch())[0].error_code
    assert time.monotonic() - begun_s >= 0.150


def test_answers_out_of_order(broker: ScriptedBroker) -> None:
    """The first request's answer comes after the second's."""
    broker.script("Metadata", answer="swapped")
    assert [2, 1] == raw_correlation_ids(broker, 2)


def raw_correlation_ids(broker: ScriptedBroker, requests: int) -> list[int]:
    """Metadata requests 1, 2, … in one write; the correlation ids of the answers as they come."""
    found = []
    with socket.create_connection(broker.addresses[1], TIMEOUT_S) as peer:
        heads = (struct.pack(">hhihi", 3, 1, number, -1, 0) for number in range(1, requests + 1))
        peer.sendall(b"".join(struct.pack(">i", len(head)) + head for head in heads))
        stream = peer.makefile("rb")
        for _ in range(requests):
            length, correlation_id = struct.unpack(">ii", stream.read(8))
            stream.read(length - 4)
            found.append(correlation_id)
    return found


def test_garbled_and_cut_bytes(broker: ScriptedBroker, dial: Dial) -> None:
    """Chosen bytes of the frame are others; and a frame that breaks off."""
    broker.script("Metadata", garble={0: 0x7F})
    with pytest.raises(ConnectionError, match=r"invalid message length 213\d{7}"):
        dial(broker).ask("Metadata", 1)
    broker.script("Metadata", cut_bytes=11)
    with pytest.raises(ConnectionResetError):
        dial(broker).ask("Metadata", 1)
    assert 3 == len(dial(broker).ask("Metadata", 1).brokers)


def test_throttled_answers(broker: ScriptedBroker, dial: Dial) -> None:
    """The time is in the answer, and nothing waits for it."""
    broker.create("t")
    broker.script("Produce", throttle_ms=70_000)
    _, response = dial(broker).produce("t", batch())
    assert 70 == response.throttle_time.total_seconds()


def test_nodes_go_down_and_come_back_where_they_were(broker: ScriptedBroker, dial: Dial) -> None:
    """Connections are reset, new ones refused, metadata leaves it out; then the same port serves again."""
    broker.create("t", leaders=[1])
    client = dial(broker)
    broker.down(1)
    with pytest.raises(ConnectionError):
        client.ask("Metadata", 1)
    with pytest.raises(ConnectionRefusedError):
        dial(broker)
    assert [2, 3] == [node.node_id for node in dial(broker, 2).ask("Metadata", 1).brokers]
    broker.up(1)
    assert 0 == dial(broker).produce("t", batch())[0].error_code
    client = dial(broker)
    client.ask("Metadata", 1)
    broker.close_connections(1)
    with pytest.raises(ConnectionError):
        client.ask("Metadata", 1)


def test_acks_0_has_no_answer_but_a_closed_connection_for_an_error(broker: ScriptedBroker, dial: Dial) -> None:
    """As with Kafka, the next request is answered, or the connection is gone."""
    broker.create("t")
    frames = dial(broker)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch()}]}]
    with pytest.raises(TimeoutError):
        frames.ask("Produce", 12, timeout_s=SHORT_S, acks=0, topic_data=data)
    assert [0] == bases(broker.log("t"))
    broker.script("Produce", error=10)
    with pytest.raises(ConnectionResetError):
        dial(broker).ask("Produce", 12, acks=0, topic_data=data)


def test_the_journal_has_every_request(broker: ScriptedBroker, dial: Dial) -> None:
    """API, version, node, client, connection, partitions by name, and the fields that tests read."""
    topic = broker.create("t", leaders=[1])
    client = dial(broker)
    client.produce("t", batch(producer_id=7, producer_epoch=0, base_sequence=0), version=11)
    client.fetch(topic, 3, rack_id="b")
    dial(broker, 2).ask("Metadata", 12, topics=[{"name": "t"}])
    produced, fetched, asked = broker.journal()
    assert ("Produce", 11, 1, "aftershock", (("t", 0),)) == (
        produced.api,
        produced.version,
        produced.node,
        produced.client_id,
        produced.partitions,
    )
    assert {"base_sequence": 0, "count": 3, "producer_id": 7}.items() <= produced.fields["partition_fields"][
        "t/0"
    ].items()
    assert -1 == produced.fields["acks"]
    assert (("t", 0),) == fetched.partitions, "topic ids are resolved"
    assert ("b", 3) == (fetched.fields["rack_id"], fetched.fields["partition_fields"]["t/0"]["fetch_offset"])
    assert produced.connection == fetched.connection != asked.connection
    assert [produced, fetched, asked] == broker.journal(topic="t")
    assert [asked] == broker.journal(node=2) == broker.journal("Metadata")
    assert abs(time.monotonic() * 1000 - asked.time_ms) < 60_000


def test_a_reset_leaves_nothing_behind(broker: ScriptedBroker, dial: Dial) -> None:
    """Topics, scripts, groups, the journal, a node that is down: the next test finds none of them."""
    broker.create("t")
    broker.script("Metadata", error=5)
    client = dial(broker, 2)
    client.ask("OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=-1, topics=[])
    broker.down(1)
    broker.reset()
    with pytest.raises(ConnectionError):
        client.ask("Metadata", 1)
    assert [] == broker.journal()
    told = dial(broker).ask("Metadata", 12, topics=None)
    assert ([1, 2, 3], ()) == ([node.node_id for node in told.brokers], told.topics)


async def test_until_waits_or_lists_the_requests(broker: ScriptedBroker, dial: Dial) -> None:
    """The requests when there are enough; otherwise the error lists those that arrived."""
    dial(broker).ask("Metadata", 1)
    assert 1 == len(await broker.until("Metadata"))
    with pytest.raises(AssertionError, match="1 of 2 Metadata requests"):
        await broker.until("Metadata", 2, timeout_s=SHORT_S)


def test_an_invalid_order_is_an_error(broker: ScriptedBroker) -> None:
    """The error is raised in the test, and the broker continues."""
    with pytest.raises(ValueError, match="move_leader: KeyError: 'nowhere'"):
        broker.move_leader("nowhere", 0, to=1)
    assert broker.create("t")
