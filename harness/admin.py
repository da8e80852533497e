"""Administration over Kafka's protocol, through the listeners that no fault touches.

Requests that must reach the active controller may go to any broker, which forwards them. So one rule serves all: ask
the broker that answered last, then the others, each with a deadline; a dead or paused one costs that deadline once.
"""

import base64
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, cast

from kio.schema.alter_partition_reassignments.v0 import request as reassign
from kio.schema.create_topics.v7 import request as create
from kio.schema.delete_topics.v6 import request as delete
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.describe_quorum.v1 import request as quorum
from kio.schema.elect_leaders.v2 import request as elect
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.incremental_alter_configs.v1 import request as alter_configs
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.metadata.v12 import request as metadata
from kio.static.primitive import i32Timedelta
from kio.static.protocol import RequestPayload

from aftershock.errors import AdminError
from aftershock.faults.world import BrokerId, PartitionState
from aftershock.harness.waiting import still_lacking
from aftershock.workloads.wire.connection import Address, Connection

Partition = tuple[str, int]
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))
_ASK_TIMEOUT_S = 3.0
_CONTROLLER_TIMEOUT_S = 15.0
_DECLINED = {ErrorCode.election_not_needed, ErrorCode.no_reassignment_in_progress}
_TRANSIENT = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.not_controller,
    ErrorCode.request_timed_out,
}


@dataclass(frozen=True)
class Member:
    """A broker as the cluster's metadata has it."""

    id: BrokerId
    rack: str | None
    fenced: bool


@dataclass(frozen=True)
class Quorum:
    """The metadata quorum: its leader is the active controller."""

    leader: BrokerId
    epoch: int
    voters: tuple[BrokerId, ...]


