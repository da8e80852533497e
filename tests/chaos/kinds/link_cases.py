"""Cases of faults on links, and of the slow rack, which acts on links."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from aftershock.faults.runtime.record import Clock
from aftershock.tests.chaos.kinds.case import Case, Observation, unharmed
from aftershock.tests.chaos.kinds.process_cases import balanced
from aftershock.tests.chaos.kinds.stand import Stand

CLOSES_FOR_S = 60.0  # The longest duration; `later_closes` ends the fault earlier.
CLOSE_EVERY_S = 0.1


class Closer:
    """A client that connects to a broker repeatedly, sends nothing, half-closes, and measures when the broker's
    close arrives.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        host, _, port = address.partition(":")
        self._address = (host, int(port))
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="closer", daemon=True)
        self.closes: list[tuple[int, float]] = []
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        give_up_us = self._clock.now_us() + int(CLOSES_FOR_S * 1e6)
        while not self._over.wait(CLOSE_EVERY_S) and self._clock.now_us() < give_up_us:
            with suppress(OSError), socket.create_connection(self._address, timeout=5) as connection:
                began_us = self._clock.now_us()
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
                self.closes.append((began_us, (self._clock.now_us() - began_us) / 1000))


def sent_again(seen: Observation) -> None:
    """Assert that some records waited until TCP had sent a packet again, and that no record failed."""
    usual_ms = seen.median_ms("after")
    assert len([ms for ms in seen.latencies_ms("during") if ms > usual_ms + PROBE_MS]) >= 5
    assert [] == seen.failures("during")


_closers: list[Closer] = []
PROBE_MS = 15
"""Part of the time after which Linux probes for a lost packet, at least 2 round trips and 2 ticks (RFC 8985)."""


async def closing(stand: Stand) -> None:
    """Return a client that closes connections to the first broker, started before the fault."""
    await balanced(stand)
    _closers.append(Closer(stand.cluster.bootstrap("a").partition(",")[0], stand.clock))


def later_closes(seen: Observation) -> None:
    """Assert that closes arrived as late as the fault says, and at once before it."""
    closer = _closers.pop()
    closer.stop()
    begun_us, ended_us = seen.at_us("injected"), seen.at_us("healing")
    during = [ms for at_us, ms in closer.closes if begun_us <= at_us and at_us + ms * 1000 < ended_us]
    before = [ms for at_us, ms in closer.closes if at_us + ms * 1000 < seen.at_us("intended")]
    assert min(during) >= 790  # both streams, 400 ms each
    assert min(before) < 400


