"""The sender loop against a misbehaving cluster: requests, their times, and the effect of responses."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.tests.unit.workloads.kafka.producing import Writer, produced, writing, written
from aftershock.workloads.kafka.producer.produce_request import InFlight

OK = (0, False)


def ends(writer: Writer) -> list[tuple[int, bool]]:
    """Error and doubt of each record."""
    return [(delivery.error, delivery.in_doubt) for _, delivery in sorted(writer.outcomes.items())]


def sequences(requests: list[ReceivedRequest], topic: str, partition: int = 0) -> list[int]:
    return [seen.fields["partition_fields"][f"{topic}/{partition}"]["base_sequence"] for seen in requests]


# -- retries


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"error": 6}, id="not the leader"),
        pytest.param({"error": 7}, id="timed out at the broker"),
        pytest.param({"error": 19}, id="too few replicas"),
        pytest.param({"error": 20, "applied": True}, id="too few replicas, and written"),
        pytest.param({"answer": "close"}, id="written, then disconnected"),
        pytest.param({"answer": "refuse"}, id="disconnected"),
        pytest.param({"cut_bytes": 9}, id="half an answer"),
        pytest.param({"garble": {4: 99}}, id="an answer to nothing that was asked"),
        pytest.param({"garble": {0: 127}}, id="an answer of 2 GB"),
    ],
)
async def test_a_single_error_is_retried(cluster: ScriptedBroker, trouble: dict[str, object]) -> None:
    """Ten batches in flight, the third meets an error: each is written once, in order."""
    async with writing(cluster) as writer:
        await writer.send()
        cluster.script("Produce", nth=2, partition=(writer.topic, 0), **trouble)  # type: ignore[arg-type]
        for _ in range(10):
            writer.offer()
            await asyncio.sleep(0.002)
        await writer.flush()
        assert [OK] * 11 == ends(writer)
        assert list(range(11)) == written(cluster, writer.topic)
        assert max(delivery.attempts for delivery in writer.deliveries) >= 2
        assert writer.events("batch_retried")


async def test_a_request_that_is_never_answered_times_out(cluster: ScriptedBroker) -> None:
    """After request.timeout.ms the connection is closed; the batch is sent on another one, with its old sequence."""
    async with writing(cluster, request_timeout_ms=100, delivery_timeout_ms=5000) as writer:
        cluster.script("Produce", answer="none")
        await writer.send()
        requests = produced(cluster, writer.topic)
        assert [0, 0] == sequences(requests, writer.topic)
        assert requests[0].connection != requests[1].connection
        assert [0] == written(cluster, writer.topic)
        assert ["REQUEST_TIMED_OUT"] == [each["reason"] for each in writer.events("batch_retried")]


async def test_retries_are_bounded(cluster: ScriptedBroker) -> None:
    """``retries`` attempts after the first, then the record has failed with the last error."""
    async with writing(cluster, retries=2) as writer:
        cluster.script("Produce", times=100, error=ErrorCode.not_enough_replicas)
        await writer.send()
        assert [(ErrorCode.not_enough_replicas, False)] == ends(writer)
        assert (3, 3) == (writer.outcomes[0].attempts, len(produced(cluster, writer.topic)))


async def test_retries_back_off(cluster: ScriptedBroker) -> None:
    """100 ms, then 200 ms, each within 20 %, between attempts on one leader epoch."""
    async with writing(cluster, retry_backoff_ms=100, retry_backoff_max_ms=1000) as writer:
        cluster.script("Produce", times=2, error=ErrorCode.not_enough_replicas)
        await writer.send()
        first, second = (after.time_ms - before.time_ms for before, after in pairwise(produced(cluster, writer.topic)))
        assert first >= 80
        assert second >= 160
        assert [False, False] == [each["immediate"] for each in writer.events("batch_retried")]
        assert 2 == writer.producer.counts["retries_backed_off"]


async def test_requests_of_one_turn_are_written_together(
    cluster: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches of one partition are five requests, as many as may be in flight, and one write to the socket."""
    async with writing(cluster, batch_size=0, leaders=[1]) as writer:
        await writer.send()
        channel = writer.producer.brokers.ready(1)
        assert channel is not None
        writes: list[int] = []
        write = channel._transport.write

        def counted(data: bytes) -> None:
            writes.append(len(data))
            write(data)

        monkeypatch.setattr(channel._transport, "write", counted)
        writer.offer(5)
        await writer.flush()
        assert (1, 6) == (len(writes), len(produced(cluster, writer.topic)))
        assert list(range(6)) == written(cluster, writer.topic)


