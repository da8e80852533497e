"""The fetch loop against a scripted cluster: sessions, hints, replicas and errors, without lost or repeated records."""

from collections.abc import Iterator

import pytest

from aftershock.errors import BrokerError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import append, asked, fresh_topic, reading
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch_builder import build

RACKS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3, racks=RACKS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()
    running.publish()


def sessions(cluster: ScriptedBroker, topic: str) -> list[tuple[bool, int]]:
    """Return (has a session id, epoch) of each fetch."""
    return [(seen.fields["session_id"] != 0, seen.fields["session_epoch"]) for seen in asked(cluster, topic)]


# ---- KIP-227


async def test_incremental_requests_name_changed_partitions_only(cluster: ScriptedBroker) -> None:
    """The first fetch is full; later epochs count up, and the request names the one partition whose position moved."""
    topic = fresh_topic(cluster, 3, leaders=[1, 1, 1])
    append(cluster, topic, 1)
    async with reading(cluster, topic, {0: 0, 1: 0, 2: 0}) as reader:
        await reader.take(1)
        for _ in range(2):
            append(cluster, topic, 1)
            await reader.take(1)
    first, second = asked(cluster, topic)[:2]
    assert [(topic, 0), (topic, 1), (topic, 2)] == sorted(first.partitions)
    assert ((topic, 1),) == second.partitions
    assert [(False, 0), (True, 1), (True, 2)] == sessions(cluster, topic)[:3]
    assert 1 == reader.consumer.counts["fetches_full"]


async def test_a_lost_session_is_followed_by_one_full_fetch(cluster: ScriptedBroker) -> None:
    """FETCH_SESSION_ID_NOT_FOUND: the next request is full and without a session, and no record is lost.

    While a record is undelivered there is no request in flight: the request after that is refused.
    """
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with reading(cluster, topic, {0: 0}, max_poll_records=1) as reader:
        await reader.take(1)
        before = len(asked(cluster, topic))
        cluster.forget_sessions()
        append(cluster, topic, 0, 2)
        taken = await reader.take(3)
        assert [1, 2, 3] == [offset for _, _, offset in taken]
        lost = reader.events("session_lost")
        assert ["FETCH_SESSION_ID_NOT_FOUND"] == [each["reason"] for each in lost]
    assert [(True, 1), (False, 0)] == sessions(cluster, topic)[before : before + 2]
    assert 2 == reader.consumer.counts["fetches_full"]


async def test_fetch_bytes_are_counted_by_kind(cluster: ScriptedBroker) -> None:
    """Whole frames, full and incremental separately, and the records in responses, which are equal in both kinds."""
    topic = fresh_topic(cluster, 30, leaders=[1] * 30)
    async with reading(cluster, topic, dict.fromkeys(range(30), 0)) as reader:
        for _ in range(2):
            append(cluster, topic, 1)
            await reader.take(1)
        counts = reader.consumer.counts
    record_bytes = len(build([b"v"], timestamps_ms=[0]))
    assert 1 == counts["fetches_full"]
    assert 2 * record_bytes == counts["fetch_record_bytes_full"] + counts["fetch_record_bytes_incremental"]
    empty = 30 * 33  # a partition's fields in Fetch 16: 4+4+8+4+8+4, and the count of its tagged fields
    assert empty < counts["fetch_request_bytes_full"] < empty + 100
    mean = counts["fetch_request_bytes_incremental"] / counts["fetches_incremental"]
    assert mean < 100 + 33
    received = counts["fetch_response_bytes_full"] + counts["fetch_response_bytes_incremental"]
    assert received <= sum(received for _, received in reader.consumer.brokers.traffic.values())


