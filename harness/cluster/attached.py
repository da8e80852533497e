"""Attached cluster: a user's own cluster, reached by its bootstrap address and described by its own brokers.

Its nodes, networks and disks are not accessible to the harness. All its clients are in one location; brokers are in the
racks that they report (``broker.rack``), under the plan's names for them.

* `AttachmentDescriptor` (``attached.json`` in the run directory) records what the run may touch. It is written before
  the first change, and again for every topic that the run creates, so that another process can heal the cluster after a
  crash. It holds no secrets, only the names of their environment variables.
* Topics of the plan are used as they are, or created and deleted again if the plan says so. A topic is deleted by its
  id, so a topic that another user created under the same name stays.
* In a user's Toxiproxy, only the proxies that the plan names can be changed (`NamedProxies`). Journal, undo and report
  use link names as for a launched cluster (``client_a-k1``); requests to Toxiproxy use the user's names.
"""

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from aftershock.errors import AdminError, ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.plan.cluster import Attach
from aftershock.faults.targets.values import BrokerId, PartitionState, Toxic
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.cluster import out_of_sync
from aftershock.harness.cluster.node import ContainerUsage
from aftershock.harness.cluster.proxies import Toxiproxy, WireProxy
from aftershock.harness.kafka.admin import TIMEOUT, TOPIC, Admin, raise_for, still_lacking
from aftershock.harness.kafka.groups import groups, remove_members
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.run.assignments import group_names, worker_names
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.workloads.adapters.security import SecuritySettings
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.security import Security
from aftershock.workloads.load.logread import EndOffsets, Topic, end_offsets

DESCRIPTOR_FILE = "attached.json"
_FILES = ("ca", "certificate", "key")


@dataclass(frozen=True)
class AttachmentDescriptor:
    """Record of an attached run, for healing after a crash.

    Attributes:
        attach: with absolute paths, because another process may heal from another folder.
        topics: the plan's topics.
        clients: names of our workers, which are their client ids.
        groups: consumer groups of the workers.
        created: ids of the topics that the run created, by name.
        over: the run removed its traces.
    """

    run_id: str
    attach: Attach
    topics: tuple[str, ...]
    clients: tuple[str, ...]
    groups: tuple[str, ...] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    over: bool = False

    @classmethod
    def of(cls, run_id: str, attach: Attach, timeline: Timeline) -> "AttachmentDescriptor":
        """Return the descriptor of a run that begins."""
        files = {name: str(Path(path).resolve()) for name in _FILES if (path := getattr(attach.security, name))}
        security = attach.security.model_copy(update=files)
        topics = tuple(topic["name"] for topic in timeline.topics)
        clients, groups = tuple(worker_names(timeline)), tuple(group_names(timeline))
        return cls(run_id, attach.model_copy(update={"security": security}), topics, clients, groups)

    def with_topic(self, topic: str, topic_id: str) -> "AttachmentDescriptor":
        """Return a copy with one more created topic, or a new id for it."""
        return replace(self, created={**self.created, topic: topic_id})

    def closed(self) -> "AttachmentDescriptor":
        """Return a copy without created topics, marked as over."""
        return replace(self, created={}, over=True)

    def write(self, home: Path) -> None:
        """Write atomically into the run directory."""
        document: dict[str, Any] = asdict(self) | {"attach": self.attach.model_dump(mode="json", exclude_defaults=True)}
        write_whole(home / DESCRIPTOR_FILE, json.dumps(document, indent=1) + "\n")


def is_attached(home: Path) -> bool:
    """True if the run of this directory uses an attached cluster."""
    return (home / DESCRIPTOR_FILE).is_file()


def read_descriptor(home: Path) -> AttachmentDescriptor:
    """Read the descriptor. Raises EvidenceError if it can't be read."""
    found = read_object(home / DESCRIPTOR_FILE)
    try:
        attach = Attach.model_validate(found["attach"])
        topics, clients, groups = (tuple(map(str, found[name])) for name in ("topics", "clients", "groups"))
        return AttachmentDescriptor(
            str(found["run_id"]), attach, topics, clients, groups, dict(found["created"]), bool(found["over"])
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise EvidenceError(
            f"{home / DESCRIPTOR_FILE}: not a descriptor of an attached cluster; restore the file"
        ) from error


_TIMEOUT_S = 10.0
_DESCRIBE_CLUSTER, _VERSION = 60, 2
_VERSIONS = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
_DESCRIBE = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=False)


