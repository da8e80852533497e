"""Attached cluster, a user's own cluster, reached by its bootstrap address and described by its own brokers.

A run on an attached cluster uses existing topics, and creates and deletes the topics under ``attach.create`` in the
plan. All clients of the run are in the rack ``attach.rack``; each broker is in the rack that its ``broker.rack`` names.
Links have the same names as on clusters that the harness launches, for example ``client_a-k1``.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from aftershock.errors import (
    AdminError,
    AftershockError,
    ClusterError,
    EvidenceError,
    FaultError,
    Log,
    UnsupportedError,
    WorkloadError,
)
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.targets.values import BrokerId
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.attach import inserted_proxy
from aftershock.harness.attach.broker_containers import refuse_strangers
from aftershock.harness.attach.broker_pods import Agents, AgentsHeartbeat, BrokerPod, agents_of, broker_pods
from aftershock.harness.attach.broker_pods import check as check_pods
from aftershock.harness.attach.broker_pods import find as find_pods
from aftershock.harness.attach.container_packets import ContainerPackets, remove_helpers
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import all_worker_names, group_names
from aftershock.harness.cluster.cluster import out_of_sync, refuse_unlike
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.node import ContainerUsage, KafkaNode
from aftershock.harness.cluster.proxies import Toxiproxy, WireProxy
from aftershock.harness.cluster.topology import Node
from aftershock.harness.kafka.admin import TIMEOUT, Admin, metadata_request, raise_for, still_lacking
from aftershock.harness.kafka.groups import groups, remove_members
from aftershock.harness.kafka.leader_history import Checkpoints
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.kafka.versions import lowered
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import FILE as JOURNAL
from aftershock.harness.safety.journal import framed
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.security import Security
from aftershock.workloads.load.logread import EndOffsets, Topic, end_offsets
from aftershock.workloads.load.security import SecuritySettings

DESCRIPTOR_FILE = "attached.json"
NO_RACK = "none"
_IN_SYNC_S = 30.0
_ENDS_S = 30.0
_START_S = 60.0
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class AttachmentDescriptor:
    """Content of ``attached.json``, which lists what a run may change on an attached cluster, to heal after a crash.

    ``attached.json`` contains the names of environment variables with secrets, but no secret. ``clients`` has the
    client ids of the run's clients, and ``created`` the ids of the topics that the run created, by topic name. ``over``
    is True if the run has removed its groups and topics.
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
        files = {
            name: str(Path(path).resolve())
            for name in ("ca", "certificate", "key")
            if (path := getattr(attach.security, name))
        }
        security = attach.security.model_copy(update=files)
        topics = tuple(topic["name"] for topic in timeline.topics)
        clients, groups = tuple(all_worker_names(timeline)), tuple(group_names(timeline))
        return cls(run_id, attach.model_copy(update={"security": security}), topics, clients, groups)

    def write(self, home: Path) -> None:
        document: dict[str, Any] = asdict(self) | {"attach": self.attach.model_dump(mode="json", exclude_defaults=True)}
        write_whole(home / DESCRIPTOR_FILE, json.dumps(document, indent=1) + "\n")


_KEPT = "fault-"


def kept_name(fault: str) -> str:
    """Return the name of a fault's lines among the kept texts, whose names have letters, digits and few signs."""
    return f"{_KEPT}{hashlib.sha256(fault.encode()).hexdigest()[:32]}"


def restore(texts: Mapping[str, str], parent: Path, run_id: str) -> Path | None:
    """Write a run directory from what a run kept beyond its machine, to be healed; None if it kept nothing."""
    if DESCRIPTOR_FILE not in texts:
        return None
    home = parent / run_id
    home.mkdir()
    (home / DESCRIPTOR_FILE).write_text(texts[DESCRIPTOR_FILE], encoding="utf-8")
    (home / "run.json").write_text(texts["run.json"], encoding="utf-8")
    lines = "".join(text for name, text in texts.items() if name.startswith(_KEPT))
    (home / JOURNAL).write_text(lines, encoding="utf-8")
    return home


