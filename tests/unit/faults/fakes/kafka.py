"""Kafka's administration in memory: settings, quotas, records, topics, fetch sessions and quorum leader.

It refuses what Kafka refuses: thread pools that more than double or halve, deletion of records beyond the high
watermark, and creation of existing topics. A throttled move lasts until its throttle is removed or the move is
cancelled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, PartitionState, Quorum, Resource, Setting, TopicPartition

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


SESSION_TIMEOUT_US = 3_000_000
BY_DEFAULT: Mapping[Resource, Mapping[str, str | None]] = {
    "broker": {
        "num.io.threads": "8",
        "num.network.threads": "3",
        "leader.replication.throttled.rate": None,
        "follower.replication.throttled.rate": None,
        "auto.create.topics.enable": "false",
        "message.max.bytes": "1048588",
    },
    "topic": {
        "min.insync.replicas": "1",
        "retention.ms": "604800000",
        "cleanup.policy": "delete",
        "flush.messages": "9223372036854775807",
        "max.message.bytes": "1048588",
        "leader.replication.throttled.replicas": "",
        "follower.replication.throttled.replicas": "",
    },
    "client": {},
}
ID, NEW_ID = "4kQ9V8pQS0a1", "zH3uVb1mTk2c"


class FakeKafka:
    """Fake of `faults.runtime.world.Administered`; tests may change ``dynamic``, ``logs`` and ``sessions`` from
    outside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dynamic: dict[tuple[Resource, str], dict[str, str]] = {("topic", "orders"): {"min.insync.replicas": "2"}}
        self.logs: dict[TopicPartition, tuple[int, int]] = {("orders", p): (0, 100) for p in range(6)}
        self.ids = {"orders": ID}
        self.sessions: dict[BrokerId, set[int]] = {BrokerId(1): {11}, BrokerId(2): {22}, BrokerId(3): set()}
        self.told_sessions: dict[str, dict[BrokerId, int]] = {}
        self.epoch = 1
        self.deposed = True  # True if the loss of the controller leads to an election
        self.held_moves: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        self.cut_since_us: dict[BrokerId, int] = {}

    async def elect_unclean(self: "FakeWorld", partitions: Iterable[TopicPartition]) -> None:
        await self._called("elect_unclean", list(partitions))
        for where in partitions:
            state = self._partitions[where]
            live = [replica for replica in state.replicas if self._serves(replica)]
            if state.leader is None and live:
                self._partitions[where] = replace(state, isr=(live[0],))
                self._lead(where, live[0])

    async def quorum(self: "FakeWorld") -> Quorum:
        await self._called("quorum", None)
        if self.states[self.active_controller] != "running" and self.deposed:
            others = [broker for broker in self.states if self.states[broker] == "running"]
            if not others:
                raise AdminError("no controller answers", "NETWORK_EXCEPTION")
            self.active_controller = others[0]
            self.epoch += 1
        return Quorum(self.active_controller, self.epoch)

    async def quorum_lag(self: "FakeWorld") -> Mapping[BrokerId, int]:
        await self._called("quorum_lag", None)
        return {broker: 0 if self._serves(broker) else 10 for broker in self.states}

    async def config(self: "FakeWorld", of: Resource, name: str) -> Mapping[str, Setting]:
        await self._called("config", (of, name))
        own = self.dynamic.get((of, name), {})
        if of == "client":
            return {key: Setting(value, value) for key, value in own.items()}
        return {
            key: Setting(own.get(key, value), own.get(key), key == "auto.create.topics.enable")
            for key, value in BY_DEFAULT[of].items()
        }

    async def alter_config(self: "FakeWorld", of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        await self._called("alter_config", (of, name, dict(changes)))
        own = self.dynamic.setdefault((of, name), {})
        for key, value in changes.items():
            self._refuse_step(key, own.get(key), value)
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value
        self._let_go()

    async def create_topic(
        self: "FakeWorld", topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        await self._called("create_topic", topic)
        if topic in self.ids:
            raise AdminError(f"topic {topic} exists", "TOPIC_ALREADY_EXISTS")
        self.ids[topic] = NEW_ID
        self.dynamic["topic", topic] = dict(config)
        for partition, ids in replicas.items():
            self._partitions[topic, partition] = PartitionState(topic, partition, ids[0], 0, ids, ids)
            self.logs[topic, partition] = (0, 0)
        return NEW_ID

    async def delete_topic(self: "FakeWorld", topic: str) -> None:
        await self._called("delete_topic", topic)
        self.ids.pop(topic, None)
        self.dynamic.pop(("topic", topic), None)
        for where in [where for where in self._partitions if where[0] == topic]:
            del self._partitions[where], self.logs[where]

    async def topic_ids(self: "FakeWorld") -> Mapping[str, str]:
        await self._called("topic_ids", None)
        return dict(self.ids)

    async def add_partitions(self: "FakeWorld", topic: str, partitions: int) -> None:
        await self._called("add_partitions", (topic, partitions))
        ids = self._partitions[topic, 0].replicas
        for partition in range(len([where for where in self._partitions if where[0] == topic]), partitions):
            self._partitions[topic, partition] = PartitionState(topic, partition, ids[0], 0, ids, ids)
            self.logs[topic, partition] = (0, 0)

    async def log_ends(self: "FakeWorld", topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        await self._called("log_ends", topic)
        return {
            where: (start, end + self.flooded(where)) for where, (start, end) in self.logs.items() if where[0] == topic
        }

    async def delete_records(self: "FakeWorld", before: Mapping[TopicPartition, int]) -> None:
        await self._called("delete_records", dict(before))
        for where, offset in before.items():
            start, end = self.logs[where]
            if offset > end:
                raise AdminError(f"{where} has no offset {offset}", "OFFSET_OUT_OF_RANGE")
            self.logs[where] = (max(start, offset), end)

    async def close_fetch_session(self: "FakeWorld", broker: BrokerId, session: int) -> int:
        await self._called("close_fetch_session", (broker, session))
        self.sessions[broker].discard(session)
        return 0

    async def fetch_session_is_open(self: "FakeWorld", broker: BrokerId, session: int) -> bool:
        await self._called("fetch_session_is_open", (broker, session))
        return session in self.sessions[broker]

    async def fetch_sessions(self: "FakeWorld", worker: str) -> Mapping[BrokerId, int]:
        await self._called("fetch_sessions", worker)
        return self.told_sessions.get(worker, {})

    def fenced(self: "FakeWorld") -> set[BrokerId]:
        """Return the brokers whose controller links have been cut for at least a session timeout."""
        for broker, rack in self.racks().items():
            ways = [link.proxy for link in self.links() if link.channel == "controller" and link.source_rack == rack]
            if ways and all(self.proxies[way] for way in ways):
                self.cut_since_us.setdefault(broker, self.clock.now_us())
            else:
                self.cut_since_us.pop(broker, None)
        due = self.clock.now_us() - SESSION_TIMEOUT_US
        return {broker for broker, since_us in self.cut_since_us.items() if since_us <= due}

    def hold_back(self: "FakeWorld", assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> bool:
        """Return whether moves to new replicas wait for a throttle; such moves are in flight from now on."""
        throttled = any("leader.replication.throttled.rate" in own for own in self.dynamic.values())
        data = {w: r for w, r in assignment.items() if {*r} - {*self._partitions[w].replicas}}
        if throttled and data:
            self.held_moves |= data
            self._moving |= data.keys()
        return bool(throttled and data)

    def _let_go(self: "FakeWorld") -> None:
        if self.held_moves and not any("leader.replication.throttled.rate" in own for own in self.dynamic.values()):
            for where, replicas in self.held_moves.items():
                self._place(where, replicas)
            self._moving -= self.held_moves.keys()
            self.held_moves = {}

    def _refuse_step(self: "FakeWorld", key: str, own: str | None, value: str | None) -> None:
        by_default = BY_DEFAULT["broker"].get(key)
        if "threads" not in key or by_default is None:
            return
        now, wanted = int(own or by_default), int(value or by_default)
        if not now // 2 <= wanted <= now * 2:
            raise AdminError(f"{key}: {now} can't become {wanted} at once", "INVALID_REQUEST")
