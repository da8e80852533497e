"""Reference committer, which commits offsets of many groups without members, by the rules of ``rules/commits.py``.

A broker handles the requests of a connection one after the other, so commits on the same connection never get into the
same batch of a coordinator, the subject of KIP-1224. The committer therefore distributes the partitions over several
connections to each coordinator.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from math import inf

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.tasks import EventListener, Wake, monotonic_ms, retry_until_answered
from aftershock.workloads.kafka.committer.attempts import (
    CommitterSettings,
    ConnectionLane,
    PlainAttempts,
    TransactionalAttempts,
)
from aftershock.workloads.kafka.rules.commits import COMMIT_RETRIABLE, Commits, Outcome, Target
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire import codes

_SOONEST_MS = 1.0  # lower limit, so that a wait rounded to 0 does not spin


class Committer:
    """Committer of many groups' offsets, on one asyncio event loop.

    ``report`` is called once for every offset commit, at its deadline at the latest, and must not raise.
    """

    def __init__(
        self, settings: CommitterSettings, *, report: Callable[[Outcome], None], on_event: EventListener
    ) -> None:
        self._settings, self._report, self._on_event = settings, report, on_event
        draw = random.Random()  # noqa: S311  # spreads retries; not a secret
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        self._metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=self._backoff)
        self._commits = Commits(delivery_timeout_ms=settings.delivery_timeout_ms, backoff=self._backoff)
        self._transactions: Counter[str] = Counter()
        self._wake = Wake()
        self._lanes: list[ConnectionLane] = []
        for _ in range(settings.connections_per_broker):
            brokers = NetworkClient(
                settings, self._metadata, monotonic_ms, on_event=on_event, draw=draw, on_change=self._wake
            )
            self._lanes.append(ConnectionLane(settings, brokers, self._backoff))
        self._next_lane = cycle(range(len(self._lanes)))
        self._attempts: dict[Target, PlainAttempts | TransactionalAttempts] = {}
        self._tasks: dict[Target | None, asyncio.Task[None]] = {}

    @property
    def counts(self) -> Counter[str]:
        lookups = Counter(coordinator_lookups=sum(attempts.lookups for attempts in self._attempts.values()))
        return self._commits.counts + self._transactions + self._metadata.counts + lookups

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Bytes (sent, received) of all connections by node id."""
        sums: dict[int, tuple[int, int]] = {}
        for lane in self._lanes:
            for node_id, (sent, received) in lane.brokers.traffic.items():
                sent_before, received_before = sums.get(node_id, (0, 0))
                sums[node_id] = (sent_before + sent, received_before + received)
        return sums

    async def start(self, targets: Sequence[Target]) -> None:
        """Fetch the topics' metadata and connect to the coordinators, retrying without a limit.

        Raises BrokerError if the committer is not authorized for a topic or a group, UnsupportedError if the brokers
        lack a required API version.
        """
        self._metadata.want({target.topic for target in targets})
        await retry_until_answered(self._learn_topics, self._backoff)
        self._tasks[None] = asyncio.create_task(self._maintain())
        for target in targets:
            lane, sent = self._lanes[next(self._next_lane)], partial(self._commits.sent, target)
            if self._settings.transactional:
                is_wanted = partial(self._commits.wanted, target)
                self._attempts[target] = TransactionalAttempts(target, lane, sent, is_wanted, self._transactions)
            else:
                self._attempts[target] = PlainAttempts(target, lane, sent)

        async def prepare(lane_targets: Iterable[Target]) -> None:
            for target in lane_targets:  # one after the other, because there may be thousands
                await retry_until_answered(self._attempts[target].prepare, self._backoff)

        lanes = len(self._lanes)
        await asyncio.gather(*(prepare(targets[number::lanes]) for number in range(lanes)))

    async def _learn_topics(self) -> None:
        await self._lanes[0].brokers.refresh()
        for name in self._metadata.wanted:
            topic = self._metadata.topic(name)
            if topic is not None and topic.error in codes.HOPELESS:
                reason = codes.name(topic.error)
                raise BrokerError(f"offsets of the topic {name} cannot be committed: {reason}", topic.error)
            if topic is None or topic.error:
                raise ConnectionError(f"the metadata lacks the topic {name}")

    def offer(self, target: Target, offset: int, *, token: int) -> None:
        """Queue an offset commit for a partition that ``start`` was given, and return at once."""
        self._commits.offer(target, offset, token, monotonic_ms())
        self._wake()
        task = self._tasks.get(target)
        if task is None or task.done():
            if task is not None and not task.cancelled():
                task.result()
            self._tasks[target] = asyncio.create_task(self._work(target))

    async def _work(self, target: Target) -> None:
        while (wait_ms := self._commits.wait_ms(target, monotonic_ms())) < inf:
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
                continue
            try:
                error = await self._attempts[target].make(self._commits.begin(target))
            except (OSError, ProtocolError) as unanswered:
                self._commits.on_no_response(target, monotonic_ms())
                self._report_retry(target, str(unanswered))
                continue
            self._report_all(self._commits.on_response(target, error, monotonic_ms()))
            if error in COMMIT_RETRIABLE:
                self._report_retry(target, codes.name(error))

    def _report_retry(self, target: Target, why: str) -> None:
        self._on_event("commit_retried", group=target.group, topic=target.topic, partition=target.partition, why=why)

    def _report_all(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._report(outcome)

    async def _maintain(self) -> None:
        while True:
            now_ms = monotonic_ms()
            self._report_all(self._commits.expire(now_ms))
            refresh_ms = self._lanes[0].brokers.refresh_if_due()
            await self._wake.wait(max(_SOONEST_MS, min(refresh_ms, self._commits.next_deadline_ms - now_ms)))

    async def close(self, timeout_ms: float) -> None:
        """Wait up to ``timeout_ms`` for pending commits, and report the rest as failed or in doubt."""
        working = [task for target, task in self._tasks.items() if target is not None and not task.done()]
        if working:
            await asyncio.wait(working, timeout=timeout_ms / 1000)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._report_all(self._commits.abandon())
        await asyncio.gather(*(lane.brokers.close() for lane in self._lanes))
