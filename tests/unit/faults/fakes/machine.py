"""Limits and log directories in memory: the kernel throttles and kills, and a broker drops directories that it
can't write.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.targets.values import (
    BrokerId,
    ClockShift,
    DiskCounts,
    DiskDefects,
    GcPauses,
    Limits,
    Link,
    LogDamage,
    LogDir,
    PacketChange,
    PacketCounts,
    Stream,
    Throttling,
)
from aftershock.harness.cluster.packets import TCP_COUNTERS

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


MIB = 1_048_576
NOTICED_US = 2_000_000  # time until a broker writes to a directory
BROKERS = (1, 2, 3)
AT_REST = Limits(None, 1024 * MIB)


class FakeMachine:
    """Fake of limits and disks in `faults.runtime.world`. ``idle`` nodes never reach a limit; ``disks`` is the
    number per broker.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allowed = {BrokerId(broker): AT_REST for broker in BROKERS}
        self.limited_us: dict[BrokerId, int] = {}
        self.idle = False
        self.used_bytes = 300 * MIB
        self.disks: dict[BrokerId, list[LogDir]] = {
            BrokerId(broker): [
                LogDir(f"/disk{number}", 64 * MIB, 60 * MIB, bounded=True, writable=True) for number in (1, 2)
            ]
            for broker in BROKERS
        }
        self.unusable_us: dict[tuple[BrokerId, str], int] = {}
        self.offline: set[tuple[BrokerId, str]] = set()
        self.shifts: dict[BrokerId, tuple[int, ClockShift]] = {}  # since when each moved clock is moved
        self.deaf_clocks = False  # True if a moved clock is not seen by the broker
        self.clocks = True
        self.packets = True
        self.gc_agent = True
        self.gc_pauses: dict[BrokerId, tuple[int, GcPauses]] = {}  # since when collections stop each JVM
        self.gc_factor = 1.0  # of the asked times, how long the collections take
        self.defects: dict[BrokerId, DiskDefects] = {}
        self.settled: list[BrokerId] = []
        self.sound_disks = False  # True if defects have no effect
        self.packet_rules: dict[str, tuple[int, PacketChange]] = {}
        self.packet_streams: dict[str, tuple[tuple[str, Stream], ...]] = {}
        self.isolated: dict[str, BrokerId] = {}
        self.packets_per_s = 400
        self.loss_factor = 1.0  # of the changes asked for, how many happen
        self.devices: dict[BrokerId, BlockDevice | None] = {BrokerId(broker): BlockDevice() for broker in BROKERS}
        self.still_mounted: frozenset[BrokerId] = frozenset()  # nodes whose file systems a power cut does not reach

    async def limits(self: "FakeWorld", broker: BrokerId) -> Limits:
        await self._called("limits", broker)
        return self.allowed[broker]

    async def limit(self: "FakeWorld", broker: BrokerId, limits: Limits) -> None:
        """Set limits; as in the kernel, too little memory kills the process."""
        await self._called("limit", (broker, limits))
        self.allowed[broker] = limits
        self.limited_us[broker] = self.clock.now_us()
        if limits.memory_bytes is not None and limits.memory_bytes < self.used_bytes // 2:
            self._lose(broker, "exited")

    async def throttled(self: "FakeWorld", broker: BrokerId) -> Throttling:
        await self._called("throttled", broker)
        if self.allowed[broker].cpus is None or self.idle:
            return Throttling(0, 0, 0.0)
        periods = (self.clock.now_us() - self.limited_us[broker]) // 100_000
        return Throttling(periods, periods // 2, periods / 20)

    async def memory_used(self: "FakeWorld", broker: BrokerId) -> int:
        await self._called("memory_used", broker)
        most = self.allowed[broker].memory_bytes or self.used_bytes
        return 0 if self.states[broker] == "exited" else MIB if self.idle else min(most, self.used_bytes)

    async def log_dirs(self: "FakeWorld", broker: BrokerId) -> Sequence[LogDir]:
        await self._called("log_dirs", broker)
        return list(self.disks[broker])

    async def offline_log_dirs(self: "FakeWorld", broker: BrokerId) -> frozenset[str]:
        """Return the offline directories; a broker without any directory halts and does not answer."""
        await self._called("offline_log_dirs", broker)
        for (owner, path), since_us in self.unusable_us.items():
            if self.clock.now_us() >= since_us + NOTICED_US:
                self.offline.add((owner, path))
        return frozenset(path for owner, path in self.offline if owner == broker)

    async def fill(self: "FakeWorld", broker: BrokerId, log_dir: str) -> None:
        await self._called("fill", (broker, log_dir))
        self._change(broker, log_dir, free_bytes=0)
        self.unusable_us.setdefault((broker, log_dir), self.clock.now_us())

    async def empty(self: "FakeWorld", broker: BrokerId, log_dir: str) -> None:
        await self._called("empty", (broker, log_dir))
        self._change(broker, log_dir, free_bytes=60 * MIB)
        self._usable(broker, log_dir)

    async def seal(self: "FakeWorld", broker: BrokerId, log_dir: str) -> None:
        await self._called("seal", (broker, log_dir))
        self._change(broker, log_dir, writable=False)
        self.unusable_us.setdefault((broker, log_dir), self.clock.now_us())

    async def unseal(self: "FakeWorld", broker: BrokerId, log_dir: str) -> None:
        await self._called("unseal", (broker, log_dir))
        self._change(broker, log_dir, writable=True)
        self._usable(broker, log_dir)

    def has_packet_control(self) -> bool:
        return self.packets

    async def change_packets(
        self: "FakeWorld", fault: str, streams: Sequence[tuple[str, Stream]], change: PacketChange
    ) -> None:
        await self._called("change_packets", (fault, tuple(streams), change))
        self.packet_rules[fault] = self.clock.now_us(), change
        self.packet_streams[fault] = tuple(streams)

    async def isolate(self: "FakeWorld", fault: str, broker: BrokerId) -> None:
        await self._called("isolate", (fault, broker))
        self.packet_rules[fault] = self.clock.now_us(), PacketChange("drop", 1.0)
        self.packet_streams[fault] = ()
        self.isolated[fault] = broker

    def drops(self, link: Link) -> bool:
        """Return True if a rule drops all packets of a link, in any direction."""
        for fault, (_, change) in self.packet_rules.items():
            names = {name for name, _ in self.packet_streams[fault]}
            cut_off = self.isolated.get(fault)
            if change == PacketChange("drop", 1.0) and (
                link.proxy in names or (cut_off is not None and cut_off in (link.broker, link.source))
            ):
                return True
        return False

    def packet_delay_ms(self, proxy: str) -> float:
        """Return how much longer a round trip over a proxy takes because of delayed packets."""
        delays = {fault: change.delay_ms for fault, (_, change) in self.packet_rules.items() if change.share == 1}
        return sum(delays[fault] for fault in delays for name, _ in self.packet_streams[fault] if name == proxy)

    async def remove_packet_rules(self: "FakeWorld", fault: str) -> None:
        await self._called("remove_packet_rules", fault)
        self.packet_rules.pop(fault, None)
        self.isolated.pop(fault, None)

    async def has_packet_rules(self: "FakeWorld", fault: str) -> bool:
        await self._called("has_packet_rules", fault)
        return fault in self.packet_rules

    async def packet_counts(self: "FakeWorld", fault: str) -> PacketCounts:
        """Count ``packets_per_s`` since the rules were added; TCP notices each changed packet."""
        await self._called("packet_counts", fault)
        since_us, change = self.packet_rules.get(fault, (self.clock.now_us(), PacketChange("drop", 0.0)))
        seen = (self.clock.now_us() - since_us) * self.packets_per_s // 1_000_000
        changed = round(seen * change.share * self.loss_factor)
        return PacketCounts(seen, changed, dict.fromkeys(TCP_COUNTERS, 1_000 + changed))

    def has_clocks(self) -> bool:
        return self.clocks

    async def set_clock(self: "FakeWorld", broker: BrokerId, shift: ClockShift) -> None:
        await self._called("set_clock", (broker, shift))
        self.shifts[broker] = self.clock.now_us(), shift

    async def clock_error_ms(self: "FakeWorld", broker: BrokerId) -> float:
        await self._called("clock_error_ms", broker)
        since_us, shift = self.shifts.get(broker, (0, ClockShift()))
        if self.deaf_clocks:
            return 0.0
        now_ms = self.clock.now_us() / 1000
        strobe_ms = shift.strobe_ms if shift.every_ms and now_ms // shift.every_ms % 2 else -shift.strobe_ms
        return shift.offset_ms + (shift.rate - 1) * (now_ms - since_us / 1000) + strobe_ms

    def has_gc_pauses(self) -> bool:
        return self.gc_agent

    async def set_gc_pauses(self: "FakeWorld", broker: BrokerId, pauses: GcPauses) -> None:
        await self._called("set_gc_pauses", (broker, pauses))
        self.gc_pauses[broker] = self.clock.now_us(), pauses

    async def gc_pauses_set(self, broker: BrokerId) -> bool:
        return bool(self.gc_pauses.get(broker, (0, GcPauses()))[1].every_ms)

    async def gc_stops_ms(self: "FakeWorld", broker: BrokerId) -> Sequence[float]:
        """Return a short collection of before, and the least asked time for each collection that has ended."""
        since_us, pauses = self.gc_pauses.get(broker, (0, GcPauses()))
        done_ms = (self.clock.now_us() - since_us) / 1000 - pauses.least_ms
        count = int(done_ms // pauses.every_ms) + 1 if pauses.every_ms and done_ms >= 0 else 0
        return [12.0, *[pauses.least_ms * self.gc_factor] * count]

    async def block_device(self: "FakeWorld", broker: BrokerId) -> BlockDevice | None:
        await self._called("block_device", broker)
        return self.devices[broker]

    async def set_disk_defects(self: "FakeWorld", broker: BrokerId, defects: DiskDefects) -> None:
        """Set the defects; a broker whose writes fail halts at once."""
        await self._called("set_disk_defects", (broker, defects))
        self.defects[broker] = defects
        if defects.error_share and not self.sound_disks:
            self._lose(broker, "exited")

    async def disk_counts(self: "FakeWorld", broker: BrokerId) -> DiskCounts:
        await self._called("disk_counts", broker)
        defects = DiskDefects() if self.sound_disks else self.defects.get(broker, DiskDefects())
        return DiskCounts(7 if defects.delay_ms else 0, 3 if defects.error_share else 0)

    async def write_ms(self: "FakeWorld", broker: BrokerId) -> float | None:
        await self._called("write_ms", broker)
        defects = DiskDefects() if self.sound_disks else self.defects.get(broker, DiskDefects())
        return None if defects.error_share else 0.5 + defects.delay_ms

    async def settle_disk(self: "FakeWorld", broker: BrokerId) -> None:
        await self._called("settle_disk", broker)
        self.settled.append(broker)

    async def damage_log(self: "FakeWorld", broker: BrokerId, damage: LogDamage) -> tuple[str, str]:
        await self._called("damage_log", (broker, damage))
        return "17 100", "17 100" if self.sound_disks else "18 100"

    async def cut_power(self: "FakeWorld", brokers: Collection[BrokerId]) -> frozenset[BrokerId]:
        await self._called("cut_power", tuple(brokers))
        for broker in brokers:
            self._lose(broker, "exited")
        return frozenset(brokers) - self.still_mounted

    async def restore_power(self: "FakeWorld", brokers: Collection[BrokerId]) -> None:
        await self._called("restore_power", tuple(brokers))
        for broker in brokers:
            self._regain(broker)

    def roomy(self: "FakeWorld") -> bool:
        """Return whether only the original limits apply and every directory is usable and in use."""
        usable = all(each.writable and each.free_bytes for dirs in self.disks.values() for each in dirs)
        return usable and not self.offline and all(limits == AT_REST for limits in self.allowed.values())

    def booted(self, broker: BrokerId) -> None:
        """Let a started broker use every writable directory."""
        self.offline = {
            (owner, path) for owner, path in self.offline if owner != broker or (owner, path) in self.unusable_us
        }

    def _usable(self, broker: BrokerId, log_dir: str) -> None:
        result = next(disk for disk in self.disks[broker] if disk.path == log_dir)
        if result.writable and result.free_bytes:
            self.unusable_us.pop((broker, log_dir), None)

    def _change(self, broker: BrokerId, log_dir: str, **changes: int | bool) -> None:
        self.disks[broker] = [replace(disk, **changes) if disk.path == log_dir else disk for disk in self.disks[broker]]  # type: ignore[arg-type]