def is_attached(home: Path) -> bool:
    return (home / DESCRIPTOR_FILE).is_file()


def read_descriptor(home: Path) -> AttachmentDescriptor:
    """Read ``attached.json``; raise EvidenceError if the file can't be read."""
    document = read_object(home / DESCRIPTOR_FILE)
    try:
        attach = Attach.model_validate(document["attach"])
        topics, clients, groups = (tuple(map(str, document[name])) for name in ("topics", "clients", "groups"))
        return AttachmentDescriptor(
            str(document["run_id"]), attach, topics, clients, groups, dict(document["created"]), bool(document["over"])
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise EvidenceError(
            f"{home / DESCRIPTOR_FILE}: not the description of an attached cluster; restore the file from a copy"
        ) from error


@dataclass(frozen=True)
class Broker:
    """A broker of an attached cluster; ``rack`` is the value of its setting ``broker.rack``."""

    id: BrokerId
    address: Address
    rack: str | None


@dataclass(frozen=True)
class ClusterDescription:
    cluster_id: str
    brokers: tuple[Broker, ...]


def describe_cluster(bootstrap: str, security: Security) -> ClusterDescription:
    """Describe the cluster over the first address in ``bootstrap`` that answers; raise ClusterError without answer.

    The only API that the broker must have is Metadata.
    """
    try:
        pairs = (item.rpartition(":") for item in bootstrap.split(","))
        addresses = [Address.checked(host, int(port)) for host, _, port in pairs]
    except ValueError as error:
        raise ClusterError(f"`attach.bootstrap` or `attach.admin` in the plan is invalid: {error}") from error
    failures = []
    for address in addresses:
        try:
            with Connection(address, _TIMEOUT_S, security) as connection:
                response: Any = connection.ask(lowered(metadata_request([]), connection.versions))
        except UnsupportedError as error:
            raise ClusterError(
                f"the cluster can't be described by the broker at {address}: {error}; attach a cluster whose brokers "
                "have such a version"
            ) from error
        except OSError as error:
            failures.append(f"{address}: {error}")
        else:
            brokers = [Broker(BrokerId(b.node_id), Address(b.host, b.port), b.rack) for b in response.brokers]
            return ClusterDescription(str(response.cluster_id), tuple(sorted(brokers, key=lambda broker: broker.id)))
    raise ClusterError(f"the attached cluster can't be reached: {'; '.join(failures)}")


def secured_by(security: SecuritySettings) -> Security:
    """Return the settings for connections, with the passwords and keys; raise ClusterError if one can't be read."""
    try:
        secured = security.resolved()
        _ = secured.tls  # read the files now, so that the error below can name them
    except WorkloadError as error:
        raise ClusterError(str(error)) from error
    except OSError as error:
        files = ", ".join(str(path) for path in (security.ca, security.certificate, security.key) if path)
        raise ClusterError(f"the attached cluster's certificates can't be used ({files}): {error}") from error
    return secured


class NamedProxies(Toxiproxy):
    """Client of the user's Toxiproxy at ``url``, limited to the proxies that the plan names under ``attach``.

    ``user_names`` maps each link to the user's name of its proxy. Raises FaultError for a proxy without a link.
    """

    def __init__(self, url: str, user_names: Mapping[str, str]) -> None:
        host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
        super().__init__(host, int(port))
        self.user_names = dict(user_names)

    def check(self) -> None:
        try:
            existing = super()._proxies()
        except FaultError as error:
            raise ClusterError(f"the Toxiproxy that the plan names under `attach` does not answer: {error}") from error
        for name in self.user_names.values():
            if name not in existing:
                proxies = ", ".join(sorted(existing)) or "none"
                raise ClusterError(f"your Toxiproxy at {self.url} has no proxy {name}; its proxies: {proxies}")
            if not existing[name]["enabled"]:
                raise ClusterError(
                    f"the proxy {name} of your Toxiproxy is disabled: enable the proxy, or remove it from "
                    "`attach.proxies` in the plan"
                )

    def _path(self, proxy: str) -> str:
        if proxy not in self.user_names:
            raise FaultError(f"the Toxiproxy proxy {proxy} is not among the proxies that the plan names under `attach`")
        return super()._path(self.user_names[proxy])

    def _proxies(self) -> dict[str, Any]:
        proxies = super()._proxies()
        return {link: proxies[name] for link, name in self.user_names.items() if name in proxies}


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class NamedNodes(dict[BrokerId, KafkaNode | BrokerPod]):
    """Brokers with their containers or pods; raises FaultError for a broker of which the plan names none."""

    def __missing__(self, broker: BrokerId) -> KafkaNode | BrokerPod:
        raise FaultError(f"the plan names no container or pod of broker {broker} under `attach`: add it there")


def link_name(attach: Attach, broker: int) -> str:
    return f"client_{attach.rack}-k{broker}"


class AttachedCluster:
    """A user's cluster to which a run is attached.

    The connection to Kafka is opened on first use, so that proxies can be healed while no broker is reachable. Methods
    raise ClusterError if a secret is missing or no broker answers.
    """

    voters: Sequence[int] = ()
    wire_proxy: WireProxy | None = None

    def __init__(self, descriptor: AttachmentDescriptor, home: Path) -> None:
        attach = descriptor.attach
        self.descriptor, self._home, self.run_id = descriptor, home, descriptor.run_id
        self._agents: Agents | None = None
        self._kept: dict[str, str] = {}  # the journal's lines of each fault in force
        self.security = SecuritySettings.model_validate(attach.security.model_dump())
        self.toxiproxy: NamedProxies | None = None
        self.proxies: Mapping[str, int] = attach.proxies
        url = attach.toxiproxy
        if attach.proxy and (inserted := inserted_proxy.find(self.run_id)):
            url, self.proxies = inserted.url, inserted_proxy.brokers_behind(inserted)
        if url:
            user_names = {link_name(attach, broker): name for name, broker in self.proxies.items()}
            self.toxiproxy = NamedProxies(url, user_names)

    @cached_property
    def secured(self) -> Security:
        """Settings for connections to the attached cluster, including passwords and keys."""
        return secured_by(self.security)

    @cached_property
    def admin(self) -> Admin:
        """Client for the administration of the attached cluster, over the plan's address ``attach.admin`` if given."""
        admin = self.descriptor.attach.admin
        if self.descriptor.attach.proxy and self.toxiproxy and admin is None:
            ways = self.toxiproxy.upstreams()  # past the proxies, which faults change
            names = {link_name(self.descriptor.attach, broker.id): broker.id for broker in self._description.brokers}
            addresses = {names[link]: Address(*_split(upstream)) for link, upstream in ways.items()}
            return Admin(addresses, self.secured)
        description = self._description if admin is None else describe_cluster(admin, self.secured)
        return Admin({broker.id: broker.address for broker in description.brokers}, self.secured)

    @cached_property
    def _description(self) -> ClusterDescription:
        return describe_cluster(self.descriptor.attach.bootstrap, self.secured)

    @cached_property
    def client_addresses(self) -> Mapping[BrokerId, Address]:
        return {broker.id: broker.address for broker in self._description.brokers}

    @cached_property
    def racks(self) -> Mapping[BrokerId, str]:
        """Rack of each broker, with the rack's name in the plan."""
        names = {kafka_rack: rack for rack, kafka_rack in self.descriptor.attach.racks.items()}
        return {broker.id: names.get(broker.rack or "", broker.rack or NO_RACK) for broker in self._description.brokers}

    @cached_property
    def kubernetes(self) -> Api:
        """Client of the Kubernetes cluster whose pods the plan names."""
        plan = self.descriptor.attach.kubernetes
        return Api(plan.context if plan else None)

    @cached_property
    def containers(self) -> Mapping[BrokerId, KafkaNode]:
        """Brokers whose containers the plan names; raise ClusterError for a container that the engine does not have.

        Kafka is not asked, so that the containers can be healed while no broker is reachable.
        """
        containers, nodes = self.descriptor.attach.containers, dict[BrokerId, KafkaNode]()
        if not containers:
            return nodes
        client = engine.connect()
        for broker, name in containers.items():
            with engine.docker_errors(ClusterError, f"find the container {name} of broker {broker}"):
                container = client.containers.get(name)
            node = Node(broker, NO_RACK, broker=True, controller=False)
            nodes[BrokerId(broker)] = KafkaNode(node, container)
        return nodes

    @cached_property
    def nodes(self) -> Mapping[BrokerId, KafkaNode | BrokerPod]:
        """Brokers whose containers or pods the plan names."""
        plan = self.descriptor.attach.kubernetes
        pods = broker_pods(plan, self.run_id, self.kubernetes) if plan else {}
        return NamedNodes({**self.containers, **pods})

    @cached_property
    def packets(self) -> ContainerPackets:
        """Packet rules in the containers of the plan; raise FaultError if the plan names none."""
        if not self.containers:
            raise FaultError("the plan names no container of a broker under `attach`, so no packet can be changed")
        return ContainerPackets(self.run_id, self.containers)

    def _check_nodes(self) -> None:
        """Raise ClusterError if a container or pod does not run, or a container runs another broker than planned."""
        for broker, node in self.containers.items():
            if (state := node.state()) != "running":
                name = node.container.name
                raise ClusterError(
                    f"the container {name} of broker {broker} is {state}; start it, and run the plan again"
                )
        if self.containers:
            containers = {broker: node.container for broker, node in self.containers.items()}
            refuse_strangers(engine.connect(), containers, self.client_addresses)
        if plan := self.descriptor.attach.kubernetes:
            find_pods(self.kubernetes, plan)
            check_pods([node for node in self.nodes.values() if isinstance(node, BrokerPod)], self.kubernetes, plan)

    def check(self) -> None:
        """Raise ClusterError if a broker, container or proxy of the plan is missing, or Kafka denies access."""
        attach = self.descriptor.attach
        for broker in (*self.proxies.values(), *attach.brokers, *attach.containers, *attach.pods):
            if broker not in self.client_addresses:
                brokers = ", ".join(map(str, self.client_addresses))
                raise ClusterError(f"the attached cluster has no broker {broker}; its brokers are {brokers}")
        self._check_nodes()
        if self.toxiproxy:
            self.toxiproxy.check()
        self.admin.topics()

    def api_versions(self) -> Mapping[Address, Versions]:
        """Return the API versions that each broker offers; raise ClusterError if a broker does not tell them."""
        versions = {}
        for address in self.admin.addresses.values():
            try:
                with Connection(address, _TIMEOUT_S, self.secured) as connection:
                    versions[address] = connection.versions
            except (OSError, UnsupportedError) as error:
                raise ClusterError(f"the broker at {address} does not tell its API versions: {error}") from error
        return versions

    def answers(self, broker: BrokerId) -> bool:
        """Return True if a broker answers a new connection at the address that clients use."""
        try:
            with Connection(self.client_addresses[broker], _TIMEOUT_S, self.secured):
                return True
        except (OSError, UnsupportedError):
            return False

    def versions(self) -> Mapping[str, str]:
        return {"toxiproxy": self.toxiproxy.version()} if self.toxiproxy else {}

    def close(self) -> None:
        if "admin" in vars(self):
            self.admin.close()
        if "kubernetes" in vars(self):
            self.kubernetes.close()

    @property
    def broker_racks(self) -> Mapping[int, str]:
        return {int(broker): rack for broker, rack in self.racks.items()}

    def bootstrap(self, rack: str | None, *, own_addresses: bool = False) -> str:  # noqa: ARG002 -- it has none
        attach = self.descriptor.attach
        if rack and attach.proxy:
            return ",".join(map(str, self.client_addresses.values()))  # those of the proxies
        return attach.bootstrap if rack else attach.admin or attach.bootstrap

    def kafka_rack(self, rack: str | None) -> str | None:
        return None if rack is None else self.descriptor.attach.racks.get(rack, rack)

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        return {}  # a user's Toxiproxy may run without counters, so only the clients count bytes

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        usages = {broker: node.usage() for broker, node in self.nodes.items()}
        return {broker: usage for broker, usage in usages.items() if usage}

    def metrics(self) -> Mapping[BrokerId, Mapping[str, float]]:
        return {}

    def request_cpu_us(self) -> Mapping[BrokerId, int]:
        return {}

    def metadata_log(self) -> bytes:
        return b""

    def epoch_checkpoints(self) -> Checkpoints:
        return {}

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """Create the topics under ``attach.create``, compare other topics with the plan, and wait for full ISRs."""
        existing, names = set(self.admin.topics()), [planned["name"] for planned in topics]
        for planned in topics:
            name, config = planned["name"], planned["config"]
            if name in self.descriptor.attach.create:
                if name in existing:
                    raise ClusterError(
                        f"the topic {name} exists already and was not created by this run: "
                        "remove it from `attach.create`"
                    )
                self.created(name, self.admin.create_topic(name, planned["partitions"], planned["replication"], config))
                continue
            if name not in existing:
                raise ClusterError(
                    f"the attached cluster has no topic {name}: create it, or name it under `attach.create`"
                )
            refuse_unlike(self.admin, planned)

        def missing_state() -> str:
            try:
                return out_of_sync(self.admin.partitions(names))
            except AdminError as error:
                return str(error)

        if missing := still_lacking(missing_state, _IN_SYNC_S):
            raise ClusterError(f"the topics of the plan are not in sync after {_IN_SYNC_S:.0f} s: {missing}")
        # a broker may not have the metadata of a new topic yet
        ids = {**topic_ids(self.admin), **self.descriptor.created}
        provided = {
            # without ids (before Kafka 2.8), the evidence identifies a topic by its name
            name: Topic(name, ids[name] or name, planned["partitions"])
            for name, planned in zip(names, topics, strict=True)
        }
        old = [topic for name, topic in provided.items() if name not in self.descriptor.created]
        return provided, end_offsets(self.bootstrap(None), old, _ENDS_S, self.secured) if old else {}

    def created(self, topic: str, topic_id: str) -> None:
        """Record in ``attached.json`` that the run created a topic and so must delete the topic."""
        self.descriptor = replace(self.descriptor, created={**self.descriptor.created, topic: topic_id})
        self.descriptor.write(self._home)
        self._keep_descriptor()

    def clear(self) -> Sequence[str]:
        """Remove the run's group members and helpers, and delete the topics that it created; return their names."""
        plan = self.descriptor.attach.kubernetes
        agents = agents_of(plan, self.run_id, self.kubernetes) if plan and plan.agent else None
        if agents:
            agents.remove()
        if self.descriptor.attach.containers:
            remove_helpers(engine.connect(), self.run_id)
        if self.descriptor.attach.changes_processes:
            # a broker that a heal has just started takes some seconds until it answers
            def missing_state() -> str:
                try:
                    describe_cluster(self.bootstrap(None), self.secured)
                except ClusterError as error:
                    return str(error)
                return ""

            still_lacking(missing_state, _START_S)
        for group in self.descriptor.groups:
            # killed clients would stay members for up to 45 s and delay the next run
            coordinator = self.admin.coordinator(group)
            if kind := groups(self.admin, coordinator).get(group):
                remove_members(self.admin, coordinator, group, kind, self.descriptor.clients)
        deleted = list[str]()
        if created := self.descriptor.created:
            # by id: a topic that another user created under the same name stays
            ids = {uuid.UUID(bytes=base64.urlsafe_b64decode(text + "==")): name for name, text in created.items()}
            states = tuple(DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids)
            for result in self.admin.ask_controller(DeleteTopicsRequest(topics=states, timeout=TIMEOUT)).responses:
                name = ids[result.topic_id]
                if result.error_code not in {ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition}:
                    raise_for(result.error_code, f"delete topic {name}", result.error_message)
                    deleted.append(name)
        if self.descriptor.attach.proxy:
            inserted_proxy.remove(engine.connect(), self.run_id)
        self.descriptor = replace(self.descriptor, created={}, over=True)
        self.descriptor.write(self._home)
        if agents:
            agents.forget()  # last, because another machine can repeat what failed before
        return tuple(deleted)

    def insert_proxy(self, log: Log) -> None:
        """Put a Toxiproxy of ours before the brokers; raise ClusterError if they advertise no free ports here."""
        attach = self.descriptor.attach
        ways = inserted_proxy.routes(
            attach.bootstrap, {int(broker): address for broker, address in self.client_addresses.items()}, self.secured
        )
        inserted_proxy.insert(self.run_id, ways, log)

    @contextmanager
    def agents(self) -> Iterator[None]:
        """Keep the agents beside the brokers' pods for a ``with`` block, if the plan permits them."""
        plan = self.descriptor.attach.kubernetes
        if plan is None or not plan.agent:
            yield
            return
        agents = agents_of(plan, self.run_id, self.kubernetes)
        pods = [pod for node in self.nodes.values() if isinstance(node, BrokerPod) and (pod := node.pod())]
        agents.start(pods, plan.container, ownership.labels_of(self.run_id, self._home, keep=False))
        heartbeat = AgentsHeartbeat(agents)
        try:
            agents.await_start()
            self._agents = agents
            self._keep_descriptor()
            yield
        finally:
            self._agents = None
            heartbeat.end()

    def _keep_descriptor(self) -> None:
        """Keep what a heal on another machine needs besides the journal: what the run may change, and its clock."""
        if self._agents:
            names = (DESCRIPTOR_FILE, "run.json")
            self._agents.keep({name: (self._home / name).read_text(encoding="utf-8") for name in names})

    def keep_line(self, line: Mapping[str, Any]) -> None:
        if self._agents is None or line["state"] == "witnessed":
            return  # a witness changes no undo, and there is one each second
        fault, before = line["fault"], "" if line["state"] == "intended" else self._kept.get(line["fault"], "")
        self._kept[fault] = before + framed(line).decode()
        over = line["state"] == "healed"
        try:
            self._agents.keep({kept_name(fault): None if over else self._kept[fault]})
        except AftershockError as error:
            if line["state"] == "intended":
                raise FaultError(f"the fault {fault} can't be kept for a heal from another machine: {error}") from error
        if over:
            self._kept.pop(fault, None)

    def exits(self) -> Sequence[str]:
        return [node.exit_of() for node in self.nodes.values() if node.state() == "exited"]

    def describe(self) -> dict[str, Any]:
        attach, security = self.descriptor.attach, self.security
        connection = (
            f"{security.protocol} {security.mechanism} as {security.user}" if security.mechanism else security.protocol
        )
        containers = {name: f"broker {broker}" for broker, name in attach.containers.items()}
        pods = {name: f"broker {broker}" for broker, name in attach.pods.items()}
        return {
            "bootstrap": {"admin": self.bootstrap(None), attach.rack: self.bootstrap(attach.rack)},
            "toxiproxy": self.toxiproxy and self.toxiproxy.url,
            "brokers": [
                {"id": broker, "rack": rack, "dialled": str(self.client_addresses[broker])}
                for broker, rack in self.racks.items()
            ],
            "attached": {
                "cluster id": self._description.cluster_id,
                "security": connection,
                "proxies": {name: f"broker {broker}" for name, broker in self.proxies.items()},
                "topics created": sorted(self.descriptor.created),
                **({"containers": containers} if containers else {}),
                **({"pods": pods} if pods else {}),
            },
        }