def quick(latencies_ms: Sequence[float]) -> float:
    """Return the 10th percentile: a busy host only adds."""
    return sorted(latencies_ms)[len(latencies_ms) // 10]


def late_by(ms: float) -> Callable[[Observation], None]:
    """Return an assertion: hardly an acknowledgement came sooner than that, as some had before."""

    def late(seen: Observation) -> None:
        assert quick(seen.latencies_ms("during")) >= ms > min(seen.latencies_ms("before"))

    return late


def slowest_by(ms: float) -> Callable[[Observation], None]:
    """Return an assertion: some acknowledgement came that late."""

    def slowest(seen: Observation) -> None:
        assert seen.slowest_ms("during") > ms

    return slowest


def gap_of(ms: float) -> Callable[[Observation], None]:
    """Return an assertion: for that long no record was acknowledged."""

    def gap(seen: Observation) -> None:
        assert seen.longest_gap_ms("during") > ms

    return gap


def held(seen: Observation) -> None:
    """Assert that no record was acknowledged during the fault, and that all were right after it."""
    assert seen.longest_gap_ms("during") > 2_500
    assert seen.failures("during") == []


def climbing(seen: Observation) -> None:
    """Assert that records sent in the second half of the ramp took longer than records sent in the first."""
    late = [ack.latency_ms for ack in seen.records("during") if ack.latency_ms is not None]
    half = len(late) // 2
    assert quick(late[half:]) > quick(late[:half]) + 20


CASES = {
    "packet_delay": [
        Case('{kind: packet_delay, link: "client(a) <-> broker", delay: 50ms, for: 4s}', late_by(100), "packets")
    ],
    "packet_reorder": [
        Case(
            '{kind: packet_reorder, link: "client(a) -> broker", share: 30%, delay: 100ms, for: 8s}',
            unharmed,
            "packets",
        )
    ],
    "packet_duplicate": [
        Case('{kind: packet_duplicate, link: "client(a) <-> broker", share: 20%, for: 8s}', unharmed, "packets")
    ],
    "packet_corrupt": [
        Case('{kind: packet_corrupt, link: "client(a) <-> broker", share: 5%, for: 8s}', sent_again, "packets")
    ],
    "packet_loss": [
        Case('{kind: packet_loss, link: "client(a) <-> broker", share: 5%, for: 8s}', sent_again, "packets"),
        Case('{kind: packet_loss, link: "rack(b) <-> rack(a)", share: 5%, for: 8s}', unharmed, "packets"),
    ],
    "latency": [
        Case('{kind: latency, link: "client(a) -> broker", delay: 60ms, for: 3s}', late_by(60)),
        Case('{kind: latency, link: "client(a) <-> broker", delay: 60ms, jitter: 20ms, for: 3s}', late_by(80)),
        Case('{kind: latency, link: "client(a) -> broker", delay: 10ms, ramp_to: 100ms, for: 4s}', climbing),
        Case(
            '{kind: latency, link: "client(a) -> broker", delay: 5ms, spikes: {count: 2, delay: 300ms}, every: 800ms, '
            "for: 4s}",
            slowest_by(280),
        ),
    ],
    "bandwidth": [
        Case('{kind: bandwidth, link: "client(a) -> broker", rate: 2kB/s, for: 4s}', late_by(100)),
        Case('{kind: bandwidth, link: "client(a) <-> broker(1)", rate: 1kB/s, for: 4s}', slowest_by(200)),
    ],
    "stall": [
        Case('{kind: stall, link: "client(a) <-> broker", for: 4s}', held),
        Case('{kind: stall, link: "client(a) -> broker", for: 4s}', held),
    ],
    "blackhole": [
        Case('{kind: blackhole, link: "client(a) <-> broker", timeout: 1s, for: 4s}', gap_of(2_500)),
    ],
    "reset": [
        Case('{kind: reset, link: "client(a) -> broker", for: 3s}', gap_of(2_000)),
        Case(
            '{kind: reset, link: "replication(*) <-> broker", timeout: 200ms, for: 3s}',
            slowest_by(1_000),
            before=balanced,
        ),
    ],
    "slice": [
        Case('{kind: slice, link: "client(a) -> broker", average_size: 64B, delay: 10ms, for: 3s}', late_by(40)),
        Case('{kind: slice, link: "client(a) <-> broker", average_size: 64B, delay: 10ms, for: 3s}', late_by(40)),
    ],
    "limit_data": [
        Case('{kind: limit_data, link: "client(a) -> broker", bytes: 4kB, for: 4s}', slowest_by(70)),
        Case('{kind: limit_data, link: "client(a) <-> broker", bytes: 2kB, for: 4s}', slowest_by(70)),
    ],
    "slow_close": [
        Case('{kind: slow_close, link: "client(a) <-> broker", delay: 400ms, for: 4s}', later_closes, before=closing),
    ],
    "refuse": [
        Case('{kind: refuse, link: "client(a) -> broker", for: 3s}', gap_of(2_000)),
    ],
    "flap": [
        Case('{kind: flap, link: "client(a) -> broker", down: 800ms, up: 1s, for: 4s}', gap_of(700)),
        Case('{kind: flap, link: "client(a) -> broker(1)", down: 1s, up: 1s, jitter: 200ms, for: 5s}', slowest_by(700)),
    ],
    "misroute": [
        Case('{kind: misroute, link: "client(a) -> broker(1)", with: 2, for: 4s}', slowest_by(1_500), before=balanced),
    ],
    "slow_rack": [
        Case("{kind: slow_rack, rack: b, delay: 60ms, for: 4s}", late_by(60), before=balanced),
        Case("{kind: slow_rack, rack: a, ways: in, delay: 60ms, for: 4s}", slowest_by(60), before=balanced),
    ],
}