# -- KIP-951


async def test_a_hint_sends_a_batch_to_the_new_leader_at_once(cluster: ScriptedBroker) -> None:
    """Neither a back-off nor a Metadata response lies between the refusal and the next attempt, which succeeds."""
    async with writing(cluster, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000, leaders=[1]) as writer:
        await writer.send()
        cluster.move_leader(writer.topic, 0, to=2)
        await writer.send()
        assert [1, 1, 2] == [seen.node for seen in produced(cluster, writer.topic)]
        assert (2, 1, 2) == (writer.outcomes[1].broker_id, writer.outcomes[1].leader_epoch, writer.outcomes[1].attempts)
        assert [{"topic": writer.topic, "partition": 0, "node_id": 2, "epoch": 1}] == writer.events("hint_accepted")
        assert [True] == [each["immediate"] for each in writer.events("batch_retried")]


async def test_metadata_goes_out_before_the_retry(cluster: ScriptedBroker) -> None:
    """``NetworkClient.isReady``: after a refusal a Metadata request is due, and even an immediate retry follows it.

    Node 1 names itself as the new leader, so all requests share one connection, which keeps their order.
    """
    async with writing(cluster, leaders=[1], retry_backoff_ms=1, retry_backoff_max_ms=1) as writer:
        await writer.send()
        cluster.script("Produce", error=6, hint=(1, 1))
        await writer.send()
        assert [True] == [each["immediate"] for each in writer.events("batch_retried")]
        apis = [seen.api for seen in cluster.journal() if seen.client_id == writer.topic]
        assert ["Produce", "Produce", "Metadata", "Produce"] == apis[apis.index("Produce") :]


async def test_a_second_failure_on_an_epoch_backs_off(cluster: ScriptedBroker) -> None:
    """One immediate retry for each newer epoch: the new leader refuses as well, with a hint of the same epoch."""
    async with writing(cluster, retry_backoff_ms=50, leaders=[1]) as writer:
        await writer.send()
        cluster.move_leader(writer.topic, 0, to=2)
        cluster.script("Produce", node=2, error=6, hint=(2, 1))
        await writer.send()
        assert [True, False] == [each["immediate"] for each in writer.events("batch_retried")]
        refused = {"topic": writer.topic, "partition": 0, "node_id": 2, "epoch": 1, "reason": "not_newer"}
        assert [refused] == writer.events("hint_refused")
        retried = {"topic": writer.topic, "partition": 0, "node_id": 2, "epoch": 1, "reason": "NOT_LEADER_OR_FOLLOWER"}
        retried |= {"token": 1, "records": 1}
        assert [retried | {"attempts": number, "immediate": number == 1} for number in (1, 2)] == writer.events(
            "batch_retried"
        )


@pytest.mark.parametrize(
    ("switches", "accepted", "immediate", "version"),
    [
        pytest.param("response", 1, 1, 13, id="all on"),
        pytest.param({"hints": False}, 0, 1, 13, id="hints"),
        pytest.param({"immediate_retry": False}, 1, 0, 13, id="immediate retry"),
        pytest.param({"endpoint_merge": False}, 1, 1, 13, id="endpoint merge"),
        pytest.param({"highest_version": False}, 0, 1, 9, id="highest version"),
        pytest.param("metadata", 0, 0, 9, id="all off"),
    ],
)
async def test_each_switch_disables_its_own_part(
    cluster: ScriptedBroker, switches: object, accepted: int, immediate: int, version: int
) -> None:
    """A leader moves under the same load: only the switched-off part doesn't happen; no record is lost.

    Without a hint the epoch is learned from Metadata, which allows an immediate retry as well.
    """
    async with writing(cluster, leaders=[1], leader_discovery=switches, retry_backoff_ms=200) as writer:
        await writer.send()
        cluster.move_leader(writer.topic, 0, to=2)
        await writer.send()
        counts = writer.producer.counts
        assert (accepted, immediate) == (counts["hints_accepted"], counts["retries_immediate"])
        assert {version} == {seen.version for seen in produced(cluster, writer.topic)}
        assert [OK, OK] == ends(writer)


