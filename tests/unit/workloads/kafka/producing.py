"""A producer under test against a scripted cluster, with its outcomes, events and written records."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.producer.produce_request import Delivery
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.wire.batch import parse as parse_batches

__all__ = ["Writer", "fresh_topic", "produced", "until", "writing", "written"]

#: Short times, so that no test waits for a default.
QUICK = {
    "linger.ms": 0,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
}
DEADLINE_S = 15


class Writer:
    """A producer that sends records whose token and value are their number."""

    def __init__(self, bootstrap: str, topic: str, **changes: object) -> None:
        self.topic = topic
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.deliveries: list[Delivery] = []
        self.taken = 0
        settings = {"bootstrap.servers": bootstrap, "client.id": topic} | QUICK | changes
        self.producer = Producer(parse(ProducerSettings, settings), report=self.deliveries.append, on_event=self._tell)

    def _tell(self, event: str, **details: object) -> None:
        self.told.append((event, details))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [details for event, details in self.told if event == name]

    @property
    def outcomes(self) -> dict[int, Delivery]:
        """Return the outcome of each token; a token that was reported twice is an error."""
        found: dict[int, Delivery] = {}
        for delivery in self.deliveries:
            for token in delivery.tokens:
                assert token not in found, f"{token} was reported twice: {found[token]}, {delivery}"
                found[token] = delivery
        return found

    def offer(self, count: int = 1, *, partition: int | None = 0, size: int = 0) -> None:
        for _ in range(count):
            value = b"%d" % self.taken
            assert self.producer.offer(
                self.topic, value.ljust(size), headers=(("h", value),), partition=partition, token=self.taken
            )
            self.taken += 1

    async def send(self, count: int = 1, *, partition: int | None = 0) -> None:
        """Send records singly, each after the outcome of the previous one."""
        for _ in range(count):
            self.offer(partition=partition)
            await self.flush()

    async def flush(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.producer.flush()

    async def until(self, reached: Callable[[], object], reason: str) -> None:
        await until(reached, lambda: f"{reason}; told {self.told[-20:]}, reported {self.deliveries[-10:]}")


async def until(reached: Callable[[], object], reason: Callable[[], str]) -> None:
    """Run the loop until the condition holds; AssertionError with the reason at the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not reached():  # noqa: ASYNC110  # The condition depends on several objects.
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(reason()) from None


@asynccontextmanager
async def writing(cluster: ScriptedBroker, partitions: int = 1, **changes: Any) -> AsyncIterator[Writer]:
    """Yield a started producer on its own topic; settings have ``_`` for ``.``.

    Its client id is the topic's name, by which the journal knows it. At the end every record must have an outcome.
    """
    leaders = changes.pop("leaders", None)
    writer = Writer(cluster.bootstrap, fresh_topic(cluster, partitions, leaders=leaders), **changes)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await writer.producer.start([writer.topic])
        yield writer
    finally:
        await writer.producer.close(2_000)
    assert set(range(writer.taken)) <= set(writer.outcomes)


def written(cluster: ScriptedBroker, topic: str, partition: int = 0) -> list[int]:
    """Return the records in a log by their numbers, in the log's order."""
    return list(_numbers(cluster.log(topic, partition)))


def _numbers(log: bytes) -> Iterator[int]:
    for batch in parse_batches(log):
        for record in batch.records:
            assert record.value is not None
            yield int(record.value)


def produced(cluster: ScriptedBroker, topic: str, node: int | None = None) -> list[ReceivedRequest]:
    """Return the Produce requests of one test's producer."""
    return [seen for seen in cluster.journal("Produce", node=node) if seen.client_id == topic]
