"""Answers by script, refusals of one partition, hidden successes and throttle times, as client and broker see them."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from aftershock.faults.wire_proxy.messages import build_entity, struct_of
from aftershock.faults.wire_proxy.responses import (
    ERROR_FIELDS,
    READ_ONLY,
    answered_response,
    epochs_in,
    error_codes_in,
    refusal,
    throttle_ms_in,
    throttled_response,
)
from aftershock.faults.wire_proxy.rules import ANY, API_KEYS, Rule, ScriptedAnswer, probe_id, rule_from
from aftershock.tests.unit.scripted.client import batch
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode
from aftershock.workloads.kafka.wire.schema import plain_fields

if TYPE_CHECKING:
    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient


NOT_LEADER, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, TIMED_OUT, COORDINATOR_LOADING = 6, 3, 5, 7, 14
DELAY_MS = 200
OK = ScriptedAnswer()


def error(code: int = TIMED_OUT, **more: Any) -> ScriptedAnswer:
    return ScriptedAnswer(error=code, **more)


def script(hop: Hop, *answers: ScriptedAnswer, api: str = "Produce", **scope: Any) -> str:
    return hop.rule("answer_error", api=api, answers=answers, **scope)


async def codes(frame_client: FrameClient, count: int, topic: str = "t") -> list[int]:
    return [int((await frame_client.produce(topic, batch())).error_code) for _ in range(count)]


async def test_each_request_takes_the_next_answer(broker: ScriptedBroker, hop: Hop) -> None:
    """`ok` is the broker's own answer, and so is each answer after the script."""
    broker.create("t")
    rule = script(hop, error(), OK, error(NOT_LEADER))
    assert [TIMED_OUT, 0, NOT_LEADER, 0, 0] == await codes(await hop.dial(), 5)
    assert 3 == len(broker.journal("Produce"))
    counted = hop.counts(rule)
    assert (5, 2, 1, 1) == tuple(counted[name] for name in ("matched", "hit", "scripts", "finished"))


async def test_each_given_answer_is_an_event(broker: ScriptedBroker, hop: Hop) -> None:
    """The event says who got which answer of the script; the broker's own is no event."""
    broker.create("t")
    script(hop, error(applied=True, after_ms=20), OK, ScriptedAnswer(throttle_ms=40))
    await codes(await hop.dial("w-a-produce"), 3)
    events = hop.proxy.active_rules.take_events()
    assert [("scripted_answer", "w-a-produce", "Produce", 1), ("scripted_answer", "w-a-produce", "Produce", 3)] == [
        (event["event"], event["worker"], event["api"], event["number"]) for event in events
    ]
    assert ["REQUEST_TIMED_OUT after the broker's success, 20 ms late", "throttle time 40 ms"] == [
        event["answer"] for event in events
    ]
    assert [] == hop.proxy.active_rules.take_events()