async def test_a_dead_leader_is_replaced_by_metadata() -> None:
    """A dead leader gives no hint: KIP-951 can't help, but the batch is sent to the leader in Metadata."""
    with ScriptedBroker(nodes=2) as own:
        async with writing(own, leaders=[1]) as writer:
            await writer.send()
            own.move_leader(writer.topic, 0, to=2)
            own.down(1)
            await writer.send()
            assert [OK, OK] == ends(writer)
            assert 2 == writer.outcomes[1].broker_id
            assert 0 == writer.producer.counts["hints_offered"]
            assert writer.producer.counts["metadata_requests_critical"] >= 1
            assert writer.events("node_disconnected")


# -- doubt


@pytest.mark.parametrize(
    ("troubles", "end"),
    [
        pytest.param([{"error": 19}], (7, False), id="refused each time"),
        pytest.param([{"answer": "refuse"}], (7, True), id="disconnected each time"),
        pytest.param([{"answer": "refuse"}, {"error": 19}], (7, True), id="disconnected once, then refused"),
        pytest.param([{"error": 20}], (7, True), id="written and not replicated"),
        pytest.param([{"answer": "lost"}], (7, True), id="no answer, still in flight"),
        pytest.param([{"error": 29}], (29, False), id="not authorized"),
        pytest.param([{"answer": "refuse"}, {"error": 29}], (29, True), id="disconnected, then not authorized"),
        pytest.param([{"error": 87}], (87, False), id="an invalid record"),
        pytest.param([{"error": 10}], (10, False), id="too large for the broker"),
    ],
)
async def test_doubt_depends_on_every_attempt(
    cluster: ScriptedBroker, troubles: list[dict[str, object]], end: tuple[int, bool]
) -> None:
    """A record has failed for certain only if every sent attempt was refused; the last error of the list repeats.

    The back-offs are such that the deadline falls between two attempts: the third comes after 0.6 s to 0.9 s, the
    fourth not before 1.4 s.
    """
    times = {"request_timeout_ms": 600, "delivery_timeout_ms": 1150, "retry_backoff_ms": 250}
    async with writing(cluster, retry_backoff_max_ms=4000, **times) as writer:
        for trouble in troubles[:-1]:
            cluster.script("Produce", **trouble)  # type: ignore[arg-type]
        cluster.script("Produce", times=1000, **troubles[-1])  # type: ignore[arg-type]
        await writer.send()
        assert [end] == ends(writer)


async def test_a_record_that_was_never_sent_has_failed() -> None:
    """It expired while its leader could not be reached: no attempt, no doubt."""
    with ScriptedBroker() as own:
        async with writing(own, request_timeout_ms=100, delivery_timeout_ms=200) as writer:
            own.down(1)
            await writer.send()
            assert [(ErrorCode.request_timed_out, False)] == ends(writer)
            assert (0, -1) == (writer.outcomes[0].attempts, writer.outcomes[0].broker_id)


async def test_a_late_response_changes_no_outcome(cluster: ScriptedBroker) -> None:
    """A batch that expired in flight stays in doubt, is reported once, and the partition continues."""
    async with writing(cluster, request_timeout_ms=3000, delivery_timeout_ms=3000) as writer:
        expiry = writer.producer._rules.accumulator.unfinished
        expiry._delivery_timeout_ms = 100
        cluster.script("Produce", delay_ms=300)
        await writer.send()
        expiry._delivery_timeout_ms = 3000
        assert [(ErrorCode.request_timed_out, True)] == ends(writer)
        await writer.send()
        assert [0, 1] == written(cluster, writer.topic)
        assert [(ErrorCode.request_timed_out, True), OK] == ends(writer)


# -- sequences


async def test_an_epoch_bump_is_an_event(cluster: ScriptedBroker) -> None:
    """A refused batch leaves a gap in the sequences: the epoch is bumped and the next batch starts from 0."""
    async with writing(cluster) as writer:
        await writer.send()
        cluster.script("Produce", error=ErrorCode.invalid_record)
        await writer.send(2)
        assert [OK, (ErrorCode.invalid_record, False), OK] == ends(writer)
        (bump,) = writer.events("epoch_bumped")
        assert 1 == bump["epoch"]
        assert [0, 1, 0] == sequences(produced(cluster, writer.topic), writer.topic)
        assert 1 == writer.producer.counts["epoch_bumps"]


