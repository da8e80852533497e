"""Faults on links, asked against observed, and the time from intent to effect; exits 1 where a limit is missed.

One link of a cluster of three is sampled without a pause while each fault begins, lasts and ends. *Observed* is what
nine of ten samples during the fault exceeded, less the same of those before (a busy host only adds): within 2 ms or 5 %
of what was asked for, a rate within 10 %. *Effect* is when the first sample that felt it began, or the fault was said
to be in force if that was later, counted from the journal's ``intended``. Run by hand: ``make bench``.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from aftershock.errors import FaultError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.catalogue import save_measurements
from aftershock.faults.runtime.record import Entry
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.sections.document import load
from aftershock.faults.targets.values import BrokerId, Link
from aftershock.faults.timeline.executor import execute
from aftershock.harness.adhoc.inject import single_fault_timeline
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.world.world import ClusterWorld

RUN_ID = "bench-links"
LINK = Link("client_a-k2", "client", "a", BrokerId(2))
BEFORE_S = 1.0
NEVER = float("inf")
EFFECT_MS_MAX = 250.0
LIMIT_MS = 5_000

Sampler = Callable[[ClusterWorld], Awaitable[float]]


async def trip(world: ClusterWorld) -> float:
    """Send a small request; return ms until its response, or never."""
    try:
        return await world.probe_ms(LINK)
    except FaultError:
        return NEVER


async def end(world: ClusterWorld) -> float:
    """Send a small request; return ms until its response or the end of the connection."""
    return await _exchange(world, 0, answered=False)


async def load_of(world: ClusterWorld, ballast_bytes: int) -> float:
    """Send a request with ballast; return ms until its whole response."""
    return await _exchange(world, ballast_bytes, answered=True)


async def _exchange(world: ClusterWorld, ballast_bytes: int, *, answered: bool) -> float:
    try:
        probe = await world.dial(LINK)
    except FaultError:
        return NEVER
    seen = await probe.ask(ballast_bytes, LIMIT_MS)
    await probe.hang_up()
    return NEVER if answered and seen.end != "answered" else seen.ms


async def close(world: ClusterWorld) -> float:
    """Close a connection; return ms until the broker's close."""
    probe = await world.dial(LINK)
    await probe.ask(0, LIMIT_MS)
    ms = await probe.close_ms(LIMIT_MS)
    await probe.hang_up()
    return ms


async def elsewhere(world: ClusterWorld) -> float:
    """Return 0 while the right broker answers."""
    try:
        return 0.0 if await world.node_behind(LINK) == LINK.broker else NEVER
    except FaultError:
        return NEVER


@dataclass(frozen=True)
class Case:
    """A fault, how the link is sampled, and what a sample shows that feels it.

    ``asked_ms``: by how much, None where it is not a matter of how much.
    """

    words: str
    sampler: Sampler
    felt_ms: float
    asked_ms: float | None = None


def rated(kilobytes: int, ballast_bytes: int) -> Case:
    """A bandwidth; its ballast takes that much longer."""
    words = f'kind: bandwidth, link: "client(a) -> broker(2)", rate: {kilobytes}kB/s, for: 5s'
    return Case(words, lambda world: load_of(world, ballast_bytes), ballast_bytes / kilobytes / 2)


SLICED_BYTES, SLICE_BYTES, SLICE_MS = 960, 100, 10
CASES = {
    "latency 20 ms": Case('kind: latency, link: "client(a) -> broker(2)", delay: 20ms, for: 4s', trip, 15, 20),
    "latency 200 ms": Case('kind: latency, link: "client(a) -> broker(2)", delay: 200ms, for: 6s', trip, 150, 200),
    "latency both ways": Case('kind: latency, link: "client(a) <-> broker(2)", delay: 50ms, for: 4s', trip, 75, 100),
    "slow_rack 50 ms": Case("kind: slow_rack, rack: b, ways: in, delay: 50ms, for: 4s", trip, 40, 50),
    "bandwidth 50 kB/s": rated(50, 20_000),
    "bandwidth 1 MB/s": rated(1_000, 300_000),
    "stall": Case('kind: stall, link: "client(a) -> broker(2)", for: 4s', trip, 1_000),
    "blackhole 500 ms": Case('kind: blackhole, link: "client(a) -> broker(2)", timeout: 500ms, for: 4s', end, 400, 500),
    "reset 100 ms": Case('kind: reset, link: "client(a) -> broker(2)", timeout: 100ms, for: 4s', end, 80, 100),
    "slice": Case(
        f'kind: slice, link: "client(a) -> broker(2)", average_size: {SLICE_BYTES}, delay: {SLICE_MS}ms, for: 4s',
        lambda world: load_of(world, SLICED_BYTES),
        50,
    ),
    "limit_data": Case('kind: limit_data, link: "client(a) -> broker(2)", bytes: 20, for: 3s', trip, 1_000),
    "slow_close 300 ms": Case(
        'kind: slow_close, link: "client(a) -> broker(2)", delay: 300ms, for: 4s', close, 200, 300
    ),
    "refuse": Case('kind: refuse, link: "client(a) -> broker(2)", for: 3s', trip, 1_000),
    "flap": Case('kind: flap, link: "client(a) -> broker(2)", down: 1s, up: 500ms, for: 3s', trip, 1_000),
    "misroute": Case('kind: misroute, link: "client(a) -> broker(2)", with: 3, for: 3s', elsewhere, 1_000),
}


