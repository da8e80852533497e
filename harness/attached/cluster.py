"""A cluster that is attached: reached by its bootstrap address, described by its own brokers.

It has no nodes, networks or disks here, and what of it may be touched its card says. Its clients stand in one place;
brokers stand in the racks that they tell (``broker.rack``), under the plan's names for them.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from aftershock.errors import AdminError, ClusterError, WorkloadError
from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Admin
from aftershock.harness.attached import topics as attached_topics
from aftershock.harness.attached.brokers import Told, brokers
from aftershock.harness.attached.card import Card
from aftershock.harness.attached.proxies import NamedProxies
from aftershock.harness.cluster import out_of_sync
from aftershock.harness.kafka.topics import topic_ids
from aftershock.harness.node import Used
from aftershock.harness.pool.groups import expel, groups
from aftershock.harness.waiting import still_lacking
from aftershock.harness.wire_proxy import WireProxy
from aftershock.workloads.logread import EndOffsets, Topic, end_offsets
from aftershock.workloads.security import Secured
from aftershock.workloads.wire.connection import Address
from aftershock.workloads.wire.security import Security

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
                raise attached_topics.taken(name)
            self.created(
                name, self.admin.create_topic(name, planned["partitions"], planned["replication"], planned["config"])
            )
        elif name not in there:
            raise attached_topics.absent(name)
        else:
            attached_topics.check(self.admin, planned, self.admin.partitions([name]))

    def created(self, topic: str, topic_id: str) -> None:
        """Note down, on the disk too, that this topic is ours to delete."""
        self.card = self.card.having(topic, topic_id)
        self.card.write(self._home)

    def clear(self) -> Sequence[str]:
        """Leave it as it was: without our members, or topics that the run created, whose names it gives. Repeatable."""
        self._dismiss()
        created = self.card.created
        if created:
            attached_topics.delete_by_id(self.admin, created)
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