async def test_a_duplicate_is_a_success_without_an_offset(cluster: ScriptedBroker) -> None:
    """DUPLICATE_SEQUENCE_NUMBER: an earlier attempt was written."""
    async with writing(cluster) as writer:
        cluster.script("Produce", error=ErrorCode.duplicate_sequence_number, applied=True)
        await writer.send()
        assert (0, -1, False) == (writer.outcomes[0].error, writer.outcomes[0].base_offset, writer.outcomes[0].in_doubt)


async def test_a_fatal_error_ends_the_producer(cluster: ScriptedBroker) -> None:
    """CLUSTER_AUTHORIZATION_FAILED: pending records are reported with it, and later ones are refused at once."""
    async with writing(cluster) as writer:
        cluster.script("Produce", times=100, error=ErrorCode.cluster_authorization_failed)
        await writer.send()
        writer.offer()
        assert [(ErrorCode.cluster_authorization_failed, False)] * 2 == ends(writer)


async def test_init_producer_id_is_retried(cluster: ScriptedBroker) -> None:
    """After COORDINATOR_LOAD_IN_PROGRESS and after a lost connection."""
    cluster.script("InitProducerId", error=14)
    cluster.script("InitProducerId", answer="close")
    async with writing(cluster) as writer:
        await writer.send()
        assert 1 == len(writer.events("producer_id"))
        assert 3 <= len([seen for seen in cluster.journal("InitProducerId") if seen.client_id == writer.topic])


# -- without idempotence


async def test_acks_0_needs_no_response(cluster: ScriptedBroker) -> None:
    """Delivered at an unknown offset; and the records do arrive."""
    async with writing(cluster, acks="0") as writer:
        writer.offer(5)
        await writer.flush()
        assert {(0, -1, False, 1)} == {
            (each.error, each.base_offset, each.in_doubt, each.attempts) for each in writer.deliveries
        }
        await cluster.until("Produce", topic=writer.topic)
        await writer.until(lambda: written(cluster, writer.topic) == list(range(5)), "the records did not arrive")


async def test_one_in_flight_keeps_order_without_sequences(cluster: ScriptedBroker) -> None:
    """Muting: a partition's next request waits for the response to the previous one."""
    settings = {"max_in_flight_requests_per_connection": 1, "enable_idempotence": False, "batch_size": 0}
    async with writing(cluster, **settings) as writer:
        cluster.script("Produce", nth=3, times=2, error=ErrorCode.not_enough_replicas)
        writer.offer(8)
        await writer.flush()
        assert list(range(8)) == written(cluster, writer.topic)
        assert {-1} == set(sequences(produced(cluster, writer.topic), writer.topic))


async def test_in_flight_is_bounded(cluster: ScriptedBroker) -> None:
    """With responses held back, five requests are sent and not a sixth; then the rest follows."""
    async with writing(cluster, batch_size=0) as writer:
        cluster.script("Produce", delay_ms=300)
        writer.offer(9)
        await cluster.until("Produce", 5, topic=writer.topic)
        assert 5 == len(produced(cluster, writer.topic))
        await writer.flush()
        assert list(range(9)) == written(cluster, writer.topic)


# -- throttling, splits, incomplete responses, moves


async def test_throttling_is_honoured(cluster: ScriptedBroker) -> None:
    """A node gets no request during its throttle time; another node does."""
    async with writing(cluster, 2, leaders=[1, 2]) as writer:
        cluster.script("Produce", node=1, throttle_ms=400)
        await writer.send()
        writer.offer(partition=0)
        writer.offer(partition=1)
        await writer.flush()
        first, second = produced(cluster, writer.topic, node=1)
        (other,) = produced(cluster, writer.topic, node=2)
        assert second.time_ms - first.time_ms >= 400
        assert other.time_ms < second.time_ms
        assert [{"node_id": 1, "throttle_ms": 400}] == writer.events("throttled")


