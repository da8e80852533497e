"""Cases of faults on processor, memory and disk."""

import asyncio

from aftershock.faults.targets.values import BrokerId
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.process_cases import balanced, requests_waited_for_fencing
from aftershock.tests.chaos.kinds.stand import Stand

SLOW_MS = 200


async def fresh(stand: Stand) -> None:
    """Restart a broker: it then uses some 165 MiB; the kernel refuses a limit below the memory in use."""
    await stand.world.stop(BrokerId(1))
    await stand.world.start(BrokerId(1))
    await asyncio.to_thread(stand.await_in_sync)


def slowed(seen: Observation) -> None:
    """Assert that acknowledgements took longer, since the leader and its followers were throttled."""
    assert seen.median_ms("during") > 1.5 * seen.median_ms("before")


def starved(seen: Observation) -> None:
    """Assert that a broker that was killed for memory was missed; a broker that lived without page cache failed no
    record.
    """
    killed = "kills" in {told.unit for told in seen.witnesses}
    assert not killed or seen.slowest_ms("during") > 1000
    assert [] == seen.failures("during")


def halted(seen: Observation) -> None:
    """Assert that the broker halted, so that its partitions had no leader until its session expired; no record
    failed for good.
    """
    assert "halts" in {told.unit for told in seen.witnesses}
    assert seen.slowest_ms("during") > 1000
    assert [] == seen.failures("during")


def broker_survived(seen: Observation) -> None:
    """Assert that the broker lived with its other directory, and that no record failed for good."""
    assert "log directories" in {told.unit for told in seen.witnesses}
    assert [] == seen.failures("during")


def hidden_by_cache(seen: Observation) -> None:
    """Assert that acknowledged records did not wait for the disk, as Kafka does not flush them."""
    assert [] == seen.failures("during")
    assert seen.median_ms("during") < SLOW_MS


CASES = {
    "slow_disk": [
        Case(
            f"{{kind: slow_disk, broker: leader of probe/0, delay: {SLOW_MS}ms, for: 5s}}", hidden_by_cache, "devices"
        ),
    ],
    "corrupt_segment": [
        Case(
            "{kind: corrupt_segment, broker: leader of probe/0, topic: probe, for: 5s}",
            requests_waited_for_fencing,
            before=balanced,
        )
    ],
    "truncate_segment": [
        Case(
            "{kind: truncate_segment, broker: leader of probe/0, topic: probe, file: index, for: 5s}",
            requests_waited_for_fencing,
            before=balanced,
        )
    ],
    "disk_errors": [Case("{kind: disk_errors, broker: leader of probe/0, for: 6s}", halted, "devices")],
    "cpu_quota": [Case("{kind: cpu_quota, broker: leader of probe/0, cpus: 0.05, for: 5s}", slowed)],
    "memory_limit": [
        Case("{kind: memory_limit, broker: 1, memory: 190MiB, for: 8s}", starved, before=fresh, record_bytes=100_000)
    ],
    "disk_full": [Case("{kind: disk_full, broker: leader of probe/0, for: 8s}", halted, on="bounded")],
    "log_dir_offline": [
        Case("{kind: log_dir_offline, broker: 3, for: 9s}", halted),
        Case("{kind: log_dir_offline, broker: 1, disk: 2, for: 8s}", broker_survived, on="doubled"),
    ],
}