@dataclass(frozen=True)
class Broker:
    """A broker as described by a listener; ``rack`` is its ``broker.rack``."""

    id: BrokerId
    address: Address
    rack: str | None


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster's id, and its brokers in the order of their ids."""

    cluster_id: str
    brokers: tuple[Broker, ...]


def describe_cluster(bootstrap: str, security: Security) -> ClusterDescription:
    """Describe the cluster, using the first address of ``bootstrap`` that answers.

    Raises:
        ClusterError: no address answers (with each error), or the cluster is too old.
    """
    failures = []
    for address in addresses(bootstrap):
        try:
            with Connection(address, _TIMEOUT_S, security) as connection:
                _require_version(connection, address)
                answer: Any = connection.ask(_DESCRIBE)
        except OSError as error:
            failures.append(f"{address}: {error}")
        else:
            found = (Broker(BrokerId(b.broker_id), Address(b.host, b.port), b.rack) for b in answer.brokers)
            return ClusterDescription(str(answer.cluster_id), tuple(sorted(found, key=lambda broker: broker.id)))
    raise ClusterError(f"the attached cluster can't be reached: {'; '.join(failures)}")


def addresses(bootstrap: str) -> Sequence[Address]:
    """Parse ``host:port,host:port``. Raises ClusterError for an invalid address."""
    pairs = (item.rpartition(":") for item in bootstrap.split(","))
    try:
        return [Address.checked(host, int(port)) for host, _, port in pairs]
    except ValueError as error:
        raise ClusterError(f"`bootstrap` of the attached cluster: {error}") from error


def _require_version(connection: Connection, address: Address) -> None:
    answer: Any = connection.ask(_VERSIONS)
    highest = next((api.max_version for api in answer.api_keys if api.api_key == _DESCRIBE_CLUSTER), -1)
    if highest < _VERSION:
        raise ClusterError(f"the broker at {address} is older than Kafka 4.0, which is the oldest that can be attached")


_GONE = {ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition}


def check_topic(admin: Admin, planned: Mapping[str, Any], states: Iterable[PartitionState]) -> None:
    """Raise ClusterError if an existing topic differs from the plan."""
    partitions = [state for state in states if state.topic == planned["name"]]
    _require_equal(planned["name"], "partitions", planned["partitions"], len(partitions))
    for state in partitions:
        _require_equal(planned["name"], "replication", planned["replication"], len(state.replicas))
    configs = admin.configs(TOPIC, planned["name"]) if planned["config"] else {}
    for key, value in planned["config"].items():
        _require_equal(planned["name"], key, value, configs.get(key))


def topic_missing_error(name: str) -> ClusterError:
    """Return the error for a missing topic."""
    return ClusterError(f"the attached cluster has no topic {name}: create it, or name it under `attach.create`")


def topic_exists_error(name: str) -> ClusterError:
    """Return the error for a topic that should not exist yet."""
    return ClusterError(
        f"the topic {name} exists already and was not created by this run: remove it from `attach.create`"
    )


def delete_by_id(admin: Admin, created: Mapping[str, str]) -> None:
    """Delete topics, ``name -> id``. A missing topic is no error."""
    states = tuple(DeleteTopicState(name=None, topic_id=_parse_uuid(text)) for text in created.values())
    response = admin.ask_controller(DeleteTopicsRequest(topics=states, timeout=TIMEOUT))
    for result in response.responses:
        if result.error_code not in _GONE:
            raise_for(result.error_code, f"delete topic {result.name or result.topic_id}", result.error_message)


def _require_equal(topic: str, what: str, planned: object, found: object) -> None:
    if planned != found:
        raise ClusterError(f"the topic {topic} has {what} {found}, and the plan says {planned}: change one of them")