class Admin:
    """A cluster's administration. Thread-safe: one request at a time.

    Raises:
        AdminError: Kafka answered with an error, or no broker answered at all.
    """

    def __init__(self, addresses: Mapping[BrokerId, Address]) -> None:
        self._addresses = dict(addresses)
        self._order = list(addresses)
        self._connections: dict[BrokerId, Connection] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for broker in list(self._connections):
                self._connections.pop(broker).close()

    def ask(self, request: RequestPayload, timeout_s: float = _ASK_TIMEOUT_S, only: BrokerId | None = None) -> Any:
        """Send a request to the first broker that answers, or ``only`` to one; its errors are the caller's."""
        with self._lock:
            failures = []
            for broker in tuple(self._order) if only is None else (only,):
                try:
                    response = self._ask_one(broker, request, timeout_s)
                except OSError as error:
                    self._forget(broker)
                    failures.append(f"k{broker}: {error}")
                else:
                    self._order.sort(key=lambda other: other != broker)
                    return response
        raise AdminError(f"no broker answered {type(request).__name__} ({'; '.join(failures)})", "NETWORK_EXCEPTION")

    def _ask_one(self, broker: BrokerId, request: RequestPayload, timeout_s: float) -> Any:
        fresh = broker not in self._connections
        if fresh:
            self._connections[broker] = Connection(self._addresses[broker], timeout_s)
        try:
            return self._connections[broker].ask(request, timeout_s)
        except ConnectionError:
            # an idle connection may have died with a broker that is back by now
            if fresh:
                raise
            self._connections.pop(broker).close()
            self._connections[broker] = Connection(self._addresses[broker], timeout_s)
            return self._connections[broker].ask(request, timeout_s)

    def _forget(self, broker: BrokerId) -> None:
        connection = self._connections.pop(broker, None)
        if connection:
            connection.close()

    def members(self) -> tuple[Member, ...]:
        """All registered brokers, fenced ones too (DescribeCluster v2, KIP-1073)."""
        return tuple(Member(BrokerId(b.broker_id), b.rack, b.is_fenced) for b in self._described().brokers)

    def cluster_id(self) -> str:
        """The id the cluster was formatted with."""
        return str(self._described().cluster_id)

    def _described(self) -> Any:
        return self.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
        )

    def quorum(self) -> Quorum:
        """The quorum behind ``__cluster_metadata``."""
        partition = quorum.PartitionData(partition_index=_i32(0))
        topic = quorum.TopicData(topic_name=cast("Any", "__cluster_metadata"), partitions=(partition,))
        response = self.ask(quorum.DescribeQuorumRequest(topics=(topic,)))
        _raise_for(response.error_code, "describe the quorum")
        state = response.topics[0].partitions[0]
        _raise_for(state.error_code, "describe the quorum")
        return Quorum(state.leader_id, state.leader_epoch, tuple(v.replica_id for v in state.current_voters))

    def topics(self, seen_by: BrokerId | None = None) -> tuple[str, ...]:
        """The topics there are, Kafka's internal ones left out; by the metadata of one broker, or of any."""
        response = self.ask(_metadata_request(None), only=seen_by)
        return tuple(sorted(topic.name for topic in response.topics if not topic.is_internal))

    def partitions(
        self, topics: Sequence[str] | None = None, seen_by: BrokerId | None = None
    ) -> tuple[PartitionState, ...]:
        """Leaders, epochs, replicas and ISR of ``topics``, or of every topic, by topic and number.

        ``seen_by``: by the metadata of that broker, which follows the controller's; None: of any.
        """
        wanted = (
            None
            if topics is None
            else tuple(metadata.MetadataRequestTopic(topic_id=None, name=cast("Any", t)) for t in topics)
        )
        response = self.ask(_metadata_request(wanted), only=seen_by)
        for topic in response.topics:
            _raise_for(topic.error_code, f"describe topic {topic.name}")
        states = [_partition_state(t.name, p) for t in response.topics for p in t.partitions]
        return tuple(sorted(states, key=lambda state: (state.topic, state.partition)))

    def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> str:
        """Create a topic, its replicas placed by Kafka; its id as Kafka writes it (22 characters of base64)."""
        configs = tuple(create.CreatableTopicConfig(name=key, value=value) for key, value in config.items())
        topic = create.CreatableTopic(
            name=cast("Any", name),
            num_partitions=_i32(partitions),
            replication_factor=cast("Any", replication),
            assignments=(),
            configs=configs,
        )
        response = self._ask_controller(create.CreateTopicsRequest(topics=(topic,), timeout=_TIMEOUT))
        (result,) = response.topics
        _raise_for(result.error_code, f"create topic {name}", result.error_message)
        return _base64(result.topic_id)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; one that is gone already is no error."""
        states = tuple(delete.DeleteTopicState(name=cast("Any", name), topic_id=None) for name in names)
        response = self._ask_controller(delete.DeleteTopicsRequest(topics=states, timeout=_TIMEOUT))
        for result in response.responses:
            if result.error_code is not ErrorCode.unknown_topic_or_partition:
                _raise_for(result.error_code, f"delete topic {result.name}", result.error_message)

    def configs(self, kind: "Resource", name: str) -> dict[str, str | None]:
        """The configuration in force of a topic or a broker."""
        resource = describe_configs.DescribeConfigsResource(
            resource_type=cast("Any", kind), resource_name=name, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=(resource,))
        response = self.ask(request, only=_only(kind, name))
        (result,) = response.results
        _raise_for(result.error_code, f"describe the configuration of {name}", result.error_message)
        return {entry.name: entry.value for entry in result.configs}

    def alter_configs(self, kind: "Resource", name: str, changes: Mapping[str, str | None]) -> None:
        """Set dynamic configuration; a value of None removes the override (IncrementalAlterConfigs, KIP-339)."""
        configs = tuple(
            alter_configs.AlterableConfig(
                name=key, config_operation=cast("Any", 1 if value is None else 0), value=value
            )
            for key, value in changes.items()
        )
        resource = alter_configs.AlterConfigsResource(
            resource_type=cast("Any", kind), resource_name=name, configs=configs
        )
        request = alter_configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        for result in self._ask_controller(request, only=_only(kind, name)).responses:
            _raise_for(result.error_code, f"change the configuration of {name}", result.error_message)

    def reassign(self, assignment: Mapping[Partition, Sequence[int] | None]) -> None:
        """Give partitions new replica lists; None cancels a reassignment in flight (KIP-455)."""
        topics = tuple(
            reassign.ReassignableTopic(
                name=cast("Any", topic),
                partitions=tuple(
                    reassign.ReassignablePartition(partition_index=_i32(p), replicas=_replicas(assignment[topic, p]))
                    for p in numbers
                ),
            )
            for topic, numbers in _by_topic(assignment)
        )
        response = self._ask_controller(reassign.AlterPartitionReassignmentsRequest(timeout=_TIMEOUT, topics=topics))
        _raise_for(response.error_code, "reassign partitions", response.error_message)
        for topic in response.responses:
            for result in topic.partitions:
                _raise_for(result.error_code, f"reassign {topic.name}/{result.partition_index}", result.error_message)

    def reassigning(self) -> frozenset[Partition]:
        """The partitions whose replicas are being moved."""
        response = self._ask_controller(ListPartitionReassignmentsRequest(timeout=_TIMEOUT, topics=None))
        _raise_for(response.error_code, "list reassignments", response.error_message)
        return frozenset((topic.name, p.partition_index) for topic in response.topics for p in topic.partitions)

    def elect_preferred(self, partitions: Iterable[Partition]) -> None:
        """Make each partition's first replica its leader; one that leads already is no error (KIP-460)."""
        topics = tuple(
            elect.TopicPartitions(topic=cast("Any", topic), partitions=tuple(map(_i32, numbers)))
            for topic, numbers in _by_topic(partitions)
        )
        request = elect.ElectLeadersRequest(election_type=cast("Any", 0), topic_partitions=topics, timeout=_TIMEOUT)
        response = self._ask_controller(request)
        _raise_for(response.error_code, "elect preferred leaders")
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                _raise_for(result.error_code, f"elect a leader of {topic.topic}/{result.partition_id}")

    def coordinator(self, group: str, deadline_s: float = 30.0) -> BrokerId:
        """The broker that coordinates ``group``; asking creates ``__consumer_offsets`` if it isn't there yet."""
        request = FindCoordinatorRequest(key_type=cast("Any", 0), coordinator_keys=(group,))
        found = _settled(lambda: self.ask(request).coordinators[0], deadline_s)
        _raise_for(found.error_code, f"find the coordinator of {group}")
        return BrokerId(found.node_id)

    def _ask_controller(self, request: RequestPayload, only: BrokerId | None = None) -> Any:
        """Ask for something that takes the controller its time."""
        return _settled(lambda: self.ask(request, _CONTROLLER_TIMEOUT_S, only), _CONTROLLER_TIMEOUT_S)


