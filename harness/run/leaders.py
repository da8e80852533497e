"""Recording of the partitions' leaders during a run, written to ``leaders.jsonl`` after the load.

What the polls show of the cluster itself becomes events of the run (``harness/kafka/membership.py``).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import cycle
from typing import Any, TypeVar

from aftershock.errors import AftershockError, Log
from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.assignments import group_names
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.leader_history import (
    LeaderPolls,
    PartitionView,
    WallClock,
    epoch_starts,
    history,
    read_views,
)
from aftershock.harness.kafka.membership import Membership
from aftershock.harness.kafka.metadata_log import Election, elections
from aftershock.harness.kafka.replicas import SHARE_STATE
from aftershock.harness.run.polling import Poll, PollingRecorder
from aftershock.harness.run.recording import in_thread
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.manifest import LEADERS

T = TypeVar("T")


def _transacts(workload: Mapping[str, Any]) -> bool:
    """Return True if an arm of a workload has transactions."""
    return bool(
        (workload.get("produce") or {}).get("transaction")
        or (workload.get("pipe") or {}).get("transactional")
        or (workload.get("commit") and any(arm["settings"].get("transactional") for arm in workload["arms"].values()))
    )


class LeaderRecorder(PollingRecorder):
    """Async context manager that polls the leaders during its block; ``write`` adds the other sources.

    Records the topics of the plan, and the topics of Kafka's coordinators if a workload has a group, commits, or
    transactions.
    """

    def __init__(self, cluster: Target, timeline: Timeline, home: RunDir, clock: RunClock) -> None:
        super().__init__(cluster, clock)
        self._timeline, self._home = timeline, home
        self._topics = [topic["name"] for topic in timeline.topics]
        if any(True for _ in group_names(timeline)) or any(load.get("commit") for load in timeline.workloads):
            self._topics += [OFFSETS_TOPIC, SHARE_STATE]
        if any(_transacts(load) for load in timeline.workloads):
            self._topics.append(TRANSACTIONS_TOPIC)
        self._polls, self._membership = LeaderPolls(), Membership()

    def lanes(self) -> Sequence[Iterator[Poll]]:
        """Return polls of one broker after the other, so that a frozen broker delays only polls."""
        return [(partial(self._poll_once, broker=broker) for broker in cycle(self._cluster.admin.addresses))]

    def _poll_once(self, admin: Admin, broker: BrokerId | None = None) -> None:
        """Poll a broker, or without one any broker."""
        asked_us = self._clock.now_us()
        try:
            views, brokers = read_views(admin, broker, self._topics)
            self._polls.answered(broker, asked_us, self._clock.now_us(), views)
            for change in self._membership.answered(asked_us, brokers, views):
                self._home.event(change.t_us, change.event, **change.fields)
        except AftershockError:
            self._polls.failed(broker)

    async def write(self, log: Log) -> None:
        """Write ``leaders.jsonl``; a source that fails is logged and left out."""
        await in_thread(self._write, log)

    def _write(self, log: Log) -> None:
        def source(name: str, read: Callable[[], T]) -> T | None:
            try:
                return read()
            except AftershockError as error:
                log(f"the leaders of the partitions are recorded without {name}: {error}")
                return None

        self._poll_once(self._cluster.admin)
        topic_ids = self._polls.topic_ids
        elected = source("the controllers' log", lambda: elections(self._cluster.metadata_log(), self._topics)) or []
        epochs: dict[TopicPartition, range] = {}  # each follows the one before it, so there are no gaps
        known: list[Election | PartitionView] = [*elected, *(first.view for first in self._polls.first.values())]
        for epoch in (epoch for epoch in known if topic_ids.get(epoch.topic) == epoch.topic_id):
            where, number = (epoch.topic, epoch.partition), epoch.epoch
            others = epochs.get(where, range(number, number))
            epochs[where] = range(min(others.start, number), max(others.stop, number + 1))
        with closing(self._cluster.admin.copy()) as admin:
            starts = source("the offsets at which epochs begin", lambda: epoch_starts(admin, epochs)) or {}
        checkpoints = source("the brokers' checkpoints", self._cluster.epoch_checkpoints) or {}
        clock = None  # the controllers' times can't be converted if a fault of the plan sets clocks
        if not any("clocks" in step.fault().cluster_needs() for step in self._timeline.steps):
            origin_unix_us = self._home.facts["origin_unix_us"]
            clock = WallClock(origin_unix_us, time.time_ns() // 1000 - self._clock.now_us() - origin_unix_us)
        rows = history(self._polls.first, elected, clock, starts, checkpoints, topic_ids)
        write_whole(self._home.path / LEADERS, "".join(f"{json.dumps(row)}\n" for row in rows))
