"""What a run on an attached cluster leaves for whoever must heal after its death: no secrets, only their variables.

Written before anything is touched, and again with every topic that the run creates.

The brokers of a cluster that is attached, as one of them tells: where each is dialled, and where it stands.

The topics of a plan on an attached cluster: used as they are, or created and deleted again where the plan says so.

A topic is deleted by its id: one that somebody made in its place meanwhile has another id, and stays.

The proxies of a user's Toxiproxy that a plan names: the only ones of it that exist for us.

They are called here as the links of a launched cluster are (``client_a-k1``), so that journal, undo and report read
alike; only what is sent to Toxiproxy has the user's names.

A cluster that is attached: reached by its bootstrap address, described by its own brokers.

It has no nodes, networks or disks here, and what of it may be touched its card says. Its clients stand in one place;
brokers stand in the racks that they tell (``broker.rack``), under the plan's names for them.
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
from aftershock.harness.cluster.node import Used
from aftershock.harness.cluster.proxies import Toxiproxy, WireProxy
from aftershock.harness.kafka.admin import TIMEOUT, TOPIC, Admin, raise_for, still_lacking
from aftershock.harness.kafka.groups import expel, groups
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.run.assignments import group_names, worker_names
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.workloads.adapters.security import Secured
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.security import Security
from aftershock.workloads.load.logread import EndOffsets, Topic, end_offsets

CARD = "attached.json"
_FILES = ("ca", "certificate", "key")


@dataclass(frozen=True)
class Card:
    """``attach`` with absolute paths; ``topics``: the plan's; ``clients``: our workers, which are their client ids.

    ``groups``: theirs. ``created``: ids of the topics that are ours, by name. ``over``: the run left in good order.
    """

    run_id: str
    attach: Attach
    topics: tuple[str, ...]
    clients: tuple[str, ...]
    groups: tuple[str, ...] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    over: bool = False

    @classmethod
    def of(cls, run_id: str, attach: Attach, timeline: Timeline) -> "Card":
        """Of a run that begins: whoever heals it may stand in another folder."""
        files = {name: str(Path(path).resolve()) for name in _FILES if (path := getattr(attach.security, name))}
        security = attach.security.model_copy(update=files)
        topics = tuple(topic["name"] for topic in timeline.topics)
        clients, groups = tuple(worker_names(timeline)), tuple(group_names(timeline))
        return cls(run_id, attach.model_copy(update={"security": security}), topics, clients, groups)

    def having(self, topic: str, topic_id: str) -> "Card":
        """With one more topic of ours, or a new one of its name."""
        return replace(self, created={**self.created, topic: topic_id})

    def closed(self) -> "Card":
        """With nothing of ours left."""
        return replace(self, created={}, over=True)

    def write(self, home: Path) -> None:
        """Into the run directory, whole or not at all."""
        document: dict[str, Any] = asdict(self) | {"attach": self.attach.model_dump(mode="json", exclude_defaults=True)}
        write_whole(home / CARD, json.dumps(document, indent=1) + "\n")


def is_attached(home: Path) -> bool:
    """Whether the run of this directory stands on an attached cluster."""
    return (home / CARD).is_file()


def read_card(home: Path) -> Card:
    """EvidenceError where it can't be read."""
    found = read_object(home / CARD)
    try:
        attach = Attach.model_validate(found["attach"])
        topics, clients, groups = (tuple(map(str, found[name])) for name in ("topics", "clients", "groups"))
        return Card(str(found["run_id"]), attach, topics, clients, groups, dict(found["created"]), bool(found["over"]))
    except (KeyError, TypeError, ValidationError) as error:
        raise EvidenceError(f"{home / CARD}: this is no card of an attached cluster; restore the file") from error


_TIMEOUT_S = 10.0
_DESCRIBE_CLUSTER, _VERSION = 60, 2
_VERSIONS = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
_DESCRIBE = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=False)


@dataclass(frozen=True)
class Broker:
    """A broker as the listener that was asked has it; ``rack`` is its own ``broker.rack``."""

    id: BrokerId
    address: Address
    rack: str | None


@dataclass(frozen=True)
class Told:
    """A cluster by its id, and its brokers in order of theirs."""

    cluster_id: str
    brokers: tuple[Broker, ...]


def brokers(bootstrap: str, security: Security) -> Told:
    """What the first of ``bootstrap`` that answers tells.

    Raises:
        ClusterError: nobody does, or the cluster is too old; with what each had to say.
    """
    failures = []
    for address in addresses(bootstrap):
        try:
            with Connection(address, _TIMEOUT_S, security) as connection:
                _check(connection, address)
                answer: Any = connection.ask(_DESCRIBE)
        except OSError as error:
            failures.append(f"{address}: {error}")
        else:
            found = (Broker(BrokerId(b.broker_id), Address(b.host, b.port), b.rack) for b in answer.brokers)
            return Told(str(answer.cluster_id), tuple(sorted(found, key=lambda broker: broker.id)))
    raise ClusterError(f"the attached cluster can't be reached: {'; '.join(failures)}")