async def test_another_session_error_closes_the_old_session_and_opens_one(cluster: ScriptedBroker) -> None:
    """INVALID_FETCH_SESSION_EPOCH: the next request is full and names the old session, so that the broker frees it."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        cluster.script("Fetch", top_error=71)
        append(cluster, topic, 0)
        await reader.take(1)
        assert ["INVALID_FETCH_SESSION_EPOCH"] == [each["reason"] for each in reader.events("session_reset")]
    assert (True, 0) in sessions(cluster, topic)


async def test_sessions_can_be_switched_off(cluster: ScriptedBroker) -> None:
    """The ablation: every request is full with epoch -1, and no session is counted."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with reading(cluster, topic, {0: 0}, fetch_session=False) as reader:
        await reader.take(2)
        await cluster.until("Fetch", 2, node=1)
    mine = [seen for seen in cluster.journal("Fetch") if seen.client_id == topic]
    assert {(0, -1)} == {(seen.fields["session_id"], seen.fields["session_epoch"]) for seen in mine}
    assert not any(name.startswith("sessions_") for name in reader.consumer.counts)


async def test_a_broker_without_room_for_sessions_is_fetched_from_in_full() -> None:
    """Session id 0 in the response is normal: the client continues with full requests."""
    with ScriptedBroker(sessions=False) as cluster:
        topic = fresh_topic(cluster)
        append(cluster, topic, 0, 2)
        async with reading(cluster, topic, {0: 0}) as reader:
            await reader.take(2)
            await cluster.until("Fetch", 3)
        assert {(False, 0)} == set(sessions(cluster, topic))
        assert reader.consumer.counts["sessions_refused"] > 1
        assert 1 == len(reader.events("session_refused"))
        assert [] == reader.events("fetch_failed")


async def test_a_truncated_response_loses_and_repeats_no_record(cluster: ScriptedBroker) -> None:
    """The connection breaks inside the records; the next request is full, from the same position."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 5)
    cluster.script("Fetch", cut_bytes=150)
    async with reading(cluster, topic, {0: 0}) as reader:
        taken = await reader.take(5)
    assert [0, 1, 2, 3, 4] == [offset for _, _, offset in taken]
    assert 1 == len(reader.events("fetch_failed"))
    assert [0, 0] == [seen.fields["session_epoch"] for seen in asked(cluster, topic)[:2]]


async def test_closing_ends_the_session_at_the_broker(cluster: ScriptedBroker) -> None:
    """Epoch -1 with the session's id: else the broker would keep the session for two minutes."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        append(cluster, topic, 0)
        await reader.take(1)
    last = [seen for seen in cluster.journal("Fetch") if seen.client_id == topic][-1]
    assert -1 == last.fields["session_epoch"]
    assert last.fields["session_id"] in {seen.fields["session_id"] for seen in asked(cluster, topic)}


async def test_a_node_with_undelivered_data_is_not_fetched(cluster: ScriptedBroker) -> None:
    """Without polls no further fetch goes to that node, whatever arrives there; other nodes are fetched."""
    topic = fresh_topic(cluster, 3, leaders=[1, 1, 2])
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0, 1: 0, 2: 0}) as reader:
        await cluster.until("Fetch", 3 + len(cluster.journal("Fetch", node=2)), node=2)
        append(cluster, topic, 1)
        await cluster.until("Fetch", 3 + len(cluster.journal("Fetch", node=2)), node=2)
        assert 1 == len(asked(cluster, topic, node=1))
        await reader.take(2)


async def test_the_throttle_time_is_honoured(cluster: ScriptedBroker) -> None:
    """KIP-219: the broker has answered already; the client waits."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.script("Fetch", throttle_ms=200)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        append(cluster, topic, 0)
        await reader.take(1)
        assert [200] == [each["throttle_ms"] for each in reader.events("throttled")]
    first, second = asked(cluster, topic)[:2]
    assert second.time_ms - first.time_ms >= 200


# ---- KIP-951


async def test_an_accepted_hint_is_validated_then_fetched_at_the_new_leader(cluster: ScriptedBroker) -> None:
    """Without metadata: the new leader gets OffsetsForLeaderEpoch for the position first, then Fetch."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0, 2)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(2)
        cluster.script("Metadata", node=1, answer="lost", times=100)
        cluster.move_leader(topic, 0, to=2)
        append(cluster, topic, 0, 2)
        taken = await reader.take(2)
        assert [2, 3] == [offset for _, _, offset in taken]
        accepted = {"topic": topic, "partition": 0, "node_id": 2, "epoch": 1}
        assert [accepted] == reader.events("hint_accepted")
        assert 2 == reader.brokers[-1]
        assert 1 == reader.consumer.counts["hints_accepted"] == reader.consumer.counts["position_validations"]
    validations = asked(cluster, topic, "OffsetForLeaderEpoch")
    assert [(2, 0)] == [
        (seen.node, seen.fields["partition_fields"][f"{topic}/0"]["leader_epoch"]) for seen in validations
    ]
    assert validations[0].number < asked(cluster, topic, node=2)[0].number


