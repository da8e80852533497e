"""Wait at the start of a run until the consumer groups of several members are complete."""

from collections.abc import Iterable

from aftershock.errors import FaultError, WorkloadError
from aftershock.faults.runtime.record import Clock
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.targets.world import ClientControl
from aftershock.workloads.load.assignment import Assignment, ConsumeAssignment

DEADLINE_MS = 60_000


async def complete_groups(clients: Iterable[Assignment], world: ClientControl, clock: Clock) -> None:
    """Wait until each group of several members has all its members, and they own all partitions.

    The coordinators are asked, because a member without a partition can't tell whether the group is complete. Raises
    WorkloadError after ``DEADLINE_MS``.
    """
    groups: dict[str, list[ConsumeAssignment]] = {}
    for client in clients:
        if isinstance(client, ConsumeAssignment) and client.group and client.members > 1 and not client.reserve:
            groups.setdefault(client.group, []).append(client)

    async def missing() -> str | None:
        for group, members in groups.items():
            present = await world.group_members(members[0].worker)
            if absent := sorted({member.worker for member in members} - {member.client for member in present}):
                return f"{len(absent)} of {len(members)} members of the group {group} are missing, {absent[0]} first"
            # another workload in the same group, and a pattern, may bring partitions of further topics
            due = {place for member in members for place in member.places}
            owned = due.intersection(place for member in present for place in member.partitions)
            if len(owned) < len(due):
                return f"the members of the group {group} own {len(owned)} of {len(due)} partitions"
        return None

    try:
        await wait_until(missing, clock, DEADLINE_MS)
    except FaultError as error:
        raise WorkloadError(f"{error}; look at the logs of the group's members, logs/<client>.log") from error
