"""A consumer under test against a scripted cluster, with its records and events."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.consumer.consumer import Consumer, Start
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch_builder import build

#: Short times, so that no test waits for a default.
QUICK = {"fetch.max.wait.ms": 50, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 5}
DEADLINE_S = 15


def append(cluster: ScriptedBroker, topic: str, partition: int, count: int = 1) -> None:
    """Append ``count`` records, one in each batch."""
    for _ in range(count):
        cluster.append(topic, partition, build([b"v"], timestamps_ms=[0]))


class Reader:
    """A consumer, and all returned records as (topic, partition, offset)."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.taken: list[tuple[str, int, int]] = []
        self.brokers: list[int] = []
        self._at = 0
        self.consumer = Consumer(parse(ConsumerSettings, settings), on_event=self._tell)

    def _tell(self, event: str, **details: object) -> None:
        self.told.append((event, details))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [details for event, details in self.told if event == name]

    async def poll(self, timeout_ms: float = 100) -> None:
        for each in await self.consumer.poll(timeout_ms):
            self.brokers.append(each.broker_id)
            self.taken += [
                (each.topic, each.partition, record.offset)
                for record in each.batch.records
                if record.offset >= each.first_offset
            ]

    async def until(self, reached: Callable[[], bool], reason: str) -> None:
        """Poll until the condition holds."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not reached():
                    await self.poll()
        except TimeoutError:
            raise AssertionError(f"{reason}; told {self.told[-20:]}, taken {self.taken[-10:]}") from None

    async def take(self, count: int) -> list[tuple[str, int, int]]:
        """Return the next ``count`` records; further records are left for the next call."""
        begin, self._at = self._at, self._at + count
        await self.until(lambda: len(self.taken) >= self._at, f"fewer than {count} records came")
        return self.taken[begin : self._at]


_numbers = itertools.count()


def fresh_topic(cluster: ScriptedBroker, partitions: int = 1, *, leaders: Sequence[int] | None = None) -> str:
    """Create a topic that no other test has."""
    name = f"t{next(_numbers)}"
    cluster.create(name, partitions, leaders=leaders)
    return name


@asynccontextmanager
async def reading(
    cluster: ScriptedBroker,
    topic: str,
    starts: Mapping[int, Start] | None,
    *,
    topics: Sequence[str] | None = None,
    **changes: object,
) -> AsyncIterator[Reader]:
    """Yield a started consumer with the partitions in ``starts``; settings have ``_`` for ``.``.

    Its client id is the topic's name, by which the journal knows it. It knows ``topics``, by default the topic.
    """
    reader = Reader({"bootstrap.servers": cluster.bootstrap, "client.id": topic} | QUICK | changes)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await reader.consumer.start([topic] if topics is None else topics)
        if starts is not None:
            reader.consumer.assign({TopicPartition(topic, number): start for number, start in starts.items()})
        yield reader
    finally:
        await reader.consumer.close(5_000)


def asked(cluster: ScriptedBroker, topic: str, api: str = "Fetch", node: int | None = None) -> list[ReceivedRequest]:
    """Return the requests of one test's consumer, without requests that end sessions."""
    seen = [seen for seen in cluster.journal(api, node=node) if seen.client_id == topic]
    return [each for each in seen if each.fields.get("session_epoch", 0) >= 0]
