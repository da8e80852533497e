"""What a run observes of services under test: the owners of their groups' partitions, and when they have caught up.

A service reports nothing, so the harness asks the coordinators. The event ``group_changed`` has the owner (member id)
of each partition after a change, ``since_us``, the last time at which the owners before it were seen, and the
``offsets`` that the group had committed then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.targets.values import TopicPartition
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.groups import committed_offsets, members
from aftershock.harness.run.polling import PERIOD_US, Poll, PollingRecorder
from aftershock.harness.safety.rundir import RunClock, RunDir

SETTLED_US = 2_000_000
"""Time without a new output after which a service that has committed the ends of its inputs is done."""
SETTLE_LIMIT_US = 300_000_000
"""Longest time that a service may work on after the load, as long as it makes progress."""


@dataclass(frozen=True)
class PipeArm:
    """Pipe of one arm, from the timeline; ``group`` is empty if the plan names none."""

    workload: str
    arm: str
    from_: str
    to: str
    group: str


def pipe_arms(timeline: Timeline) -> list[PipeArm]:
    return [
        PipeArm(workload["name"], arm, pipe["from"], pipe["to"][arm], pipe["groups"].get(arm, ""))
        for workload in timeline.workloads
        if (pipe := workload.get("pipe"))
        for arm in workload["arms"]
    ]


class GroupRecorder(PollingRecorder):
    """Async context manager that records the owners of the partitions in the groups of a plan's services."""

    def __init__(self, cluster: Target, timeline: Timeline, home: RunDir, clock: RunClock) -> None:
        super().__init__(cluster, clock)
        self._home = home
        self._groups = [arm.group for arm in pipe_arms(timeline) if arm.group]
        self._seen: dict[str, tuple[int, dict[TopicPartition, str] | None, dict[TopicPartition, int]]] = {}

    def lanes(self) -> Sequence[Iterator[Poll]]:
        return [repeat(self._poll_groups)] if self._groups else []

    def _poll_groups(self, admin: Admin) -> None:
        for group in self._groups:
            self._poll_group(admin, group)

    def _poll_group(self, admin: Admin, group: str) -> None:
        """Ask a group's coordinator for its members."""
        asked_us = self._clock.now_us()
        try:
            owners = {place: member.id for member in members(admin, group) for place in member.partitions}
            committed = committed_offsets(admin, group)
        except AftershockError:  # the coordinator may be down: the next answer covers the time until then
            return
        since_us, before, position = self._seen.get(group, (asked_us, None, {}))
        answered_us = self._clock.now_us()
        if owners != before:
            rows = [[*place, member] for place, member in sorted(owners.items())]
            offsets = [[*place, offset] for place, offset in sorted(position.items())]
            named = {"group": group, "since_us": since_us}
            self._home.event(answered_us, "group_changed", **named, owners=rows, offsets=offsets)
        self._seen[group] = asked_us, owners, committed


async def settle(
    arms: Sequence[PipeArm],
    admin: Admin,
    ends: Callable[[Iterable[str]], Awaitable[Mapping[str, Mapping[int, int]]]],
    home: RunDir,
    clock: RunClock,
    idle_us: int,
) -> None:
    """Wait until each service has processed all inputs, or makes no progress for ``idle_us``; record the results.

    A service has processed its inputs when its group has committed their ends, and no output followed for SETTLED_US.
    Of a service that commits nothing, outputs alone show progress. The event ``pipe_settled`` of an arm has the
    positions of its group that lie below the ends. There, ``commits`` is false if the group commits nothing, and
    ``idle`` is true if the service stood still.
    """
    first_us = clock.now_us()
    progress: dict[PipeArm, tuple[Any, int]] = {}
    waiting = list(arms)
    while waiting:
        offsets = await ends([name for arm in waiting for name in (arm.from_, arm.to)])
        now_us = clock.now_us()
        for arm in list(waiting):
            committed = await asyncio.to_thread(_committed, admin, arm)
            state = (offsets[arm.to], committed)
            before, since_us = progress.get(arm, (None, now_us))
            since_us = since_us if before == state else now_us
            progress[arm] = state, since_us
            still_us = now_us - since_us
            behind = {
                number: end - committed.get((arm.from_, number), 0)
                for number, end in offsets[arm.from_].items()
                if committed and end > committed.get((arm.from_, number), 0)
            }
            done = bool(committed) and not behind and still_us >= SETTLED_US
            over = now_us - first_us >= SETTLE_LIMIT_US
            if done or still_us >= idle_us or over:
                waiting.remove(arm)
                rows = [
                    [arm.from_, number, committed.get((arm.from_, number), 0), offsets[arm.from_][number]]
                    for number in sorted(behind)
                ]
                named = {"workload": arm.workload, "arm": arm.arm, "op": "pipe"}
                result = {"idle": still_us >= idle_us, "commits": bool(committed), "positions": rows}
                home.event(now_us, "pipe_settled", **named, **result)
        if waiting:
            await clock.sleep_until_us(now_us + PERIOD_US)


def _committed(admin: Admin, arm: PipeArm) -> dict[TopicPartition, int]:
    """Return what an arm's group has committed of its inputs; empty if it commits nothing, or does not answer now."""
    if not arm.group:
        return {}
    try:
        return {place: at for place, at in committed_offsets(admin, arm.group).items() if place[0] == arm.from_}
    except AftershockError:
        return {}
