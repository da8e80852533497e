"""Members of a group under test against a scripted coordinator, with the calls of their rebalance callbacks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from re import Pattern
from typing import Any

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import DEADLINE_S, Reader, reading
from aftershock.workloads.kafka.consumer.shared import Topics
from aftershock.workloads.kafka.rules.values import TopicPartition


class Member:
    """A subscribed reader and the calls of its rebalance callbacks."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.held: set[TopicPartition] = set()
        self.others: list[Member] = []
        self.calls: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert all(each.held.isdisjoint(partitions) for each in [self, *self.others])
        self.held |= set(partitions)
        self.calls.append(("assigned", [tp.partition for tp in partitions]))

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._gave_up("revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._gave_up("lost", partitions)

    def _gave_up(self, why: str, partitions: Sequence[TopicPartition]) -> None:
        assert self.held >= set(partitions)
        self.held -= set(partitions)
        self.calls.append((why, [tp.partition for tp in partitions]))

    def told(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the events with these names, in order."""
        return [(event, details) for event, details in self.reader.told if event in names]


@asynccontextmanager
async def member(
    cluster: ScriptedBroker,
    topic: str,
    *,
    topics: Topics | None = None,
    tells_losses: bool = False,
    **changes: object,
) -> AsyncIterator[Member]:
    """Yield a member of the group named as the topic, reading from the beginning of its logs.

    It subscribes to ``topics``, by default to the topic.
    """
    options = {"group_id": topic, "auto_offset_reset": "earliest"} | changes
    subscribed = [topic] if topics is None else topics
    known = [] if isinstance(subscribed, Pattern) else subscribed
    async with reading(cluster, topic, None, topics=known, **options) as reader:
        joined = Member(reader)
        on_lost = joined.on_lost if tells_losses else None
        await reader.consumer.subscribe(subscribed, joined.on_assigned, joined.on_revoked, on_lost)
        yield joined


async def holding(one: Member, count: int) -> None:
    await one.reader.until(lambda: len(one.held) == count, f"not {count} partitions but {one.held}")


async def together(*members: Member, reached: Callable[[], bool]) -> None:
    """Poll all members until the condition holds."""
    reason = f"{len(members)} members did not come to terms"
    await asyncio.gather(*(each.reader.until(reached, reason) for each in members))


async def eventually(reached: Callable[[], bool], reason: str) -> None:
    """Wait until the condition holds, while no member polls."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not reached():  # noqa: ASYNC110  # the scripted cluster is another process
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(reason) from None


async def crash(one: Member) -> None:
    """Stop a member as a crash does: it neither commits nor leaves."""
    consumer = one.reader.consumer
    for task in consumer._tasks:
        task.cancel()
    await asyncio.gather(*consumer._tasks, return_exceptions=True)
    if consumer._group:
        await consumer._group.close()
    consumer._group = None
    await consumer.brokers.close()
