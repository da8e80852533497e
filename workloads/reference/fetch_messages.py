"""Fetch on the wire: a plan and its limits to a request, a response to its partitions.

Versions 15 to 17 are spoken: all name topics by id. 16 brings the leader hints of KIP-951; what 17 adds only followers
send.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.workloads.reference.consumer_settings import ConsumerSettings
from aftershock.workloads.reference.speak import Dialect
from aftershock.workloads.rules.fetch_session import FetchPartition, FetchRequestPlan
from aftershock.workloads.rules.values import TopicPartition
from aftershock.workloads.wire.versions import Api

FETCH = Dialect(Api.FETCH, 15, 17)


class FetchAnswer(NamedTuple):
    """A Fetch response by partition. ``unknown_topic_ids``: those that the session doesn't know."""

    partitions: Mapping[TopicPartition, Any]
    unknown_topic_ids: tuple[UUID, ...]


def fetch_request(messages: Any, plan: FetchRequestPlan, settings: ConsumerSettings) -> Any:
    """The request for a plan, in the plan's order; the rack is told only where reading from replicas is on."""
    rack = settings.client_rack if settings.read_replica else None
    return messages.FetchRequest(
        max_wait=timedelta(milliseconds=settings.fetch_max_wait_ms),
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        session_id=plan.session_id,
        session_epoch=plan.epoch,
        topics=tuple(_topics(messages, plan.send)),
        forgotten_topics_data=tuple(_forgotten(messages, plan)),
        rack_id=rack or "",
    )


def _topics(messages: Any, send: Mapping[TopicPartition, FetchPartition]) -> Iterable[Any]:
    """Runs of one topic become one entry: only neighbours are joined, for the order is the order of service."""
    for topic_id, run in groupby(send.items(), key=lambda item: item[1].topic_id):
        yield messages.FetchTopic(topic_id=topic_id, partitions=tuple(_partition(messages, *item) for item in run))


def _partition(messages: Any, tp: TopicPartition, asked: FetchPartition) -> Any:
    return messages.FetchPartition(
        partition=tp.partition,
        current_leader_epoch=asked.leader_epoch,
        fetch_offset=asked.fetch_offset,
        partition_max_bytes=asked.max_bytes,
    )


def _forgotten(messages: Any, plan: FetchRequestPlan) -> Iterable[Any]:
    dropped = plan.to_forget(messages.FetchRequest.__version__)
    for topic_id, run in groupby(dropped, key=lambda item: item[1]):
        yield messages.ForgottenTopic(topic_id=topic_id, partitions=tuple(tp.partition for tp, _ in run))


def fetch_answer(response: Any, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    """The partitions of a response; ``topic_names`` are the session's."""
    known = [(topic_names[topic.topic_id], topic) for topic in response.responses if topic.topic_id in topic_names]
    return FetchAnswer(
        {TopicPartition(name, each.partition_index): each for name, topic in known for each in topic.partitions},
        tuple(topic.topic_id for topic in response.responses if topic.topic_id not in topic_names),
    )
