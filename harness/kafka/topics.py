"""Topics created where they were, grown, and told apart by their ids (KIP-516)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from kio.schema.create_partitions.v3 import request as grow
from kio.schema.create_topics.v7 import request as create
from kio.schema.metadata.v12 import request as metadata

from aftershock.harness.admin import TIMEOUT, Admin, id_as_text, raise_for

_AS_ASSIGNED = -1


def topic_ids(admin: Admin) -> dict[str, str]:
    """The id of every topic, internal ones too."""
    request = metadata.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return {topic.name: id_as_text(topic.topic_id) for topic in admin.ask(request).topics}


def create_topic_on(admin: Admin, name: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str]) -> str:
    """Create a topic with these replicas for each of its partitions; its id as Kafka writes it."""
    topic = create.CreatableTopic(
        name=cast("Any", name),
        num_partitions=cast("Any", _AS_ASSIGNED),
        replication_factor=cast("Any", _AS_ASSIGNED),
        assignments=tuple(
            create.CreatableReplicaAssignment(partition_index=cast("Any", number), broker_ids=cast("Any", tuple(ids)))
            for number, ids in sorted(replicas.items())
        ),
        configs=tuple(create.CreatableTopicConfig(name=key, value=value) for key, value in config.items()),
    )
    (result,) = admin.ask_controller(create.CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT)).topics
    raise_for(result.error_code, f"create topic {name}", result.error_message)
    return id_as_text(result.topic_id)


def add_partitions(admin: Admin, name: str, partitions: int) -> None:
    """Make it that many in all; where the new replicas go is Kafka's choice."""
    topic = grow.CreatePartitionsTopic(name=cast("Any", name), count=cast("Any", partitions), assignments=None)
    request = grow.CreatePartitionsRequest(topics=(topic,), timeout=TIMEOUT, validate_only=False)
    for result in admin.ask_controller(request).results:
        raise_for(result.error_code, f"add partitions to {name}", result.error_message)
