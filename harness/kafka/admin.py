"""Administration of a cluster over Kafka's protocol, through listeners that faults never touch.

Every broker forwards requests that need the active controller. Therefore an administration request goes to the broker
that answered the previous request; if that broker does not answer in time, the request goes to the next broker. Each
broker gets a request in a version that the broker offers (`versions.lowered`).
"""

import base64
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from itertools import groupby
from typing import Any, TypeVar, cast

from kio.schema.alter_partition_reassignments.v0 import request as reassign
from kio.schema.api_versions.v3.request import ApiVersionsRequest
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

from aftershock.errors import AdminError, UnsupportedError
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition
from aftershock.harness.kafka.versions import lowered
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

T = TypeVar("T")
Resource = int
TOPIC: Resource = 2
BROKER: Resource = 4
TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))
_ASK_TIMEOUT_S = 3.0
_CONTROLLER_TIMEOUT_S = 15.0
_COORDINATOR_TIMEOUT_S = 30.0
_PREFERRED, _UNCLEAN = 0, 1
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_DECLINED = {ErrorCode.election_not_needed, ErrorCode.no_reassignment_in_progress}
_TRANSIENT = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.not_controller,
    ErrorCode.request_timed_out,
}
VERSIONS_REQUEST = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
_DESCRIBE_CLUSTER = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)


def still_lacking(missing_state: Callable[[], str], deadline_s: float) -> str:
    """Call ``missing_state`` repeatedly until it returns "" or the deadline passes; return the last result."""
    give_up_s = time.monotonic() + deadline_s
    while missing := missing_state():
        if time.monotonic() > give_up_s:
            return missing
        time.sleep(0.1)
    return ""


@dataclass(frozen=True)
class Member:
    id: BrokerId
    rack: str | None
    fenced: bool


@dataclass(frozen=True)
class Quorum:
    """State of the metadata quorum, whose leader is the active controller; ``ends`` has each voter's log end offset."""

    leader: BrokerId
    epoch: int
    voters: tuple[BrokerId, ...]
    ends: Mapping[BrokerId, int]


