"""Operations for faults on Kafka itself, over listeners that faults never touch, and on a run's client processes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, GroupMember, Heartbeat, Quorum, TopicPartition
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka import admin, groups, replicas, settings, transactions
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.harness.world.group_members import membership
from aftershock.harness.world.threads import delegate

_ADMIN = "_cluster.admin"
_CLIENTS = "_clients"


class KafkaWorld:
    """Administration of Kafka for faults, by the protocol `faults.runtime.world.Administered`."""

    _cluster: Cluster

    partitions = delegate(_ADMIN, Admin.partitions)
    reassign = delegate(_ADMIN, Admin.reassign)
    reassigning = delegate(_ADMIN, Admin.reassigning)
    elect_preferred = delegate(_ADMIN, Admin.elect_preferred)
    elect_unclean = delegate(_ADMIN, Admin.elect_unclean)
    config = delegate(_ADMIN, settings.settings)
    alter_config = delegate(_ADMIN, settings.change)
    create_topic = delegate(_ADMIN, settings.create_topic_on)
    topic_ids = delegate(_ADMIN, settings.topic_ids)
    add_partitions = delegate(_ADMIN, settings.add_partitions)
    log_ends = delegate(_ADMIN, replicas.log_ends)
    delete_records = delegate(_ADMIN, replicas.delete_records)
    close_fetch_session = delegate(_ADMIN, groups.close)
    fetch_session_is_open = delegate(_ADMIN, groups.is_open)
    coordinator = delegate(_ADMIN, Admin.coordinator)
    transaction_coordinator = delegate(_ADMIN, Admin.transaction_coordinator)
    fence_producer = delegate(_ADMIN, transactions.fence_producer)
    transaction_state = delegate(_ADMIN, transactions.transaction_state)
    transaction_states = delegate(_ADMIN, transactions.transaction_states)
    open_transactions = delegate(_ADMIN, transactions.open_transactions)
    write_abort_marker = delegate(_ADMIN, transactions.write_abort_marker)
    group_offsets = delegate(_ADMIN, groups.committed_offsets)
    delete_group_offsets = delegate(_ADMIN, groups.delete_offsets)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.to_thread(self._cluster.admin.reassign, dict.fromkeys(partitions))

    async def controller(self) -> BrokerId:
        return (await self.quorum()).controller

    async def quorum(self) -> Quorum:
        quorum = await asyncio.to_thread(self._describe_quorum)
        return Quorum(quorum.leader, quorum.epoch)

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        quorum = await asyncio.to_thread(self._describe_quorum)
        return {voter: quorum.ends[quorum.leader] - end for voter, end in quorum.ends.items()}

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._cluster.admin.delete_topics, [topic])

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        members = await asyncio.to_thread(self._cluster.admin.members, excluding)
        return frozenset(member.id for member in members if not member.fenced)

    def _describe_quorum(self) -> admin.Quorum:
        return settings.ask_voters(self._cluster.voter_addresses())


class ClientsWorld:
    """Operations of faults on client processes, by the protocol `faults.runtime.world.ClientControl`."""

    _cluster: Cluster
    _clients: ClientProcesses

    clients = delegate(_CLIENTS, ClientProcesses.members)
    kill_client = delegate(_CLIENTS, ClientProcesses.kill)
    start_client = delegate(_CLIENTS, ClientProcesses.release)
    leave_client = delegate(_CLIENTS, ClientProcesses.leave)
    pause_client = delegate(_CLIENTS, ClientProcesses.pause)
    resume_client = delegate(_CLIENTS, ClientProcesses.resume)
    stop_polling = delegate(_CLIENTS, ClientProcesses.stop_polling)
    resume_polling = delegate(_CLIENTS, ClientProcesses.resume_polling)
    connections = delegate(_CLIENTS, ClientProcesses.connections)
    disconnect_client = delegate(_CLIENTS, ClientProcesses.disconnect)
    fetch_sessions = delegate(_CLIENTS, ClientProcesses.fetch_sessions)

    async def last_heartbeat(self, worker: str) -> Heartbeat | None:
        beat = await asyncio.to_thread(self._clients.heartbeat, worker)
        return beat and Heartbeat(*beat)

    async def in_group(self, worker: str) -> bool | None:
        """True if a client process is a member of its consumer group.

        None if it has no group, or if it can't be told which member is the process of a service.
        """
        ids = await self.member_ids(worker)
        return None if ids is None else bool(ids)

    async def member_ids(self, worker: str) -> frozenset[str] | None:
        """Return the member ids of a client process in its group; None as for ``in_group``."""
        if await asyncio.to_thread(self._clients.group, worker) is None:
            return None
        members = await self.group_members(worker)
        owners = await asyncio.to_thread(self._clients.owners_of_members, worker)
        if owners is None:
            return frozenset(member.id for member in members if member.client == worker)
        return membership(worker, members, owners)

    async def evict_client(self, worker: str) -> frozenset[str]:
        """Remove a process's members from its group; return their ids. The group's coordinator forgets them at once."""
        group, ids = await asyncio.to_thread(self._clients.group, worker), await self.member_ids(worker)
        if group is None or not ids:
            raise FaultError(f"the client {worker} is a member of no group, or can't be told from other members")
        await asyncio.to_thread(groups.evict_members, self._cluster.admin, group, ids)
        return ids

    async def group_members(self, worker: str) -> Sequence[GroupMember]:
        """Return all members of the client's consumer group; empty for a client without a group."""
        group = await asyncio.to_thread(self._clients.group, worker)
        return () if group is None else await asyncio.to_thread(groups.members, self._cluster.admin, group)
