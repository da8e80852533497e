"""Groups of reference consumers on a real cluster: both protocols, dynamic and static members.

The groups run side by side, since most of the time is spent waiting for the session of a killed member to end.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster.cluster import Cluster
from aftershock.tests.contract.load import new_topic
from aftershock.tests.unit.workloads.kafka.consuming import Reader
from aftershock.tests.unit.workloads.kafka.grouping import Member, crash
from aftershock.tests.unit.workloads.kafka.producing import Writer

Launch = Callable[[ClusterPlan, Path], AbstractContextManager[Cluster]]

pytestmark = pytest.mark.engine

SESSION_MS, HEARTBEAT_MS = 6_000, 500
DEADLINE_S = 30
PARTITIONS, MEMBERS = 6, 3
#: the broker decides for KIP-848 groups, the client for classic groups, whose sessions Kafka limits to 6 s or more
BROKER = {
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}
CLASSIC = {
    "group.protocol": "classic",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "partition.assignment.strategy": "range",
}
KINDS: dict[str, dict[str, Any]] = {
    "consumer": {},
    "range": CLASSIC,
    "cooperative": CLASSIC | {"partition.assignment.strategy": "cooperative-sticky"},
    "static-consumer": {},
    "static-range": CLASSIC,
}


@pytest.fixture(scope="module")
def cluster(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with launch(ClusterPlan(config=BROKER), tmp_path_factory.mktemp("groups")) as cluster:
        yield cluster


class Group:
    """Members that poll in tasks of their own, and a producer for their topic."""

    def __init__(self, bootstrap: str, topic: str, settings: dict[str, Any], *, is_static: bool) -> None:
        self.topic, self.members = topic, list[Member]()
        self._bootstrap, self._settings, self._is_static = bootstrap, settings, is_static
        self._writer = Writer(bootstrap, topic)
        self._polls: dict[Member, asyncio.Task[None]] = {}
        self._gone: list[Member] = []

    async def start(self) -> None:
        await self._writer.producer.start([self.topic])

    async def join(self, instance: int) -> Member:
        """Start a member; a static one has the number of its instance in its id."""
        own = {"group.instance.id": f"{self.topic}-{instance}"} if self._is_static else {}
        plain = {"bootstrap.servers": self._bootstrap, "group.id": self.topic, "auto.offset.reset": "earliest"}
        reader = Reader(plain | {"auto.commit.interval.ms": 500} | self._settings | own)
        joining = Member(reader)
        await reader.consumer.start([self.topic])
        await reader.consumer.subscribe([self.topic], joining.on_assigned, joining.on_revoked, joining.on_lost)
        self.members.append(joining)
        for one in self.members:  # none may get a partition that another one has
            one.others = [other for other in self.members if other is not one]
        self._polls[joining] = asyncio.create_task(self._poll(joining))
        return joining

    async def _poll(self, one: Member) -> None:
        while True:
            await one.reader.poll(100)

    async def _remove(self, one: Member) -> None:
        poll = self._polls.pop(one)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        self._gone.append(one)
        self.members.remove(one)

    async def leave(self, one: Member) -> None:
        await self._remove(one)
        await one.reader.consumer.close(5_000)
        assert set() == one.held

    async def kill(self, one: Member) -> None:
        """Stop a member as SIGKILL does; others may have its partitions from then on."""
        await self._remove(one)
        await crash(one)
        one.held.clear()

    async def until(self, reached: Callable[[], bool], reason: str) -> None:
        """Wait until the condition holds; raise the error of a member that has failed."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not reached():
                    for poll in self._polls.values():
                        if poll.done():
                            poll.result()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            told = {one.reader.consumer.member_id: one.reader.told[-10:] for one in self.members}
            raise AssertionError(f"{self.topic}: {reason}; {[one.calls for one in self.members]}; {told}") from None

    async def until_shared(self) -> None:
        """Wait until the members have all partitions, and as equal shares as possible."""
        shares = sorted(
            PARTITIONS // len(self.members) + (place < PARTITIONS % len(self.members))
            for place in range(len(self.members))
        )
        await self.until(
            lambda: shares == sorted(len(one.held) for one in self.members), f"the shares are not {shares}"
        )

    async def write_and_read(self, count: int) -> None:
        """Write records to all partitions, and wait until the members have read everything that was ever written."""
        for number in range(count):
            self._writer.offer(partition=number % PARTITIONS)
        await self.until(lambda: self._writer.taken == len(self._writer.outcomes), "not all records were written")
        assert {0} == {delivery.error for delivery in self._writer.deliveries}
        written = {
            (delivery.partition, delivery.base_offset + place)
            for delivery in self._writer.deliveries
            for place in range(len(delivery.tokens))
        }
        await self.until(lambda: written <= self.read, f"{len(written - self.read)} records were not read")

    @property
    def read(self) -> set[tuple[int, int]]:
        everyone = [*self.members, *self._gone]
        return {(partition, offset) for one in everyone for _, partition, offset in one.reader.taken}

    async def close(self) -> None:
        for one in list(self.members):
            await self._remove(one)
            await one.reader.consumer.close(5_000)
        await self._writer.producer.close(5_000)


async def play(group: Group, *, is_static: bool) -> None:
    """Three members join, one leaves (a static one comes back), one is killed; all records are read throughout."""
    await group.start()
    for instance in range(MEMBERS):
        await group.join(instance)
    await group.until_shared()
    await group.write_and_read(60)
    first, second, third = group.members
    held, calls = set(third.held), [list(first.calls), list(second.calls)]
    await group.leave(third)
    if is_static:
        back = await group.join(2)
        await group.until(lambda: held == back.held, "the static member did not get its partitions back")
        assert calls == [first.calls, second.calls]
    await group.until_shared()
    await group.write_and_read(60)
    await group.kill(second)
    await group.until_shared()
    await group.write_and_read(60)
    for one in group.members:
        assert not one.reader.events("partitions_lost"), f"{group.topic}: {one.reader.told}"
        assert "lost" not in [call for call, _ in one.calls]


async def test_groups_share_their_partitions_and_read_everything(cluster: Cluster) -> None:
    """No partition is ever with two members, whoever joins, leaves or is killed, and no record is left out."""
    groups = []
    for kind, settings in KINDS.items():
        topic = await asyncio.to_thread(new_topic, cluster, f"groups-{kind}", PARTITIONS)
        groups.append(Group(cluster.bootstrap("a"), topic.name, settings, is_static=kind.startswith("static")))
    try:
        async with asyncio.TaskGroup() as playing:
            for group, kind in zip(groups, KINDS, strict=True):
                playing.create_task(play(group, is_static=kind.startswith("static")))
    finally:
        await asyncio.gather(*(group.close() for group in groups))