def _parse_uuid(text: str) -> uuid.UUID:
    """Parse an id as Kafka writes it."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class NamedProxies:
    """Interface of `Toxiproxy` for the proxies that the plan names. Raises FaultError for any other proxy."""

    def __init__(self, server: Toxiproxy, user_names: Mapping[str, str]) -> None:
        self.server = server
        self._user_names = dict(user_names)
        self._link_names = {name: link for link, name in user_names.items()}

    @classmethod
    def of(cls, attach: Attach) -> "NamedProxies | None":
        """Return the plan's proxies; None if the plan names no proxies."""
        if attach.toxiproxy is None:
            return None
        host, _, port = attach.toxiproxy.removeprefix("http://").rstrip("/").rpartition(":")
        user_names = {link_name(attach, broker): name for name, broker in attach.proxies.items()}
        return cls(Toxiproxy(host, int(port)), user_names)

    def check(self) -> None:
        """Raise ClusterError if a named proxy is missing or disabled."""
        try:
            existing, disabled = self.server.upstreams(), self.server.disabled()
        except FaultError as error:
            raise ClusterError(f"your Toxiproxy does not answer: {error}") from error
        for name in self._link_names:
            if name not in existing:
                proxies = ", ".join(sorted(existing)) or "none"
                raise ClusterError(f"your Toxiproxy at {self.server.url} has no proxy {name}; its proxies: {proxies}")
            if name in disabled:
                raise ClusterError(f"your proxy {name} is disabled: enable it, or remove it from `proxies`")

    @property
    def url(self) -> str:
        """URL of the server's API."""
        return self.server.url

    @property
    def user_names(self) -> Mapping[str, str]:
        """The user's proxy names by link name."""
        return self._user_names

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        self.server.add_toxic(self._name(proxy), toxic)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        self.server.update_toxic(self._name(proxy), toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:
        self.server.remove_toxic(self._name(proxy), name)

    def enable(self, proxy: str, *, enabled: bool) -> None:
        self.server.enable(self._name(proxy), enabled=enabled)

    def redirect(self, proxy: str, upstream: str) -> None:
        self.server.redirect(self._name(proxy), upstream)

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        return {
            self._link_names[name]: toxics for name, toxics in self.server.toxics().items() if name in self._link_names
        }

    def disabled(self) -> frozenset[str]:
        return frozenset(self._link_names[name] for name in self.server.disabled() if name in self._link_names)

    def upstreams(self) -> dict[str, str]:
        return {
            self._link_names[name]: upstream
            for name, upstream in self.server.upstreams().items()
            if name in self._link_names
        }

    def _name(self, proxy: str) -> str:
        if proxy not in self._user_names:
            raise FaultError(f"{proxy} is not among the proxies that the plan names under `attach`")
        return self._user_names[proxy]


def link_name(attach: Attach, broker: int) -> str:
    """Return the name of the link from the clients to a broker, as `topology` names those of a launched cluster."""
    return f"client_{attach.rack}-k{broker}"


NO_RACK = "none"
_IN_SYNC_S = 30.0
_ENDS_S = 30.0


class AttachedCluster:
    """A `target.Target`. Connects on first use, so that its proxies can be healed while no broker is reachable.

    Attributes:
        descriptor: the objects that the run may change, and the topics that it created.
        toxiproxy: the proxies that the plan names, None without any.

    Raises:
        ClusterError: a secret is missing, no broker answers, or a named object is missing.
    """

    voters: Sequence[int] = ()
    wire_proxy: WireProxy | None = None

    def __init__(self, descriptor: AttachmentDescriptor, home: Path) -> None:
        attach = descriptor.attach
        self.descriptor, self._home, self.run_id = descriptor, home, descriptor.run_id
        self.security = SecuritySettings.model_validate(attach.security.model_dump())
        self.toxiproxy = NamedProxies.of(attach)

    @cached_property
    def secured(self) -> Security:
        """Connection settings, including secrets."""
        return _resolve(self.security)

    @cached_property
    def admin(self) -> Admin:
        """Administration, through ``attach.admin`` if the plan has one."""
        description = (
            self._description
            if self.descriptor.attach.admin is None
            else describe_cluster(self.descriptor.attach.admin, self.secured)
        )
        return Admin({broker.id: broker.address for broker in description.brokers}, self.secured)

    @cached_property
    def _description(self) -> ClusterDescription:
        return describe_cluster(self.descriptor.attach.bootstrap, self.secured)

    @cached_property
    def client_addresses(self) -> Mapping[BrokerId, Address]:
        """Address of each broker for clients; its proxy listens there, if it has one."""
        return {broker.id: broker.address for broker in self._description.brokers}

    @cached_property
    def racks(self) -> Mapping[BrokerId, str]:
        """The rack of each broker, by the plan's names."""
        names = {user_names: ours for ours, user_names in self.descriptor.attach.racks.items()}
        return {broker.id: names.get(broker.rack or "", broker.rack or NO_RACK) for broker in self._description.brokers}

    def check(self) -> None:
        """Raise ClusterError if an object that the plan names is missing or denies access."""
        attach = self.descriptor.attach
        for broker in (*attach.proxies.values(), *attach.brokers):
            if broker not in self.client_addresses:
                brokers = ", ".join(map(str, self.client_addresses))
                raise ClusterError(f"the attached cluster has no broker {broker}; its brokers are {brokers}")
        if self.toxiproxy:
            self.toxiproxy.check()
        self.admin.topics()

    def versions(self) -> Mapping[str, str]:
        """Return the known versions."""
        return {"toxiproxy": self.toxiproxy.server.version()} if self.toxiproxy else {}

    def close(self) -> None:
        """Close our connections; the cluster stays as it is."""
        if "admin" in vars(self):
            self.admin.close()

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """See `target.Target`."""
        return {int(broker): rack for broker, rack in self.racks.items()}

    def bootstrap(self, rack: str | None) -> str:
        """See `target.Target`; all clients use one address."""
        attach = self.descriptor.attach
        return attach.bootstrap if rack else attach.admin or attach.bootstrap

    def kafka_rack(self, rack: str | None) -> str | None:
        """See `target.Target`."""
        return None if rack is None else self.descriptor.attach.racks.get(rack, rack)

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Return nothing: a user's Toxiproxy may run without counters, so bytes are counted by the clients."""
        return {}

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        """Return nothing: the cluster's machines are not accessible."""
        return {}

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """See `target.Target`: checks existing topics against the plan, and creates those under ``attach.create``."""
        existing = set(self.admin.topics())
        for planned in topics:
            self._provide_topic(planned, existing)
        names = [planned["name"] for planned in topics]
        self._await_in_sync(names)
        ids = {
            **topic_ids(self.admin),
            **self.descriptor.created,
        }  # a broker may not have the metadata of a new topic yet
        found = {
            name: Topic(name, ids[name], planned["partitions"]) for name, planned in zip(names, topics, strict=True)
        }
        old = [topic for name, topic in found.items() if name not in self.descriptor.created]
        return found, end_offsets(self.bootstrap(None), old, _ENDS_S, self.secured) if old else {}

    def _provide_topic(self, planned: Mapping[str, Any], existing: set[str]) -> None:
        name = planned["name"]
        if name in self.descriptor.attach.create:
            if name in existing:
                raise topic_exists_error(name)
            self.created(
                name, self.admin.create_topic(name, planned["partitions"], planned["replication"], planned["config"])
            )
        elif name not in existing:
            raise topic_missing_error(name)
        else:
            check_topic(self.admin, planned, self.admin.partitions([name]))

    def created(self, topic: str, topic_id: str) -> None:
        """Record, on disk too, that the run created this topic and must delete it."""
        self.descriptor = self.descriptor.with_topic(topic, topic_id)
        self.descriptor.write(self._home)

    def clear(self) -> Sequence[str]:
        """Remove our group members and the topics that the run created. Return the topics' names. Repeatable."""
        self._remove_members()
        created = self.descriptor.created
        if created:
            delete_by_id(self.admin, created)
        self.descriptor = self.descriptor.closed()
        self.descriptor.write(self._home)
        return tuple(created)

    def _remove_members(self) -> None:
        """Remove killed clients from their groups, where they would delay the next run for up to 45 s."""
        for group in self.descriptor.groups:
            coordinator = self.admin.coordinator(group)
            if kind := groups(self.admin, coordinator).get(group):
                remove_members(self.admin, coordinator, group, kind, self.descriptor.clients)

    def describe(self) -> dict[str, Any]:
        """See `target.Target`."""
        attach, security = self.descriptor.attach, self.security
        connection = (
            f"{security.protocol} {security.mechanism} as {security.user}" if security.mechanism else security.protocol
        )
        return {
            "bootstrap": {"admin": self.bootstrap(None), attach.rack: attach.bootstrap},
            "toxiproxy": self.toxiproxy and self.toxiproxy.url,
            "brokers": [
                {"id": broker, "rack": rack, "dialled": str(self.client_addresses[broker])}
                for broker, rack in self.racks.items()
            ],
            "attached": {
                "cluster id": self._description.cluster_id,
                "security": connection,
                "proxies": {name: f"broker {broker}" for name, broker in attach.proxies.items()},
                "topics created": sorted(self.descriptor.created),
            },
        }

    def _await_in_sync(self, topics: Sequence[str]) -> None:
        def missing_state() -> str:
            try:
                return out_of_sync(self.admin.partitions(topics))
            except AdminError as error:
                return str(error)

        if missing := still_lacking(missing_state, _IN_SYNC_S):
            raise ClusterError(f"the topics of the plan are not in sync after {_IN_SYNC_S:.0f} s: {missing}")


def _resolve(security: SecuritySettings) -> Security:
    try:
        secured = security.resolved()
        _ = secured.tls  # report unreadable or invalid files now, by their names
    except WorkloadError as error:
        raise ClusterError(str(error)) from error
    except OSError as error:
        files = ", ".join(str(path) for path in (security.ca, security.certificate, security.key) if path)
        raise ClusterError(f"the attached cluster's certificates can't be used ({files}): {error}") from error
    return secured