async def test_a_batch_too_large_for_the_broker_is_split(cluster: ScriptedBroker) -> None:
    """Until it fits: no record is lost, doubled or moved, and every record has its own offset."""
    async with writing(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as writer:
        cluster.script("Produce", times=2, error=ErrorCode.message_too_large)
        writer.offer(12)
        await writer.flush()
        assert list(range(12)) == written(cluster, writer.topic)
        assert [OK] * 12 == ends(writer)
        offsets = [each.base_offset + place for each in writer.deliveries for place, _ in enumerate(each.tokens)]
        assert list(range(12)) == sorted(offsets)


async def test_a_partition_missing_from_a_response_is_retried(cluster: ScriptedBroker) -> None:
    async with writing(cluster) as writer:
        requester = writer.producer._sender.requester
        answered = requester.on_response
        responses = []

        def leave_out_once(batches: InFlight, response: Any, now_ms: float) -> float:
            responses.append(response)
            without_partitions = replace(response, responses=())
            return answered(batches, without_partitions if len(responses) == 1 else response, now_ms)

        requester.on_response = leave_out_once  # type: ignore[method-assign]
        await writer.send()
        assert [OK] == ends(writer)
        assert [0] == written(cluster, writer.topic)
        assert 2 == writer.outcomes[0].attempts


async def test_an_idle_sender_does_not_poll(cluster: ScriptedBroker) -> None:
    """A lingering batch is examined when its time has come, and not before."""
    async with writing(cluster, linger_ms=200) as writer:
        await writer.send()
        turns = []
        sender = writer.producer._sender
        on_turn = sender._on_turn
        sender._on_turn = lambda: turns.append(None) or on_turn()
        writer.offer()
        await writer.until(lambda: len(writer.outcomes) == 2, "not sent")
        assert len(turns) <= 6


async def test_rotating_leaders_lose_no_record(cluster: ScriptedBroker) -> None:
    """Forty moves of three partitions under load: each record is written exactly once and in order."""
    async with writing(cluster, 3, linger_ms=1) as writer:

        async def load() -> None:
            for number in range(900):
                writer.offer(partition=number % 3)
                await asyncio.sleep(0.001)

        loading = asyncio.create_task(load())
        for move in range(40):
            await asyncio.sleep(0.02)
            cluster.move_leader(writer.topic, move % 3, to=1 + move // 3 % 2)
        await loading
        await writer.flush()
        assert [OK] * 900 == ends(writer)
        for partition in range(3):
            assert list(range(partition, 900, 3)) == written(cluster, writer.topic, partition)
        assert writer.producer.counts["hints_accepted"] >= 1


async def test_a_recreated_topic_is_followed(cluster: ScriptedBroker) -> None:
    """Another topic with the same name starts its epochs again."""
    topic = fresh_topic(cluster, leaders=[1])
    writer = Writer(cluster.bootstrap, topic)
    await writer.producer.start([topic])
    for _ in range(3):
        cluster.move_leader(topic, 0, to=1)
    await writer.send()
    cluster.delete(topic)
    cluster.create(topic, 1, leaders=[2])
    await writer.send()
    await writer.producer.close(1000)
    assert (0, 2) == (writer.outcomes[1].error, writer.outcomes[1].broker_id)


async def test_produce_names_a_topic_by_its_id(cluster: ScriptedBroker) -> None:
    """KIP-516: a topic with the same name, leader and epoch, but another id, refuses the old id; the retry has the new.

    In Produce 12, which has the name, nothing would be refused.
    """
    async with writing(cluster, leaders=[1]) as writer:
        await writer.send()
        cluster.delete(writer.topic)
        cluster.create(writer.topic, 1, leaders=[1])
        await writer.send()
        assert [OK, OK] == ends(writer)
        assert {"UNKNOWN_TOPIC_ID"} == {each["reason"] for each in writer.events("batch_retried")}
        assert [1] == written(cluster, writer.topic)
        assert {13} == {seen.version for seen in produced(cluster, writer.topic)}


async def test_a_response_is_matched_by_the_id_in_the_request(cluster: ScriptedBroker) -> None:
    """Although the topic's id changed in the metadata while the request was in flight."""
    async with writing(cluster, leaders=[1]) as writer:
        cluster.script("Produce", delay_ms=100)
        writer.offer()
        await cluster.until("Produce", topic=writer.topic)
        topics = writer.producer._rules.metadata._topics
        topics[writer.topic] = topics[writer.topic]._replace(topic_id=UUID(int=7))
        await writer.flush()
        assert [OK] == ends(writer)
        assert 1 == writer.outcomes[0].attempts