Resource = int
TOPIC: Resource = 2
BROKER: Resource = 4


def _settled(ask: Callable[[], Any], deadline_s: float) -> Any:
    """The first answer that isn't an error which passes (an election is under way, say), or the last one."""
    answers = []

    def passing() -> str:
        answers.append(ask())
        code = getattr(answers[-1], "error_code", None)
        return code.name if code in _TRANSIENT else ""

    still_lacking(passing, deadline_s)
    return answers[-1]


def _metadata_request(topics: tuple[metadata.MetadataRequestTopic, ...] | None) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def _only(kind: Resource, name: str) -> BrokerId | None:
    """A broker's configuration is known to that broker alone."""
    return BrokerId(int(name)) if kind == BROKER and name else None


def _partition_state(topic: str, partition: Any) -> PartitionState:
    leader = BrokerId(partition.leader_id) if partition.leader_id >= 0 else None
    return PartitionState(
        topic,
        partition.partition_index,
        leader,
        partition.leader_epoch,
        tuple(map(BrokerId, partition.replica_nodes)),
        tuple(map(BrokerId, partition.isr_nodes)),
    )


def _base64(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    grouped = groupby(sorted(partitions), key=lambda partition: partition[0])
    return [(topic, [number for _, number in members]) for topic, members in grouped]


def _replicas(replicas: Sequence[int] | None) -> Any:
    return None if replicas is None else tuple(replicas)


def _i32(value: int) -> Any:
    """Kio types its integers as phantoms whose check costs more than the request; plain ints encode the same."""
    return value


def _raise_for(code: ErrorCode, what: str, detail: str | None = None) -> None:
    if code is ErrorCode.none or code in _DECLINED:
        return
    name = code.name.upper()
    raise AdminError(f"Kafka refused to {what}: {name}{f' ({detail})' if detail else ''}", name)
