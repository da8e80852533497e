"""How kinds that take a part of the machine away are shown: processor, memory, disk."""

import asyncio

from aftershock.faults.targets.values import BrokerId
from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.stand import Stand


async def fresh(stand: Stand) -> None:
    """A broker that has just booted has some 165 MiB in use; the kernel refuses a limit below what is in use."""
    await stand.world.stop(BrokerId(1))
    await stand.world.start(BrokerId(1))
    await asyncio.to_thread(stand.await_in_sync)


def slowed(seen: Seen) -> None:
    """Acknowledgements took longer, since the leader and the followers of its partitions stood still."""
    assert seen.median_ms("during") > 1.5 * seen.median_ms("before")


def starved(seen: Seen) -> None:
    """A broker that died of it was missed; one that lived on without its page cache failed nobody."""
    killed = "kills" in {told.unit for told in seen.witnesses}
    assert not killed or seen.slowest_ms("during") > 1000
    assert [] == seen.failures("during")


def halted(seen: Seen) -> None:
    """The broker halted, so what it led had no leader until its session was over; and no record failed for good."""
    assert "halts" in {told.unit for told in seen.witnesses}
    assert seen.slowest_ms("during") > 1000
    assert [] == seen.failures("during")


def went_on(seen: Seen) -> None:
    """With another directory left the broker lived, and no record failed for good."""
    assert "log directories" in {told.unit for told in seen.witnesses}
    assert [] == seen.failures("during")


CASES = {
    "cpu_quota": [Case("{kind: cpu_quota, broker: leader of probe/0, cpus: 0.05, for: 5s}", slowed)],
    "memory_limit": [
        Case("{kind: memory_limit, broker: 1, memory: 190MiB, for: 8s}", starved, before=fresh, record_bytes=100_000)
    ],
    "disk_full": [Case("{kind: disk_full, broker: leader of probe/0, for: 8s}", halted, on="bounded")],
    "log_dir_offline": [
        Case("{kind: log_dir_offline, broker: 3, for: 9s}", halted),
        Case("{kind: log_dir_offline, broker: 1, disk: 2, for: 8s}", went_on, on="doubled"),
    ],
}