class Admin:
    """Thread-safe client for the administration of a cluster, which sends one request at a time.

    Raises AdminError if Kafka answered with an error, or if no broker answered.
    """

    def __init__(self, addresses: Mapping[BrokerId, Address], security: Security = PLAINTEXT) -> None:
        self.addresses = dict(addresses)
        self._security = security
        self._order = list(addresses)
        self._connections: dict[BrokerId, Connection] = {}
        self._lock = threading.Lock()

    def copy(self) -> "Admin":
        """Return a client with connections of its own, for requests at the same time."""
        return Admin(self.addresses, self._security)

    def close(self) -> None:
        with self._lock:
            for broker in list(self._connections):
                self._connections.pop(broker).close()

    def ask(
        self,
        request: RequestPayload,
        timeout_s: float = _ASK_TIMEOUT_S,
        only: BrokerId | None = None,
        excluding: Collection[BrokerId] = (),
    ) -> Any:
        """Send a request to the first broker that answers, or to the broker ``only``; the caller checks error codes."""
        with self._lock:
            failures, code = [], "NETWORK_EXCEPTION"
            for broker in [broker for broker in self._order if broker not in excluding] if only is None else (only,):
                try:
                    response = self._ask_broker(broker, request, timeout_s)
                except UnsupportedError as error:
                    failures.append(f"k{broker}: {error}")
                    code = "UNSUPPORTED_VERSION"
                except OSError as error:
                    if connection := self._connections.pop(broker, None):
                        connection.close()
                    failures.append(f"k{broker}: {error}")
                else:
                    self._order.sort(key=lambda candidate: candidate != broker)
                    return response
        raise AdminError(f"no broker answered {type(request).__name__} ({'; '.join(failures)})", code)

    def _ask_broker(self, broker: BrokerId, request: RequestPayload, timeout_s: float) -> Any:
        if idle := self._connections.get(broker):
            try:
                return idle.ask(lowered(request, idle.versions), timeout_s)
            except ConnectionError:
                # the idle connection may belong to an earlier process of a restarted broker
                idle.close()
        self._connections[broker] = connection = Connection(self.addresses[broker], timeout_s, self._security)
        return connection.ask(lowered(request, connection.versions), timeout_s)

    def ask_controller(self, request: RequestPayload, only: BrokerId | None = None) -> Any:
        """Send a request that the active controller executes, with a long deadline; repeat after transient errors."""
        return _retry_transient(lambda: self.ask(request, _CONTROLLER_TIMEOUT_S, only), _CONTROLLER_TIMEOUT_S)

    def members(self, excluding: Collection[BrokerId] = ()) -> tuple[Member, ...]:
        """Return all registered brokers, including fenced brokers (DescribeCluster v2, KIP-1073).

        A broker older than Kafka 4.0 leaves out fenced brokers.
        """
        brokers = self.ask(_DESCRIBE_CLUSTER, excluding=excluding).brokers
        return tuple(Member(BrokerId(b.broker_id), b.rack, getattr(b, "is_fenced", False)) for b in brokers)

    def cluster_id(self) -> str:
        return str(self.ask(_DESCRIBE_CLUSTER).cluster_id)

    def quorum(self) -> Quorum:
        return quorum_of(self.ask(quorum_request()))

    def topics(self, seen_by: BrokerId | None = None) -> tuple[str, ...]:
        """Return all topics except internal topics, according to the broker ``seen_by``, by default any broker."""
        response = self.ask(metadata_request(), only=seen_by)
        return tuple(sorted(topic.name for topic in response.topics if not topic.is_internal))

    def partitions(
        self, topics: Sequence[str] | None = None, seen_by: BrokerId | None = None
    ) -> tuple[PartitionState, ...]:
        """Return the sorted partitions of ``topics``, or else of all topics, as the broker ``seen_by`` knows them."""
        response = self.ask(metadata_request(topics), only=seen_by)
        for topic in response.topics:
            raise_for(topic.error_code, f"describe topic {topic.name}")
        states = [
            PartitionState(
                topic.name,
                p.partition_index,
                BrokerId(p.leader_id) if p.leader_id >= 0 else None,
                getattr(p, "leader_epoch", -1),  # of Metadata v7 and later
                tuple(map(BrokerId, p.replica_nodes)),
                tuple(map(BrokerId, p.isr_nodes)),
            )
            for topic in response.topics
            for p in topic.partitions
        ]
        return tuple(sorted(states, key=lambda state: (state.topic, state.partition)))

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int,
        config: Mapping[str, str],
        replicas: Mapping[int, Sequence[int]] | None = None,
    ) -> str:
        """Create a topic and return its id; ``partitions`` and ``replication`` must be -1 if ``replicas`` is given."""
        topic = message(
            create.CreatableTopic,
            name=name,
            num_partitions=partitions,
            replication_factor=replication,
            assignments=tuple(
                message(create.CreatableReplicaAssignment, partition_index=number, broker_ids=tuple(ids))
                for number, ids in sorted((replicas or {}).items())
            ),
            configs=tuple(create.CreatableTopicConfig(name=key, value=value) for key, value in config.items()),
        )
        (result,) = self.ask_controller(create.CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT)).topics
        raise_for(result.error_code, f"create topic {name}", result.error_message)
        return id_as_text(result.topic_id)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; ignore missing topics."""
        states = tuple(message(delete.DeleteTopicState, name=name, topic_id=None) for name in names)
        response = self.ask_controller(delete.DeleteTopicsRequest(topics=states, timeout=TIMEOUT))
        for result in response.responses:
            if result.error_code is not ErrorCode.unknown_topic_or_partition:
                raise_for(result.error_code, f"delete topic {result.name}", result.error_message)

    def configs(self, kind: Resource, name: str) -> dict[str, str | None]:
        return {key: entry.value for key, entry in self.config_entries(kind, name).items()}

    def config_entries(self, kind: Resource, name: str) -> dict[str, Any]:
        """Return configuration entries as in Kafka's DescribeConfigs response, by name."""
        resource = message(
            describe_configs.DescribeConfigsResource, resource_type=kind, resource_name=name, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=(resource,))
        (result,) = self.ask(request, only=_only(kind, name)).results
        raise_for(result.error_code, f"describe the configuration of {name}", result.error_message)
        return {entry.name: entry for entry in result.configs}

    def alter_configs(self, kind: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Set dynamic configuration values, or remove values given as None (IncrementalAlterConfigs, KIP-339)."""
        configs = tuple(
            message(alter_configs.AlterableConfig, name=key, config_operation=1 if value is None else 0, value=value)
            for key, value in changes.items()
        )
        resource = message(alter_configs.AlterConfigsResource, resource_type=kind, resource_name=name, configs=configs)
        request = alter_configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        for result in self.ask_controller(request, only=_only(kind, name)).responses:
            raise_for(result.error_code, f"change the configuration of {name}", result.error_message)

    def reassign(self, assignment: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Assign new replicas to partitions; None cancels a partition's reassignment in progress (KIP-455)."""
        replicas = {where: assigned and tuple(assigned) for where, assigned in assignment.items()}
        kinds = reassign.ReassignableTopic, reassign.ReassignablePartition
        topics = per_topic(*kinds, assignment, lambda where: {"replicas": replicas[where]})
        response = self.ask_controller(reassign.AlterPartitionReassignmentsRequest(timeout=TIMEOUT, topics=topics))
        raise_for(response.error_code, "reassign partitions", response.error_message)
        for topic in response.responses:
            for result in topic.partitions:
                raise_for(result.error_code, f"reassign {topic.name}/{result.partition_index}", result.error_message)

    def reassigning(self) -> frozenset[TopicPartition]:
        response = self.ask_controller(ListPartitionReassignmentsRequest(timeout=TIMEOUT, topics=None))
        raise_for(response.error_code, "list reassignments", response.error_message)
        return frozenset((topic.name, p.partition_index) for topic in response.topics for p in topic.partitions)

    def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """Elect each partition's first replica as leader, if another replica leads (KIP-460)."""
        self._elect(partitions, _PREFERRED)

    def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """Elect a live replica, in sync or not, as leader of each partition without a leader (KIP-460)."""
        self._elect(partitions, _UNCLEAN)

    def _elect(self, partitions: Iterable[TopicPartition], election: int) -> None:
        topics = tuple(
            message(elect.TopicPartitions, topic=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic(partitions)
        )
        request = message(elect.ElectLeadersRequest, election_type=election, topic_partitions=topics, timeout=TIMEOUT)
        response = self.ask_controller(request)
        raise_for(response.error_code, "elect leaders")
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                raise_for(result.error_code, f"elect a leader of {topic.topic}/{result.partition_id}")

    def coordinator(self, group: str) -> BrokerId:
        """Return the coordinator of a group; the request makes Kafka create the topic ``__consumer_offsets``."""
        return self._coordinator(_GROUP_KEY, group)

    def transaction_coordinator(self, transactional_id: str) -> BrokerId:
        """Return the coordinator of a transactional id; the request makes Kafka create ``__transaction_state``."""
        return self._coordinator(_TRANSACTION_KEY, transactional_id)

    def _coordinator(self, key_type: int, key: str) -> BrokerId:
        request = message(FindCoordinatorRequest, key_type=key_type, coordinator_keys=(key,))

        def ask() -> Any:
            response = self.ask(request)  # which is the coordinator itself before v4
            return response.coordinators[0] if hasattr(response, "coordinators") else response

        response = _retry_transient(ask, _COORDINATOR_TIMEOUT_S)
        raise_for(response.error_code, f"find the coordinator of {key}")
        return BrokerId(response.node_id)


def quorum_request() -> RequestPayload:
    partition = message(quorum.PartitionData, partition_index=0)
    topic = message(quorum.TopicData, topic_name="__cluster_metadata", partitions=(partition,))
    return quorum.DescribeQuorumRequest(topics=(topic,))


def quorum_of(response: Any) -> Quorum:
    """Parse a DescribeQuorum response; raise AdminError if the response is not from the quorum's leader."""
    raise_for(response.error_code, "describe the quorum")
    state = response.topics[0].partitions[0]
    raise_for(state.error_code, "describe the quorum")
    ends = {BrokerId(voter.replica_id): voter.log_end_offset for voter in state.current_voters}
    return Quorum(state.leader_id, state.leader_epoch, tuple(ends), ends)


def _retry_transient(ask: Callable[[], Any], deadline_s: float) -> Any:
    responses = []

    def transient_error() -> str:
        responses.append(ask())
        code = getattr(responses[-1], "error_code", None)
        return code.name if code in _TRANSIENT else ""

    still_lacking(transient_error, deadline_s)
    return responses[-1]


def metadata_request(topics: Sequence[str] | None = None) -> RequestPayload:
    """Return a Metadata request for ``topics``, by default all topics, that does not create missing topics."""
    named = None
    if topics is not None:
        named = tuple(message(metadata.MetadataRequestTopic, topic_id=None, name=name) for name in topics)
    return metadata.MetadataRequest(
        topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def _only(kind: Resource, name: str) -> BrokerId | None:
    """Return the broker that must answer a configuration request, because only that broker knows its own settings."""
    return BrokerId(int(name)) if kind == BROKER and name else None


def id_as_text(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Return the sorted list ``[(topic, [partition numbers])]``."""
    grouped = groupby(sorted(partitions), key=lambda partition: partition[0])
    return [(topic, [number for _, number in members]) for topic, members in grouped]


def message(kind: type[T], **values: Any) -> T:
    """Return a kio message from plain values; a conversion to kio's types would take longer than the request."""
    return kind(**values)


def per_topic(
    topic_kind: type[T],
    partition_kind: type[Any],
    partitions: Iterable[TopicPartition],
    values: Callable[[TopicPartition], Mapping[str, Any]] = lambda _: {},
) -> tuple[T, ...]:
    """Return a kio message for each topic, with the messages of its partitions, as many requests have them.

    ``values`` gives the fields of a partition's message beside its number, which is its first field.
    """
    name, number_name = (fields(cast("Any", kind))[0].name for kind in (topic_kind, partition_kind))
    return tuple(
        message(
            topic_kind,
            partitions=tuple(partition_kind(**{number_name: n}, **values((topic, n))) for n in numbers),
            **{name: topic},
        )
        for topic, numbers in by_topic(partitions)
    )


def raise_for(code: ErrorCode, action: str, detail: str | None = None) -> None:
    """Raise AdminError for Kafka's error code, unless the code means that the requested state already exists."""
    if code is ErrorCode.none or code in _DECLINED:
        return
    name = code.name.upper()
    raise AdminError(f"Kafka refused to {action}: {name}{f' ({detail})' if detail else ''}", name)
