"""What a run observes of services under test: the owners of their groups' partitions, and when they have caught up.

A service reports nothing, so the harness asks the coordinators. The event ``group_changed`` has the owner (member id)
of each partition after a change, ``since_us``, the last time at which the owners before it were seen, and the
``offsets`` that the group had committed then.

Which process each member is (``group_members.py``) goes to the file ``members.json`` of the spool, for faults on
members of services.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.kinds.client.base import ClientFault
from aftershock.faults.targets.values import GroupMember, TopicPartition
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.groups import committed_offsets, members
from aftershock.harness.run.polling import PERIOD_US, Poll, PollingRecorder
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world.group_members import MemberOwners, write_owners
from aftershock.names import pipe_names
from aftershock.workloads.load.fleet import read_lives

JOIN_S = 20.0
"""Time limit for a process to join its group: a rebalance waits for the heartbeats of others, 3 s by default."""
SETTLED_US = 2_000_000
"""Time without a new output after which a service that has committed the ends of its inputs is done."""
SETTLE_LIMIT_US = 300_000_000
"""Longest time that a service may work on after the load, as long as it makes progress."""


@dataclass(frozen=True)
class PipeArm:
    """Pipe of one arm, from the timeline; ``group`` is empty if the plan names none.

    ``workers`` are the processes, of which the first ``members`` run from the start.
    """

    workload: str
    arm: str
    from_: str
    to: str
    group: str
    workers: tuple[str, ...] = ()
    members: int = 1


def pipe_arms(timeline: Timeline) -> list[PipeArm]:
    return [
        PipeArm(
            *(workload["name"], arm, pipe["from"], pipe["to"][arm], pipe["groups"].get(arm, "")),
            *(pipe_names(workload["name"], arm, pipe), pipe["members"]),
        )
        for workload in timeline.workloads
        if (pipe := workload.get("pipe"))
        for arm in workload["arms"]
    ]


def in_turn(timeline: Timeline) -> list[tuple[str, ...]]:
    """Return the processes of each service that must start one after the other, because a fault tells them apart."""
    faults = [
        fault for step in timeline.steps if isinstance(fault := step.fault(), ClientFault) and fault.needs_members
    ]
    return [
        arm.workers[: arm.members]
        for arm in pipe_arms(timeline)
        if arm.group and any(fault.selector.matches(arm.workload, arm.arm, "pipe") for fault in faults)
    ]


class GroupRecorder(PollingRecorder):
    """Async context manager that records the owners of the partitions in the groups of a plan's services.

    ``spool`` is the run's folder in shared memory.
    """

    def __init__(self, cluster: Target, timeline: Timeline, home: RunDir, clock: RunClock, spool: Path) -> None:
        super().__init__(cluster, clock)
        self._home, self._spool = home, spool
        self._groups = {arm.group: MemberOwners(arm.workers) for arm in pipe_arms(timeline) if arm.group}
        self._polled = asyncio.Event()  # of the next poll
        self._seen: dict[str, tuple[int, dict[TopicPartition, str] | None, dict[TopicPartition, int]]] = {}

    def lanes(self) -> Sequence[Iterator[Poll]]:
        return [repeat(self._poll_groups)] if self._groups else []

    def polled(self, _result: None, /) -> None:
        self._polled.set()
        self._polled = asyncio.Event()

    def _poll_groups(self, admin: Admin) -> None:
        for group in self._groups:
            self._poll_group(admin, group)

    def _poll_group(self, admin: Admin, group: str) -> None:
        """Ask a group's coordinator for its members."""
        asked_us = self._clock.now_us()
        try:
            present = members(admin, group)
            committed = committed_offsets(admin, group)
        except AftershockError:  # the coordinator may be down: the next answer covers the time until then
            return
        owners = {place: member.id for member in present for place in member.partitions}
        self._tell_apart(group, present)
        since_us, before, position = self._seen.get(group, (asked_us, None, {}))
        answered_us = self._clock.now_us()
        if owners != before:
            rows = [[*place, member] for place, member in sorted(owners.items())]
            offsets = [[*place, offset] for place, offset in sorted(position.items())]
            named = {"group": group, "since_us": since_us}
            self._home.event(answered_us, "group_changed", **named, owners=rows, offsets=offsets)
        self._seen[group] = asked_us, owners, committed

    def _tell_apart(self, group: str, present: Sequence[GroupMember]) -> None:
        """Write which process each member of a group is, if that has changed."""
        told = self._groups[group]
        before = dict(told.owners)
        told.observe(present, read_lives(self._spool, told.workers))
        if told.owners != before:
            write_owners(self._spool, {name: of_group.owners for name, of_group in self._groups.items()})

    async def joined(self, worker: str) -> None:
        """Wait until a process's member is told apart, or until its service names its processes, for JOIN_S at most.

        A service that joins no group is found later (``drive.complete_groups``), with a better sentence.
        """
        told = next(owners for owners in self._groups.values() if worker in owners.workers)
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_S):
                while not any(of == {worker} for of in told.owners.values()):
                    await self._polled.wait()


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
    ``idle`` is true if the service stood still, and ``still_us`` the time since its last progress.
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
                home.event(now_us, "pipe_settled", **named, **result, still_us=still_us)
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