def addresses(bootstrap: str) -> Sequence[Address]:
    """Of ``host:port,host:port``. ClusterError for what can't be dialled."""
    split = (item.rpartition(":") for item in bootstrap.split(","))
    try:
        return [Address.checked(host, int(port)) for host, _, port in split]
    except ValueError as error:
        raise ClusterError(f"`bootstrap` of the attached cluster: {error}") from error


def _check(connection: Connection, address: Address) -> None:
    answer: Any = connection.ask(_VERSIONS)
    highest = next((each.max_version for each in answer.api_keys if each.api_key == _DESCRIBE_CLUSTER), -1)
    if highest < _VERSION:
        raise ClusterError(f"the broker at {address} is older than Kafka 4.0, which is the oldest that can be attached")


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


class NamedProxies:
    """See `Toxiproxy`, whose words these are, for the named proxies. FaultError for any other."""

    def __init__(self, server: Toxiproxy, theirs: Mapping[str, str]) -> None:
        self.server = server
        self._theirs = dict(theirs)
        self._ours = {name: link for link, name in theirs.items()}

    @classmethod
    def of(cls, attach: Attach) -> "NamedProxies | None":
        """None where the plan names none."""
        if attach.toxiproxy is None:
            return None
        host, _, port = attach.toxiproxy.removeprefix("http://").rstrip("/").rpartition(":")
        theirs = {link_name(attach, broker): name for name, broker in attach.proxies.items()}
        return cls(Toxiproxy(host, int(port)), theirs)

    def check(self) -> None:
        """ClusterError if one isn't there, or lets nothing through."""
        try:
            there, disabled = self.server.upstreams(), self.server.disabled()
        except FaultError as error:
            raise ClusterError(f"your Toxiproxy can't be asked: {error}") from error
        for name in self._ours:
            if name not in there:
                known = ", ".join(sorted(there)) or "none"
                raise ClusterError(f"your Toxiproxy at {self.server.url} has no proxy {name}; it has: {known}")
            if name in disabled:
                raise ClusterError(f"your proxy {name} is disabled: enable it, or take it out of `proxies`")

    @property
    def url(self) -> str:
        """Where the server's API is."""
        return self.server.url

    @property
    def theirs(self) -> Mapping[str, str]:
        """The user's names by ours."""
        return self._theirs

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:  # noqa: D102
        self.server.add_toxic(self._name(proxy), toxic)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:  # noqa: D102
        self.server.update_toxic(self._name(proxy), toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:  # noqa: D102
        self.server.remove_toxic(self._name(proxy), name)

    def enable(self, proxy: str, *, enabled: bool) -> None:  # noqa: D102
        self.server.enable(self._name(proxy), enabled=enabled)

    def redirect(self, proxy: str, upstream: str) -> None:  # noqa: D102
        self.server.redirect(self._name(proxy), upstream)

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:  # noqa: D102
        return {self._ours[name]: toxics for name, toxics in self.server.toxics().items() if name in self._ours}

    def disabled(self) -> frozenset[str]:  # noqa: D102
        return frozenset(self._ours[name] for name in self.server.disabled() if name in self._ours)

    def upstreams(self) -> dict[str, str]:  # noqa: D102
        return {self._ours[name]: upstream for name, upstream in self.server.upstreams().items() if name in self._ours}

    def _name(self, proxy: str) -> str:
        if proxy not in self._theirs:
            raise FaultError(f"{proxy} is none of the proxies that the plan names under `attach`: it is left alone")
        return self._theirs[proxy]


def link_name(attach: Attach, broker: int) -> str:
    """What we call the link from the clients to a broker, as `racks` calls those of a launched cluster."""
    return f"client_{attach.rack}-k{broker}"


NO_RACK = "none"
_IN_SYNC_S = 30.0
_ENDS_S = 30.0


class AttachedCluster:
    """See `target.Target`. Reached when first asked, so that its proxies can be healed where no broker can be dialled.

    Attributes:
        card: what of it may be touched, and what the run has created.
        toxiproxy: the proxies that the plan names, None without any.

    Raises:
        ClusterError: a secret is missing, nobody answers, or something named isn't there.
    """

    voters: Sequence[int] = ()
    wire_proxy: WireProxy | None = None

    def __init__(self, card: Card, home: Path) -> None:
        attach = card.attach
        self.card, self._home, self.run_id = card, home, card.run_id
        self.security = Secured.model_validate(attach.security.model_dump())
        self.toxiproxy = NamedProxies.of(attach)

    @cached_property
    def secured(self) -> Security:
        """How to connect, secrets included."""
        return _resolved(self.security)

    @cached_property
    def admin(self) -> Admin:
        """Its administration, through ``attach.admin`` where the plan has one."""
        told = self._told if self.card.attach.admin is None else brokers(self.card.attach.admin, self.secured)
        return Admin({broker.id: broker.address for broker in told.brokers}, self.secured)

    @cached_property
    def _told(self) -> Told:
        return brokers(self.card.attach.bootstrap, self.secured)

    @cached_property
    def dialled(self) -> Mapping[BrokerId, Address]:
        """Where clients dial each broker: there its proxy listens, if it has one."""
        return {broker.id: broker.address for broker in self._told.brokers}

    @cached_property
    def racks(self) -> Mapping[BrokerId, str]:
        """The rack of each broker, in the plan's words."""
        names = {theirs: ours for ours, theirs in self.card.attach.racks.items()}
        return {broker.id: names.get(broker.rack or "", broker.rack or NO_RACK) for broker in self._told.brokers}

    def check(self) -> None:
        """Raise ClusterError unless all that the plan names is there and lets us in."""
        attach = self.card.attach
        for broker in (*attach.proxies.values(), *attach.brokers):
            if broker not in self.dialled:
                known = ", ".join(map(str, self.dialled))
                raise ClusterError(f"the attached cluster has no broker {broker}; its brokers are {known}")
        if self.toxiproxy:
            self.toxiproxy.check()
        self.admin.topics()

    def versions(self) -> Mapping[str, str]:
        """What is known of the versions that run there."""
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
        """See `target.Target`; the clients all stand in one place."""
        attach = self.card.attach
        return attach.bootstrap if rack else attach.admin or attach.bootstrap

    def kafka_rack(self, rack: str | None) -> str | None:
        """See `target.Target`."""
        return None if rack is None else self.card.attach.racks.get(rack, rack)

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Nothing: a user's Toxiproxy need not count, and the clients do."""
        return {}

    def used(self) -> Mapping[BrokerId, Used]:
        """Nothing: its machines are not ours to look into."""
        return {}

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """See `target.Target`: those that are there are checked against the plan, the others created if it says so."""
        there = set(self.admin.topics())
        for planned in topics:
            self._there(planned, there)
        names = [planned["name"] for planned in topics]
        self._await_in_sync(names)
        ids = {**topic_ids(self.admin), **self.card.created}  # a broker may not have heard of a new one yet
        found = {
            name: Topic(name, ids[name], planned["partitions"]) for name, planned in zip(names, topics, strict=True)
        }
        old = [topic for name, topic in found.items() if name not in self.card.created]
        return found, end_offsets(self.bootstrap(None), old, _ENDS_S, self.secured) if old else {}

    def _there(self, planned: Mapping[str, Any], there: set[str]) -> None:
        name = planned["name"]
        if name in self.card.attach.create:
            if name in there:
                raise taken(name)
            self.created(
                name, self.admin.create_topic(name, planned["partitions"], planned["replication"], planned["config"])
            )
        elif name not in there:
            raise absent(name)
        else:
            check(self.admin, planned, self.admin.partitions([name]))

    def created(self, topic: str, topic_id: str) -> None:
        """Note down, on the disk too, that this topic is ours to delete."""
        self.card = self.card.having(topic, topic_id)
        self.card.write(self._home)

    def clear(self) -> Sequence[str]:
        """Leave it as it was: without our members, or topics that the run created, whose names it gives. Repeatable."""
        self._dismiss()
        created = self.card.created
        if created:
            delete_by_id(self.admin, created)
        self.card = self.card.closed()
        self.card.write(self._home)
        return tuple(created)

    def _dismiss(self) -> None:
        """Make clients that were killed leave their groups: they stay for 45 s, and who comes next would wait."""
        for group in self.card.groups:
            coordinator = self.admin.coordinator(group)
            if kind := groups(self.admin, coordinator).get(group):
                expel(self.admin, coordinator, group, kind, self.card.clients)

    def whereabouts(self) -> dict[str, Any]:
        """See `target.Target`."""
        attach, security = self.card.attach, self.security
        how = (
            f"{security.protocol} {security.mechanism} as {security.user}" if security.mechanism else security.protocol
        )
        return {
            "bootstrap": {"admin": self.bootstrap(None), attach.rack: attach.bootstrap},
            "toxiproxy": self.toxiproxy and self.toxiproxy.url,
            "brokers": [
                {"id": broker, "rack": rack, "dialled": str(self.dialled[broker])}
                for broker, rack in self.racks.items()
            ],
            "attached": {
                "cluster id": self._told.cluster_id,
                "security": how,
                "proxies": {name: f"broker {broker}" for name, broker in attach.proxies.items()},
                "topics created": sorted(self.card.created),
            },
        }

    def _await_in_sync(self, topics: Sequence[str]) -> None:
        def lacking() -> str:
            try:
                return out_of_sync(self.admin.partitions(topics))
            except AdminError as error:
                return str(error)

        if missing := still_lacking(lacking, _IN_SYNC_S):
            raise ClusterError(f"the topics of the plan are not in sync after {_IN_SYNC_S:.0f} s: {missing}")


def _resolved(security: Secured) -> Security:
    try:
        secured = security.resolved()
        _ = secured.tls  # files that can't be read or used are told now, by their names
    except WorkloadError as error:
        raise ClusterError(str(error)) from error
    except OSError as error:
        files = ", ".join(str(path) for path in (security.ca, security.certificate, security.key) if path)
        raise ClusterError(f"the attached cluster's certificates can't be used ({files}): {error}") from error
    return secured
