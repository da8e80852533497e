"""Requests about the cluster and its logs."""

from typing import Any

from aftershock.tests.scripted.call import Answer, Call, named, naming
from aftershock.tests.scripted.cluster import UNKNOWN_TOPIC_OR_PARTITION, Partition, Topic, unknown

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CLUSTER_ID = "scripted"


async def api_versions(call: Call) -> Answer:
    level = call.cluster.transaction_version
    feature = {"name": "transaction.version", "max_version_level": level, "min_version_level": level}
    return offered(call.node.versions) | {"finalized_features_epoch": level, "finalized_features": [feature]}


def offered(versions: dict[int, tuple[int, int]]) -> Answer:
    """The ranges of an ApiVersions response."""
    return {
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in sorted(versions.items())
        ]
    }


async def metadata(call: Call) -> Answer:
    cluster, asked = call.cluster, call.body.topics
    wants_all = asked is None or (call.request.version == 0 and not asked)
    names = list(cluster.topics) if wants_all else [named(topic) for topic in asked]
    for name in names:
        if isinstance(name, str) and cluster.topic(name) is None and cluster.auto_create:
            cluster.create(name, cluster.auto_create)
    return {
        "brokers": [call.address(node) for node in cluster.ports if node not in cluster.down],
        "cluster_id": CLUSTER_ID,
        "controller_id": 1,
        "topics": [_topic(call, cluster.topic(name), name) for name in names],
    }


def _topic(call: Call, topic: Topic | None, asked: Any) -> Answer:
    if topic is None:
        missing = {"name": asked} if isinstance(asked, str) else {"name": None, "topic_id": asked}
        return missing | {"error_code": unknown(asked)}
    whole = call.script.error if call.script.partition is None else None
    if whole:
        return {"name": topic.name, "topic_id": topic.topic_id, "error_code": whole}
    partitions = [_partition(call, topic.name, number, partition) for number, partition in enumerate(topic.partitions)]
    return {"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}


def _partition(call: Call, topic: str, number: int, partition: Partition) -> Answer:
    error = call.script.error_of((topic, number))
    leader = partition.seen_by(call.node.node_id)
    return {
        "error_code": error or 0,
        "partition_index": number,
        "leader_id": -1 if error else leader.node,
        "leader_epoch": leader.epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": [node for node in partition.replicas if node not in call.cluster.down],
        "offline_replicas": [node for node in partition.replicas if node in call.cluster.down],
    }


async def list_offsets(call: Call) -> Answer:
    return {
        "topics": [
            naming(topic) | {"partitions": [_offset(call, topic, entry) for entry in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _offset(call: Call, topic: Any, entry: Any) -> Answer:
    partition = call.cluster.partition(named(topic), entry.partition_index)
    error = call.error_of(named(topic), entry.partition_index) or _refusal(call, partition, entry)
    answer: Answer = {"partition_index": entry.partition_index, "error_code": error, "timestamp": -1, "offset": -1}
    if error or partition is None:
        return answer
    log = partition.log
    if entry.timestamp == LATEST:
        committed = bool(getattr(call.body, "isolation_level", 0))
        end = log.last_stable_offset if committed else log.high_watermark
        offset, time_ms = end(call.node.node_id), -1
    elif entry.timestamp == EARLIEST:
        offset, time_ms = log.start, -1
    elif entry.timestamp == MAX_TIMESTAMP:
        offset, time_ms = log.at_time(max((batch.time_ms for batch in log.batches), default=0))
    else:
        offset, time_ms = log.at_time(entry.timestamp)
    return answer | {"offset": offset, "timestamp": time_ms, "leader_epoch": partition.leader.epoch}


def _refusal(call: Call, partition: Partition | None, entry: Any) -> int:
    if partition is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    return partition.refusal(call.node.node_id, getattr(entry, "current_leader_epoch", -1))


async def offset_for_leader_epoch(call: Call) -> Answer:
    return {
        "topics": [
            naming(topic) | {"partitions": [_end_of_epoch(call, topic, entry) for entry in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _end_of_epoch(call: Call, topic: Any, entry: Any) -> Answer:
    partition = call.cluster.partition(named(topic), entry.partition)
    error = call.error_of(named(topic), entry.partition) or _refusal(call, partition, entry)
    epoch, end = partition.log.end_of_epoch(entry.leader_epoch) if partition and not error else (-1, -1)
    return {"error_code": error, "partition": entry.partition, "leader_epoch": epoch, "end_offset": end}


async def init_producer_id(call: Call) -> Answer:
    """A new id with epoch 0; one who names its own gets that, in the next epoch."""
    own = getattr(call.body, "producer_id", -1)
    if own >= 0:
        return {"producer_id": own, "producer_epoch": call.body.producer_epoch + 1}
    call.cluster.producer_ids += 1
    return {"producer_id": call.cluster.producer_ids, "producer_epoch": 0}