async def test_an_error_is_ignored_while_the_position_awaits_validation(cluster: ScriptedBroker) -> None:
    """``FetchCollector.initialize``: after an accepted hint the error requests no Metadata, and moves its partition."""
    topic = fresh_topic(cluster, 2, leaders=[1, 1])
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0, 1: 0}) as reader:
        await reader.take(1)
        reader.consumer._shared.positions.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        requests = reader.consumer.counts["metadata_requests"]
        cluster.script("OffsetForLeaderEpoch", delay_ms=30)
        cluster.move_leader(topic, 0, to=2)
        await reader.until(lambda: bool(reader.events("hint_accepted")), "no hint was accepted")
        assert [TopicPartition(topic, 1), TopicPartition(topic, 0)] == list(reader.consumer._shared.positions)
        append(cluster, topic, 0)
        await reader.take(1)
        assert 1 == reader.consumer.counts["position_validations"]
        assert requests == reader.consumer.counts["metadata_requests"]


async def test_an_error_at_a_valid_position_requests_metadata(cluster: ScriptedBroker) -> None:
    """Without an epoch to validate, the position stays valid after an accepted hint."""
    topic = fresh_topic(cluster, leaders=[1])
    async with reading(cluster, topic, {0: 0}) as reader:
        requests = reader.consumer.counts["metadata_requests"]
        cluster.move_leader(topic, 0, to=2)
        await reader.until(lambda: bool(reader.events("hint_accepted")), "no hint was accepted")
        await reader.until(lambda: reader.consumer.counts["metadata_requests"] > requests, "no Metadata request")


async def test_a_position_without_an_epoch_is_fetched_at_once(cluster: ScriptedBroker) -> None:
    """No record was read yet, so there is no epoch to validate."""
    topic = fresh_topic(cluster, leaders=[1])
    async with reading(cluster, topic, {0: 0}) as reader:
        await cluster.until("Fetch", 1 + len(cluster.journal("Fetch", node=1)), node=1)
        cluster.move_leader(topic, 0, to=2)
        append(cluster, topic, 0)
        await reader.take(1)
    assert [] == asked(cluster, topic, "OffsetForLeaderEpoch")


async def test_a_stale_hint_is_refused_and_reported_once(cluster: ScriptedBroker) -> None:
    """The old leader repeats an old epoch in every response: one event, every refusal counted."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0)
    cluster.script("Fetch", error=6, hint=(2, 0), times=5)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        refused = {"topic": topic, "partition": 0, "node_id": 2, "epoch": 0, "reason": "not_newer"}
        assert [refused] == reader.events("hint_refused")
        assert 5 == reader.consumer.counts["hints_refused_not_newer"]


async def test_with_hints_off_metadata_names_the_leader(cluster: ScriptedBroker) -> None:
    """The ablation: hints are counted as ignored, and a critical Metadata request finds the new leader."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, leader_discovery={"hints": False}) as reader:
        await reader.take(1)
        cluster.move_leader(topic, 0, to=2)
        append(cluster, topic, 0)
        await reader.take(1)
        counts = reader.consumer.counts
        assert (0, 0) == (counts["hints_accepted"], counts["endpoints_merged"])
        assert counts["hints_ignored_switched_off"] >= 1
        assert counts["metadata_requests_critical"] >= 1


