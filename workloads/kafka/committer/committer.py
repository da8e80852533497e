"""The reference committer: commits of many groups without members, each sent as soon as it may be.

The rules are in ``rules/commits.py``; what an attempt is on the wire in ``commit_attempts.py``.

1. A target (a partition of a group) that has something to commit has a task, which makes one attempt at a time. Targets
   don't wait for each other.
2. A broker reads a connection's next request when it has answered the one before. Commits that shared one would never
   meet in a coordinator's batch, which is what KIP-1224 is about: so targets are dealt to several (*lanes*).
3. ``offer`` never waits. What becomes of a commit is reported once, at its deadline at the latest.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from math import inf

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.tasks import Tell, Wake, monotonic_ms, until_answered
from aftershock.workloads.kafka.committer.attempts import (
    Attempts,
    CommitterSettings,
    Lane,
    PlainAttempts,
    TransactionalAttempts,
)
from aftershock.workloads.kafka.rules.commits import ASKED_AGAIN, Commits, Outcome, Target
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire import codes

__all__ = ["Committer", "Outcome", "Target"]

_SOONEST_MS = 1.0  # a wait that has been rounded to nothing must not spin


class Committer:
    """Belongs to the event loop that it is started on.

    ``report`` is called once for every commit that was offered, on the loop's thread, and must not raise. ``tell``
    hears of events: ``commit_retried`` (group, topic, partition, why), and those of the connections.
    """

    def __init__(self, settings: CommitterSettings, *, report: Callable[[Outcome], None], tell: Tell) -> None:
        self._settings, self._report, self._tell = settings, report, tell
        draw = random.Random()  # noqa: S311  # spreads retries, guards nothing
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        self._metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=self._backoff)
        self._commits = Commits(delivery_timeout_ms=settings.delivery_timeout_ms, backoff=self._backoff)
        self._transactions: Counter[str] = Counter()
        self._wake = Wake()
        self._lanes = [self._lane(draw) for _ in range(settings.connections_per_broker)]
        self._next_lane = cycle(range(len(self._lanes)))
        self._attempts: dict[Target, Attempts] = {}
        self._tasks: dict[Target | None, asyncio.Task[None]] = {}

    def _lane(self, draw: random.Random) -> Lane:
        brokers = Brokers(
            self._settings.bootstrap_servers,
            self._settings.client_id,
            self._settings,
            self._metadata,
            monotonic_ms,
            tell=self._tell,
            draw=draw,
            on_change=self._wake,
        )
        return Lane(self._settings, brokers, self._metadata, self._backoff, monotonic_ms)

    @property
    def counts(self) -> Counter[str]:
        """Every rule's counters."""
        lookups = Counter(coordinator_lookups=sum(attempts.lookups for attempts in self._attempts.values()))
        return self._commits.counts + self._transactions + self._metadata.counts + lookups

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Node id → bytes sent to it and received from it so far, over all connections."""
        sums: dict[int, tuple[int, int]] = {}
        for lane in self._lanes:
            for node_id, (sent, received) in lane.brokers.traffic.items():
                sent_before, received_before = sums.get(node_id, (0, 0))
                sums[node_id] = (sent_before + sent, received_before + received)
        return sums

    # ---- the start

    async def start(self, targets: Sequence[Target]) -> None:
        """Come to where the first commit can go: topics known, coordinators found and connected to.

        Keeps trying for as long as it takes: the caller has the deadline.

        Raises:
            BrokerError: a topic or a group that this client may not use.
            UnsupportedError: brokers that lack a version that is needed.
        """
        self._metadata.want({target.topic for target in targets})
        await until_answered(self._learn_topics, self._backoff)
        self._tasks[None] = asyncio.create_task(self._keep_up())
        lanes = len(self._lanes)
        for target in targets:
            self._add(target)
        await asyncio.gather(*(self._prepare(targets[number::lanes]) for number in range(lanes)))

    async def _learn_topics(self) -> None:
        await self._lanes[0].brokers.refresh()
        for name in self._metadata.wanted:
            topic = self._metadata.topic(name)
            if topic is not None and topic.error in codes.HOPELESS:
                raise BrokerError(
                    f"offsets of the topic {name} can't be committed: {codes.name(topic.error)}", topic.error
                )
            if topic is None or topic.error:
                raise ConnectionError(f"the topic {name} isn't known yet")

    async def _prepare(self, targets: Iterable[Target]) -> None:
        """Those of one lane, one after the other: there may be thousands."""
        for target in targets:
            await until_answered(self._attempts[target].prepare, self._backoff)

    def _add(self, target: Target) -> None:
        lane, sent = self._lanes[next(self._next_lane)], partial(self._commits.sent, target)
        if self._settings.transactional:
            wanted = partial(self._commits.wanted, target)
            self._attempts[target] = TransactionalAttempts(target, lane, sent, wanted, self._transactions)
        else:
            self._attempts[target] = PlainAttempts(target, lane, sent)

    # ---- commits

    def offer(self, target: Target, offset: int, *, token: int) -> None:
        """Commit ``offset`` for one of the targets that ``start`` was told of.

        Raises what ended the work for it before, if that was an error no rule knows.
        """
        self._commits.offer(target, offset, token, monotonic_ms())
        self._wake()
        task = self._tasks.get(target)
        if task is None or task.done():
            self._check(task)
            self._tasks[target] = asyncio.create_task(self._work(target))

    def _check(self, task: "asyncio.Task[None] | None") -> None:
        if task is not None and not task.cancelled():
            task.result()

    async def _work(self, target: Target) -> None:
        """Until the target has nothing to commit any more."""
        while (wait_ms := self._commits.wait_ms(target, monotonic_ms())) < inf:
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
            else:
                await self._attempt(target, self._commits.begin(target))

    async def _attempt(self, target: Target, offset: int) -> None:
        try:
            error = await self._attempts[target].make(offset)
        except (OSError, ProtocolError) as unanswered:
            self._commits.unanswered(target, monotonic_ms())
            self._say_retried(target, str(unanswered))
            return
        self._end(self._commits.answered(target, error, monotonic_ms()))
        if error in ASKED_AGAIN:
            self._say_retried(target, codes.name(error))

    def _say_retried(self, target: Target, why: str) -> None:
        self._tell("commit_retried", group=target.group, topic=target.topic, partition=target.partition, why=why)

    def _end(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._report(outcome)

    async def _keep_up(self) -> None:
        """Metadata when it is due, and deadlines."""
        while True:
            now_ms = monotonic_ms()
            self._end(self._commits.expire(now_ms))
            refresh_ms = self._lanes[0].brokers.refresh_if_due()
            await self._wake.wait(max(_SOONEST_MS, min(refresh_ms, self._commits.next_deadline_ms - now_ms)))

    # ---- the end

    async def close(self, timeout_ms: float) -> None:
        """Finish what can be finished within ``timeout_ms``, report the rest as failed or in doubt, leave no task."""
        working = [task for target, task in self._tasks.items() if target is not None and not task.done()]
        if working:
            await asyncio.wait(working, timeout=timeout_ms / 1000)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._end(self._commits.abandon())
        await asyncio.gather(*(lane.brokers.close() for lane in self._lanes))
