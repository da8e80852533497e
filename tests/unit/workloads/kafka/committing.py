"""A committer under test against a scripted cluster, with its outcomes, events and the groups' committed offsets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.committer import Committer, CommitterSettings
from aftershock.workloads.kafka.rules.commits import Outcome, Target

#: Short times, so that no test waits for a default.
QUICK = {
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
}
DEADLINE_S = 15


class Keeper:
    """One committer of ``groups`` groups, each with its own partition; group n is ``<topic>-<n>``."""

    def __init__(self, cluster: ScriptedBroker, groups: int, **changes: object) -> None:
        self.cluster, self.topic = cluster, fresh_topic(cluster, groups)
        self.targets = [Target(f"{self.topic}-{number}", self.topic, number) for number in range(groups)]
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.outcomes: dict[int, Outcome] = {}
        self.ended: list[int] = []
        settings = {"bootstrap.servers": cluster.bootstrap, "client.id": self.topic} | QUICK | changes
        self.committer = Committer(parse(CommitterSettings, settings), report=self._report, on_event=self._tell)
        self.offered = 0

    def _tell(self, event: str, **details: object) -> None:
        self.told.append((event, details))

    def _report(self, outcome: Outcome) -> None:
        assert outcome.token not in self.outcomes, f"{outcome} was reported before"
        self.outcomes[outcome.token] = outcome
        self.ended.append(outcome.token)

    def offer(self, group: int = 0, count: int = 1) -> None:
        """Offer ``count`` commits; each commit's offset is its token."""
        for _ in range(count):
            self.committer.offer(self.targets[group], self.offered, token=self.offered)
            self.offered += 1

    async def settle(self) -> list[Outcome]:
        """Wait for all outcomes; return them by token."""
        await self.until(lambda: len(self.outcomes) == self.offered, "not every commit came to an end")
        return [self.outcomes[token] for token in range(self.offered)]

    async def until(self, reached: Callable[[], object], reason: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not reached():  # noqa: ASYNC110  # The condition depends on several objects.
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{reason}; told {self.told[-20:]}, reported {self.outcomes}") from None

    def committed(self, group: int = 0) -> int | None:
        """Return the cluster's offset of a group."""
        target = self.targets[group]
        return self.cluster.committed(target.group).get((target.topic, target.partition))

    def asked(self, api: str) -> list[ReceivedRequest]:
        """Return the requests of this committer."""
        return [seen for seen in self.cluster.journal(api) if seen.client_id == self.topic]


@asynccontextmanager
async def committing(cluster: ScriptedBroker, groups: int = 1, **changes: Any) -> AsyncIterator[Keeper]:
    """Yield a started committer; settings have ``_`` for ``.``. At the end every commit must have an outcome."""
    keeper = Keeper(cluster, groups, **changes)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await keeper.committer.start(keeper.targets)
        yield keeper
    finally:
        await keeper.committer.close(2_000)
    assert set(range(keeper.offered)) == set(keeper.outcomes)