async def test_without_the_highest_version_no_hint_is_offered(cluster: ScriptedBroker) -> None:
    """The ablation: Fetch 15, whose responses have no endpoints."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, leader_discovery="metadata") as reader:
        await reader.take(1)
    assert {15} == {seen.version for seen in asked(cluster, topic)}


# ---- KIP-392


async def test_a_preferred_replica_is_fetched_from(cluster: ScriptedBroker) -> None:
    """The leader sends a consumer of rack b to the replica there; position and records are unaffected."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0, 3)
    async with reading(cluster, topic, {0: 0}, client_rack="b") as reader:
        taken = await reader.take(3)
        assert [0, 1, 2] == [offset for _, _, offset in taken]
        assert {2} == set(reader.brokers)
        assert [2] == [each["node_id"] for each in reader.events("replica_switched")]


async def test_a_replica_that_the_metadata_lacks_does_not_stop_the_fetches(cluster: ScriptedBroker) -> None:
    """The consumer returns to the leader after a Metadata request, which nothing but the fetch has made due."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 9, rack="b")
    async with reading(cluster, topic, {0: 0}, client_rack="b") as reader:
        before = len(asked(cluster, topic, "Metadata"))
        await reader.until(lambda: len(asked(cluster, topic)) > 3, "the fetches stopped")
        assert "replica offline" in [each["reason"] for each in reader.events("replica_failed_back")]
        assert before < len(asked(cluster, topic, "Metadata"))


async def test_with_kip_392_off_the_leader_is_read(cluster: ScriptedBroker) -> None:
    """The ablation: the rack isn't sent, so no leader names a replica."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, client_rack="b", read_replica=False) as reader:
        await reader.take(1)
        assert [1] == reader.brokers
    assert {""} == {seen.fields["rack_id"] for seen in asked(cluster, topic)}


@pytest.mark.parametrize("error", [1, 3, 6, 9, 56, 74, 78, 100, 103])
async def test_errors_of_a_replica_lead_back_to_the_leader(cluster: ScriptedBroker, error: int) -> None:
    """Each error of the fail-back list ends the lease; the leader names the replica again, and no record is lost."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, client_rack="b") as reader:
        await reader.take(1)
        cluster.script("Fetch", node=2, error=error, hint=(1, 0))
        append(cluster, topic, 0)
        taken = await reader.take(1)
        assert [1] == [offset for _, _, offset in taken]
        (back,) = reader.events("replica_failed_back")
        assert 2 == back["node_id"]
        assert 2 == len(reader.events("replica_switched"))
        assert [] == reader.events("position_reset")


async def test_a_dead_replica_fails_back_to_the_leader(cluster: ScriptedBroker) -> None:
    """A failed request ends the leases of its session: the leader is read without waiting for metadata."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, client_rack="b") as reader:
        await reader.take(1)
        cluster.prefer_replica(topic, 0, -1, rack="b")
        cluster.close_connections(2)
        append(cluster, topic, 0)
        await reader.take(1)
        assert [2, 1] == reader.brokers
        assert ["request failed"] == [each["reason"] for each in reader.events("replica_failed_back")]


async def test_a_replica_without_connection_fails_back_in_time(cluster: ScriptedBroker) -> None:
    """A fetch that finds no connection fails like an unanswered one; the leader may still name the dead replica."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    cluster.script("ApiVersions", node=2, answer="lost", times=100)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, client_rack="b", request_timeout_ms=200) as reader:
        await reader.until(lambda: bool(reader.events("replica_switched")), "no lease")
        cluster.prefer_replica(topic, 0, -1, rack="b")
        await reader.take(1)
        assert [1] == reader.brokers
        assert ["request failed"] == [each["reason"] for each in reader.events("replica_failed_back")]


async def test_a_lease_expires(cluster: ScriptedBroker) -> None:
    """After ``metadata.max.age.ms`` the leader is read again, whatever the replica answers."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}, client_rack="b", metadata_max_age_ms=150) as reader:
        await reader.take(1)
        await reader.until(lambda: len(reader.events("replica_switched")) > 1, "no second lease")
        assert reader.consumer.counts["lease_expired"] >= 1


