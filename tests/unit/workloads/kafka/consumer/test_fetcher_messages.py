"""Conversion of a fetch plan to a Fetch request, and of a Fetch response to records."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from aftershock.workloads.kafka.consumer.fetcher import FETCH, fetch_answer, fetch_request
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.fetch_session import FetchPartition, FetchRequestPlan
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Address

A, B, OLD_A = UUID(int=1), UUID(int=2), UUID(int=3)
A0, A1, A2, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0)


def settings(**changes: Any) -> ConsumerSettings:
    return ConsumerSettings(bootstrap_servers=(Address("h", 1),), **changes)


def request(plan: FetchRequestPlan, **changes: Any) -> Any:
    return fetch_request(FETCH.messages(Versions({1: (4, 18)})), plan, settings(**changes))


def asked(topic_id: UUID, offset: int = 0) -> FetchPartition:
    return FetchPartition(topic_id, offset, 1000, leader_epoch=7)


def test_partitions_have_the_plans_order() -> None:
    """The order is the order of service, so a topic may occur twice."""
    plan = FetchRequestPlan(5, 2, {A1: asked(A), A0: asked(A), B0: asked(B), A2: asked(A)})
    sent = [(topic.topic_id, [each.partition for each in topic.partitions]) for topic in request(plan).topics]
    assert [(A, [1, 0]), (B, [0]), (A, [2])] == sent


def test_a_partition_has_offset_epoch_and_limit() -> None:
    """The leader epoch fences a stale client; the last fetched epoch is for followers only."""
    (topic,) = request(FetchRequestPlan(5, 2, {A0: asked(A, 42)})).topics
    (partition,) = topic.partitions
    assert (42, 7, 1000, -1) == (
        partition.fetch_offset,
        partition.current_leader_epoch,
        partition.partition_max_bytes,
        partition.last_fetched_epoch,
    )


def test_session_and_forgotten_partitions() -> None:
    """Forgotten partitions are named by id; a recreated topic is forgotten by its old id as well."""
    told = request(FetchRequestPlan(5, 2, {A0: asked(A)}, forgotten=((A1, A), (B0, B)), replaced=((A0, OLD_A),)))
    assert (5, 2) == (told.session_id, told.session_epoch)
    forgotten = [(topic.topic_id, topic.partitions) for topic in told.forgotten_topics_data]
    assert [(A, (1,)), (B, (0,)), (OLD_A, (0,))] == forgotten


def test_the_rack_is_sent_only_with_kip_392() -> None:
    """Without the rack no leader names a preferred replica."""
    plan = FetchRequestPlan(0, 0, {})
    assert "r1" == request(plan, client_rack="r1").rack_id
    assert "" == request(plan, client_rack="r1", read_replica=False).rack_id
    assert "" == request(plan).rack_id


def test_a_response_is_read_by_the_sessions_topic_names() -> None:
    """Topic ids that the session doesn't know are reported, and their partitions left out."""
    here, gone = SimpleNamespace(partition_index=1), SimpleNamespace(partition_index=0)
    topics = (
        SimpleNamespace(topic_id=A, partitions=(here,)),
        SimpleNamespace(topic_id=OLD_A, partitions=(gone,)),
    )
    answer = fetch_answer(SimpleNamespace(responses=topics), {A: "a"})
    assert {A1: here} == answer.partitions
    assert (OLD_A,) == answer.unknown_topic_ids