@dataclass
class Book:
    """When each state was first written, and what was witnessed."""

    clock: RunClock

    def __post_init__(self) -> None:
        self.at_us: dict[str, int] = {}
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        """Keep it."""
        self.at_us.setdefault(entry.state, self.clock.now_us())
        self.entries.append(entry)


@dataclass(frozen=True)
class Measured:
    """One case: samples as (begun_us, ms), and the journal."""

    samples: list[tuple[int, float]]
    book: Book

    def of(self, from_us: int, to_us: int) -> list[float]:
        """The samples that began and ended between."""
        return [ms for at_us, ms in self.samples if from_us <= at_us and at_us + min(ms, 60_000) * 1000 <= to_us]

    def rise_ms(self) -> float:
        """Return the increase of the samples."""
        at_us = self.book.at_us
        return quick(self.of(at_us["injected"], at_us["healing"])) - quick(self.of(0, at_us["intended"]))

    def effect_ms(self, felt_ms: float) -> float:
        """From ``intended`` until it was felt: an upper bound, as coarse as a sample is long."""
        intended_us, injected_us = self.book.at_us["intended"], self.book.at_us["injected"]
        felt = (
            max(at_us, injected_us) for at_us, ms in self.samples if at_us + ms * 1000 > intended_us and ms >= felt_ms
        )
        return (next(felt, intended_us + 10**9) - intended_us) / 1000

    def witnessed(self) -> str:
        """Return the first measurement of the fault's own witness."""
        told = (e.witness for e in self.book.entries if e.witness and e.witness.unit not in ("toxics", "proxies"))
        first = next(told)
        return f"{first.observed:.1f} of {first.asked:.1f} {first.unit}"

    def rate(self) -> float:
        """Observed over asked, of the witness."""
        rates = [
            e.witness.observed / e.witness.asked for e in self.book.entries if e.witness and e.witness.unit == "B/s"
        ]
        return rates[0] if rates else 0.0


def quick(samples: list[float]) -> float:
    """Return the 10th percentile."""
    return sorted(samples)[len(samples) // 10]


async def measure(case: Case, world: ClusterWorld) -> Measured:
    clock = RunClock.starting_now()
    book, samples = Book(clock), list[tuple[int, float]]()

    async def sample() -> None:
        while True:
            begun_us = clock.now_us()
            samples.append((begun_us, await case.sampler(world)))

    sampling = asyncio.create_task(sample())
    await asyncio.sleep(BEFORE_S)
    said = dict(load("words: {" + case.words + "}").data["words"])
    fault = KINDS[said["kind"]].model_validate({"at": "0s", "id": "bench", **said})
    await execute(single_fault_timeline(fault, 7), world, book, clock, lambda _line: None)
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    return Measured(samples, book)


def judged(name: str, case: Case, measured: Measured) -> tuple[bool, list[str]]:
    """Print a row; whether it is within the limits, and the row for the page."""
    failed = [entry.witness.what for entry in measured.book.entries if entry.witness and not entry.witness.ok]
    row, fine, told = f"{name:18} ", not failed, ""
    if case.asked_ms is not None:
        rise_ms = measured.rise_ms()
        close_by = abs(rise_ms - case.asked_ms) <= max(2.0, 0.05 * case.asked_ms)
        told, fine = f"asked {case.asked_ms:.1f} ms, observed {rise_ms:.1f} ms", fine and close_by
    elif name.startswith("bandwidth"):
        rate = measured.rate()
        told, fine = f"observed over asked {rate:.3f}", fine and abs(rate - 1) <= 0.1
    effect_ms = measured.effect_ms(case.felt_ms)
    fine = fine and effect_ms <= EFFECT_MS_MAX
    row += f"{told:40} effect after {effect_ms:5.1f} ms  "
    print(("ok   " if fine else "MISS ") + row + f"[witness: {measured.witnessed()}]", *failed[:1], flush=True)
    return fine, [name, told or measured.witnessed(), f"{effect_ms:.1f} ms"]


async def bench(world: ClusterWorld) -> bool:
    rows = [judged(name, case, await measure(case, world)) for name, case in CASES.items()]
    save_measurements("Faults on links", ("fault", "asked and observed", "felt after"), [row for _, row in rows])
    return all(fine for fine, _ in rows)


def main() -> int:
    client = engine.connect()
    spec = ClusterSpec.of(ClusterPlan())
    try:
        with tempfile.TemporaryDirectory() as home:
            images = images_for(client, spec, print)
            with closing(launch(spec, RUN_ID, Path(home), images, lambda _line: None)) as cluster:
                return 0 if asyncio.run(bench(ClusterWorld(cluster))) else 1
    finally:
        ownership.remove_run(client, RUN_ID)
        client.close()


if __name__ == "__main__":
    sys.exit(main())
