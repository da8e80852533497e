"""The topics of a plan on an attached cluster: used as they are, or created and deleted again where the plan says so.

A topic is deleted by its id: one that somebody made in its place meanwhile has another id, and stays.
"""

import base64
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode

from aftershock.errors import ClusterError
from aftershock.faults.values import PartitionState
from aftershock.harness.admin import TIMEOUT, TOPIC, Admin, raise_for

_GONE = {ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition}


def check(admin: Admin, planned: Mapping[str, Any], states: Iterable[PartitionState]) -> None:
    """ClusterError if a topic that is there isn't what the plan says of it."""
    mine = [state for state in states if state.topic == planned["name"]]
    _same(planned["name"], "partitions", planned["partitions"], len(mine))
    for state in mine:
        _same(planned["name"], "replication", planned["replication"], len(state.replicas))
    configs = admin.configs(TOPIC, planned["name"]) if planned["config"] else {}
    for key, value in planned["config"].items():
        _same(planned["name"], key, value, configs.get(key))


def absent(name: str) -> ClusterError:
    """What is to be done about a topic that isn't there."""
    return ClusterError(f"the attached cluster has no topic {name}: create it, or name it under `attach.create`")


def taken(name: str) -> ClusterError:
    """What is to be done about a topic that is there already, and should not be."""
    return ClusterError(f"the topic {name} is there already and none of ours: take it out of `attach.create`")


def delete_by_id(admin: Admin, created: Mapping[str, str]) -> None:
    """Delete topics, ``name -> id``; one that is gone already is no error."""
    states = tuple(DeleteTopicState(name=None, topic_id=_uuid(text)) for text in created.values())
    response = admin.ask_controller(DeleteTopicsRequest(topics=states, timeout=TIMEOUT))
    for result in response.responses:
        if result.error_code not in _GONE:
            raise_for(result.error_code, f"delete topic {result.name or result.topic_id}", result.error_message)


def _same(topic: str, what: str, planned: object, found: object) -> None:
    if planned != found:
        raise ClusterError(f"the topic {topic} has {what} {found}, and the plan says {planned}: change one of them")


def _uuid(text: str) -> uuid.UUID:
    """Of an id as Kafka writes it."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