async def test_events_of_a_failing_replica_are_rate_limited(cluster: ScriptedBroker) -> None:
    """The leader names it after each error, hundreds of times: every error is counted, a few are reported."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    probe = cluster.script("Fetch", node=2, error=1, times=100)
    async with reading(cluster, topic, {0: 0}, client_rack="b") as reader:
        await reader.take(1)
        counts = reader.consumer.counts
        assert (101, 100, 100) == (counts["replica_switched"], counts["replica_failed_back"], cluster.fired(probe))
        assert len(reader.events("replica_switched")) < 50
        assert len(reader.events("replica_failed_back")) < 50


async def test_a_reassigned_partition_starts_at_the_leader(cluster: ScriptedBroker) -> None:
    """Its lease ended with the assignment, which is no fail-back."""
    topic = fresh_topic(cluster, 2, leaders=[1, 1])
    cluster.prefer_replica(topic, 0, 2, rack="b")
    append(cluster, topic, 0)
    append(cluster, topic, 1)
    async with reading(cluster, topic, {0: 0, 1: 0}, client_rack="b") as reader:
        await reader.take(2)
        cluster.prefer_replica(topic, 0, -1, rack="b")
        reader.consumer.assign({TopicPartition(topic, 1): 0})
        reader.consumer.assign({TopicPartition(topic, 1): 0, TopicPartition(topic, 0): 0})
        reader.brokers.clear()
        await reader.take(2)
        assert [1, 1] == reader.brokers
        assert 0 == reader.consumer.counts["replica_failed_back"]


# ---- errors of partitions


async def test_out_of_range_at_the_leader_resets(cluster: ScriptedBroker) -> None:
    """The log start has moved past the position: the reset policy applies, with an event."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0, 5)
    cluster.set_log(topic, 0, start=3)
    async with reading(cluster, topic, {0: 0}, auto_offset_reset="earliest") as reader:
        taken = await reader.take(2)
        assert [3, 4] == [offset for _, _, offset in taken]
        assert [0] == [each["offset"] for each in reader.events("position_reset")]


async def test_out_of_range_without_a_policy_is_raised(cluster: ScriptedBroker) -> None:
    """Each poll raises it, with partition, offset and remedy; the application may seek."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0, 5)
    cluster.set_log(topic, 0, start=3)
    async with reading(cluster, topic, {0: 0}, auto_offset_reset="none") as reader:
        for _ in range(2):
            with pytest.raises(BrokerError, match=rf"{topic}/0 cannot be fetched at offset 0: OFFSET_OUT_OF_RANGE"):
                await reader.poll(10_000)
        reader.consumer.assign({TopicPartition(topic, 0): 3})
        await reader.take(2)


async def test_a_permanent_error_is_raised_once_per_poll(cluster: ScriptedBroker) -> None:
    """TOPIC_AUTHORIZATION_FAILED: one request, one error; only the next poll sends another request."""
    topic = fresh_topic(cluster, 2, leaders=[1, 2])
    cluster.script("Fetch", node=1, error=29)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0, 1: 0}) as reader:
        await cluster.until("Fetch", 3 + len(cluster.journal("Fetch", node=2)), node=2)
        assert 1 == len(asked(cluster, topic, node=1))
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
            await reader.poll(10_000)
        assert 29 == raised.value.code
        await reader.take(1)


async def test_unknown_leader_epoch_is_retried_at_once(cluster: ScriptedBroker) -> None:
    """UNKNOWN_LEADER_EPOCH: no back-off, no refresh, as Kafka ships it."""
    topic = fresh_topic(cluster, leaders=[1])
    cluster.script("Fetch", error=75, times=3)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
    assert 1 == reader.consumer.counts["metadata_requests"]
    assert len(asked(cluster, topic)) >= 4