async def test_clients_share_a_script_or_have_one_each(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    shared = script(hop, error(), error(NOT_LEADER))
    one, other = await hop.dial("one"), await hop.dial("other")
    assert ([TIMED_OUT], [NOT_LEADER], [0]) == (await codes(one, 1), await codes(other, 1), await codes(one, 1))
    hop.proxy.remove_rule(shared)
    rule = script(hop, error(), error(NOT_LEADER), per_client=True)
    assert ([TIMED_OUT, NOT_LEADER, 0], [TIMED_OUT]) == (await codes(one, 3), await codes(other, 1))
    counted = hop.counts(rule)
    assert (3, 2, 1) == (counted["hit"], counted["scripts"], counted["finished"])


async def test_a_script_begins_with_the_nth_request_and_skips_draws(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    first = script(hop, error(), error(NOT_LEADER), nth=3)
    assert [0, 0, TIMED_OUT, NOT_LEADER, 0] == await codes(await hop.dial(), 5)
    hop.proxy.remove_rule(first)
    script(hop, error(), error(NOT_LEADER), chances="01")
    assert [0, TIMED_OUT, 0, NOT_LEADER, 0, 0] == await codes(await hop.dial(), 6)


async def test_a_late_error_holds_up_what_follows(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker doesn't get the refused request; the answer to the next one waits behind the late error."""
    broker.create("t")
    script(hop, error(after_ms=DELAY_MS))
    frame_client, loop = await hop.dial(), asyncio.get_running_loop()
    began_s = loop.time()
    refused, served = frame_client.send_produce("t", batch()), frame_client.send_produce("t", batch())
    assert TIMED_OUT == (await frame_client.answer(refused)).responses[0].partition_responses[0].error_code
    assert (loop.time() - began_s) * 1000 >= DELAY_MS
    assert 0 == (await frame_client.answer(served)).responses[0].partition_responses[0].base_offset


async def test_a_late_answer_of_the_broker(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    rule = script(hop, ScriptedAnswer(after_ms=DELAY_MS))
    frame_client, loop = await hop.dial(), asyncio.get_running_loop()
    began_s = loop.time()
    assert [0] == await codes(frame_client, 1)
    assert (loop.time() - began_s) * 1000 >= DELAY_MS
    assert 1 == hop.counts(rule)["hit"]


async def test_an_applied_error_hides_the_success(broker: ScriptedBroker, hop: Hop) -> None:
    """The records are in the log, and the client gets an error without an offset."""
    broker.create("t")
    hop.rule("answer_error", api="Produce", error=TIMED_OUT, applied=True, nth=1)
    frame_client = await hop.dial()
    hidden = await frame_client.produce("t", batch(count=3))
    assert (0, TIMED_OUT, -1) == (hidden.index, hidden.error_code, hidden.base_offset)
    assert 3 == (await frame_client.produce("t", batch())).base_offset


@pytest.mark.parametrize("lost", ["request", "response"])
async def test_a_lost_message_of_a_script(broker: ScriptedBroker, hop: Hop, lost: Any) -> None:
    """The connection ends; the broker has served the request only if its response was lost."""
    broker.create("t")
    script(hop, OK, ScriptedAnswer(lost=lost))
    frame_client = await hop.dial()
    assert [0] == await codes(frame_client, 1)
    frame_client.send_produce("t", batch())
    assert b"" == await frame_client.rest()
    assert {"request": 3, "response": 6}[lost] == (await (await hop.dial()).produce("t", batch())).base_offset


async def test_silence_of_a_script(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    rule = script(hop, ScriptedAnswer(lost="response", connection="silent"))
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    assert await frame_client.is_silent()
    hop.proxy.remove_rule(rule)
    assert b"" == await frame_client.rest()


def produced(topics: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "topic_data": [
            {
                "name": topic,
                "partition_data": [{"index": partition, "records": batch()} for partition in partitions],
            }
            for topic, partitions in topics.items()
        ],
        "acks": -1,
        "timeout": 5_000,
        "transactional_id": None,
    }


async def test_one_partition_is_refused_and_the_others_are_served(broker: ScriptedBroker, hop: Hop) -> None:
    """The broker gets the request without the partition, and the client one response about all of them."""
    for topic in ("t", "u"):
        broker.create(topic, partitions=2, leaders=[1, 1])
    rule = script(hop, error(NOT_LEADER, throttle_ms=30), topic="t", partition=1)
    frame_client = await hop.dial()
    answer = await frame_client.ask("Produce", 9, **produced({"t": [0, 1], "u": [0, 1]}))
    assert {("t", 0): (0, 0), ("t", 1): (NOT_LEADER, -1), ("u", 0): (0, 0), ("u", 1): (0, 0)} == {
        (topic.name, partition.index): (partition.error_code, partition.base_offset)
        for topic in answer.responses
        for partition in topic.partition_responses
    }
    # the refused partition's log is empty, and the next answer is the broker's own
    assert 0 == (await frame_client.produce("t", batch(), partition=1)).base_offset
    assert 1 == hop.counts(rule)["hit"]


async def test_two_rules_refuse_a_partition_each(broker: ScriptedBroker, hop: Hop) -> None:
    """Nothing is left for the broker, and the wire proxy's answer has both errors."""
    broker.create("t", partitions=2, leaders=[1, 1])
    for partition, code in ((0, TIMED_OUT), (1, NOT_LEADER)):
        hop.proxy.add_rule(
            Rule(name=f"r{partition}", do="answer_error", api="Produce", error=code, topic="t", partition=partition)
        )
    answer = await (await hop.dial()).ask("Produce", 9, **produced({"t": [0, 1]}))
    assert {0: TIMED_OUT, 1: NOT_LEADER} == {
        partition.index: partition.error_code for topic in answer.responses for partition in topic.partition_responses
    }
    assert [] == broker.journal("Produce")
    assert [1, 1] == [hop.counts(f"r{partition}")["hit"] for partition in (0, 1)]


async def test_metadata_of_one_partition(broker: ScriptedBroker, hop: Hop) -> None:
    """Only the partition has the error, and no leader, as in the answer of a broker."""
    broker.create("t", partitions=2, leaders=[1, 1])
    script(hop, error(LEADER_NOT_AVAILABLE), api="Metadata", topic="t", partition=1)
    frame_client = await hop.dial()
    seen = []
    for _ in range(2):
        (topic,) = (await frame_client.ask("Metadata", 12, topics=[{"name": "t"}])).topics
        seen.append([(int(topic.error_code), int(part.error_code), part.leader_id) for part in topic.partitions])
    assert [[(0, 0, 1), (0, LEADER_NOT_AVAILABLE, -1)], [(0, 0, 1), (0, 0, 1)]] == seen


async def test_an_incremental_fetch_takes_no_answer_of_another_partition(broker: ScriptedBroker, hop: Hop) -> None:
    """The requests of a session name no partition: an answer waits for a response that is about the script's."""
    topic_id = broker.create("t", partitions=2, leaders=[1, 1])
    named = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    frame_client = await hop.dial()
    for partition in (0, 1):
        await frame_client.produce("t", batch(), partition=partition)
    rule = script(hop, error(NOT_LEADER), api="Fetch", topic="t", topic_id=named, partition=1)

    async def fetch(session: int, epoch: int, *partitions: int) -> Any:
        asked = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for number in partitions]
        topics = [{"topic_id": topic_id, "partitions": asked}] if asked else []
        return await frame_client.ask("Fetch", 16, topics=topics, max_wait=0, session_id=session, session_epoch=epoch)

    first = await fetch(0, 0, 0)
    assert 0 == hop.counts(rule)["hit"]
    second = await fetch(first.session_id, 1)
    assert 0 == hop.counts(rule)["hit"]
    third = await fetch(second.session_id, 2, 1)
    errors = {part.partition_index: int(part.error_code) for topic in third.responses for part in topic.partitions}
    assert NOT_LEADER == errors[1]
    assert 0 == errors.get(0, 0)
    assert (1, 1) == (hop.counts(rule)["hit"], hop.counts(rule)["finished"])


async def test_a_throttle_time_in_the_broker_s_own_response(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    rule = hop.rule("throttle_response", api="Produce", throttle_ms=1_500, nth=1)
    frame_client = await hop.dial()
    times = [(await frame_client.ask("Produce", 9, **produced({"t": [0]}))).throttle_time for _ in range(2)]
    assert [timedelta(milliseconds=1_500), timedelta(0)] == times
    assert 1 == hop.counts(rule)["hit"]


async def test_a_probe_gets_the_first_answer_that_differs_and_uses_none_up(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t")
    rule = script(hop, OK, error())
    assert [TIMED_OUT, TIMED_OUT] == await codes(await hop.dial(probe_id(rule)), 2)
    assert [0, TIMED_OUT, 0] == await codes(await hop.dial(), 3)


@pytest.mark.parametrize("message", ["request", "response"])
@pytest.mark.parametrize("after_bytes", [0, 3, 4, 30, 1 << 20])
async def test_a_message_is_cut_after_so_many_bytes(
    broker: ScriptedBroker, hop: Hop, message: Any, after_bytes: int
) -> None:
    """The other side gets so many bytes, never the whole message."""
    broker.create("t")
    hop.rule("close_mid_frame", api="Produce", message=message, after_bytes=after_bytes)
    frame_client = await hop.dial()
    frame_client.send_produce("t", batch())
    rest = await frame_client.rest()
    if message == "request":
        assert b"" == rest
        assert [] == broker.journal("Produce")
    else:
        length = int.from_bytes(rest[:4], "big") + 4 if len(rest) >= 4 else None
        assert len(rest) == (after_bytes if length is None else min(after_bytes, length - 1))


def test_a_script_through_json() -> None:
    rule = Rule(name="r", do="answer_error", api="Produce", answers=(error(applied=True), OK, error(after_ms=5)))
    assert rule == rule_from(rule.as_json())
    assert [{"error": TIMED_OUT, "applied": True}, {}, {"error": TIMED_OUT, "after_ms": 5}] == rule.as_json()["answers"]


@pytest.mark.parametrize(
    "answer", [{"after_ms": -1}, {"lost": "everything"}, {"lost": "request", "error": 3}, {"colour": "red"}]
)
def test_invalid_answers(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"after_ms|lost|invalid rule"):
        rule_from({"name": "r", "do": "answer_error", "api": "Produce", "answers": [answer]})


APIS = """
    Produce Fetch Metadata OffsetForLeaderEpoch ListOffsets FindCoordinator Heartbeat JoinGroup SyncGroup
    ConsumerGroupHeartbeat OffsetCommit OffsetFetch InitProducerId AddPartitionsToTxn AddOffsetsToTxn EndTxn
    TxnOffsetCommit
"""


def filled(kind: Any) -> Any:
    """Build a message with one item in each of its lists of structs, and partition 0 in its lists of partitions."""
    values: dict[str, Any] = {}
    for field in plain_fields(kind):
        if struct := struct_of(field):
            values[field.name] = (filled(struct),)
        elif field.name == "partitions":
            values[field.name] = (0,)
    return build_entity(kind, values)


def names_an_error(kind: Any) -> bool:
    fields = plain_fields(kind)
    return any(field.name in ERROR_FIELDS or ((s := struct_of(field)) and names_an_error(s)) for field in fields)


@pytest.mark.parametrize("api", APIS.split())
def test_an_error_in_each_version(api: str) -> None:
    """Errors that are built without the broker, or put into its answer, are there after encoding; so is the time."""
    examined = 0
    for version in schema_name_map[api_key_map[API_KEYS[api]]]:
        kind: Any = load_response_schema(API_KEYS[api], version)
        if not names_an_error(kind) or (api, version) in BETWEEN_BROKERS:
            continue  # the first versions of some APIs have no error
        read_only, responses = API_KEYS[api] in READ_ONLY, []
        for applied in (False,) if read_only else (False, True):
            answer = ScriptedAnswer(error=TIMED_OUT, applied=applied, throttle_ms=70)
            responses.append(answered_response(filled(kind), answer, ANY))
        if not read_only:
            refused = refusal(filled(load_request_schema(API_KEYS[api], version)), TIMED_OUT)
            responses.append(throttled_response(refused, 70))
        for response in responses:
            decoded, _ = decode(kind, encode(response), 0)
            assert {TIMED_OUT} == {*error_codes_in(decoded)}, kind
            assert {0} >= {*epochs_in(decoded)}  # a probe reads them from each API's response
            assert throttle_ms_in(decoded) == (70 if hasattr(decoded, "throttle_time") else 0)
            examined += 1
    assert examined


@pytest.mark.parametrize("version", [5, 9])
def test_errors_about_a_group_name_no_partition(version: int) -> None:
    """As ``OffsetFetchRequest.getErrorResponse`` does since version 2; errors of a partition stay with it."""
    response = filled(load_response_schema(API_KEYS["OffsetFetch"], version))
    loading = answered_response(response, ScriptedAnswer(error=COORDINATOR_LOADING), ANY)
    group = loading.groups[0] if version >= 8 else loading
    assert (COORDINATOR_LOADING, ()) == (int(group.error_code), group.topics)
    unknown = answered_response(response, ScriptedAnswer(error=UNKNOWN_TOPIC), ANY)
    group = unknown.groups[0] if version >= 8 else unknown
    assert (0, UNKNOWN_TOPIC) == (int(group.error_code), int(group.topics[0].partitions[0].error_code))


BETWEEN_BROKERS = {("AddPartitionsToTxn", 4), ("AddPartitionsToTxn", 5)}
"""Versions that clients don't send."""
