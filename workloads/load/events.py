"""The run's clock and timer, and the event log and running counts of one client."""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol, Self

from aftershock.redaction import redact_data
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.spool import Status

Clock = Callable[[], int]


class Reported(StrEnum):
    """What only some clients tell, so that a judge can tell what did not happen from what was not observed.

    ``attempts``: how often a record or commit was sent. ``node_disconnected`` and ``request_timed_out``: an event for
    each connection that ended, and for each request without a response in time. ``values``: a consumer compares the
    values of records with what was sent.
    """

    ATTEMPTS = "attempts"
    DISCONNECTIONS = "node_disconnected"
    TIMEOUTS = "request_timed_out"
    VALUES = "values"


CLIENT_DIED = "client_died"
"""Event of a client that ended by itself; ``closing`` if that was after the order to close, while it closed."""

CONNECTIONS = (Reported.DISCONNECTIONS, Reported.TIMEOUTS)


def run_clock(origin_ns: int) -> Clock:
    """Return a function that returns the microseconds since ``origin_ns`` on a clock that all processes share."""
    monotonic_ns = time.monotonic_ns
    return lambda: (monotonic_ns() - origin_ns) // 1000


class CpuTimes(NamedTuple):
    """CPU times since boot in jiffies, namely busy, stolen by the hypervisor, and total (proc(5), /proc/stat)."""

    busy: int
    steal: int
    total: int


def cpu_times() -> CpuTimes | None:
    """Return the CPU times of the host; None on a host without /proc/stat."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except OSError:
        return None
    idle, steal, total = fields[3] + fields[4], fields[7], sum(fields)
    return CpuTimes(total - idle - steal, steal, total)


class Tick(NamedTuple):
    """Clocks at a tick, in microseconds: the run's clock, BOOTTIME and REALTIME, each less MONOTONIC; and CPU times."""

    now_us: int
    boot_us: int
    real_us: int
    cpu: CpuTimes | None


class Emit(Protocol):
    def __call__(self, event: str, **details: Any) -> None: ...


TICK_US = 50_000
STALL_US_MIN = 50_000
_CPU_PERIOD_TICKS = 20


class Ticker:
    """Timer of a process during a ``with`` block, which emits ``stalled`` if the process or the host stood still.

    A thread ticks every ``TICK_US``. A tick that comes late by L shows that the process did not run for L. The clock
    MONOTONIC stops while the host is suspended and BOOTTIME does not, so a jump between them is a suspension. A jump of
    REALTIME together with a late tick, or CPU time that the hypervisor stole, shows a pause of the virtual machine.
    """

    def __init__(self, clock: Clock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit
        self._last: Tick | None = None
        self._cpu: CpuTimes | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="ticker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def observe(self, tick: Tick, due_us: int) -> None:
        """Compare a tick with the last one, and emit ``stalled`` if the process stood still for ``STALL_US_MIN``."""
        last, self._last = self._last or tick, tick
        late_us, suspended_us = max(0, tick.now_us - due_us), tick.boot_us - last.boot_us
        if max(late_us, suspended_us) >= STALL_US_MIN:
            cpu, before = tick.cpu, self._cpu
            stolen = (cpu.steal - before.steal) / (cpu.total - before.total) if cpu and before and cpu != before else 0
            stepped_us = tick.real_us - last.real_us - suspended_us
            times = {"since_us": last.now_us, "until_us": tick.now_us, "late_us": late_us}
            self._emit("stalled", **times, suspended_us=suspended_us, stepped_us=stepped_us, stolen=round(stolen, 4))
        if tick.cpu:
            self._cpu = tick.cpu

    def _run(self) -> None:
        ticks, due_us = 0, self._clock()
        while True:
            is_late = self._clock() - due_us >= STALL_US_MIN
            cpu = cpu_times() if is_late or ticks % _CPU_PERIOD_TICKS == 0 else None
            ticks += 1
            boottime_ns, realtime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns()
            monotonic_ns = time.monotonic_ns()
            offsets_us = (boottime_ns - monotonic_ns) // 1000, (realtime_ns - monotonic_ns) // 1000
            with suppress(OSError):  # a full disk ends the run elsewhere, with a message
                self.observe(Tick(self._clock(), *offsets_us, cpu), due_us)
            due_us = self._clock() + TICK_US
            if self._stop.wait(TICK_US / 1e6):
                return


class Events:
    """Writer of the run's event log, a file that many processes append to, with one ``write`` call for each event."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._descriptor = os.open(assignment.events, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._identity = {name: getattr(assignment, name) for name in ("arm", "workload", "worker")}
        self._identity["op"] = assignment.side
        self._clock = clock

    def emit(self, event: str, **details: Any) -> None:
        line = {"t_us": self._clock(), "event": event} | self._identity | redact_data(details)
        os.write(self._descriptor, json.dumps(line, sort_keys=True).encode() + b"\n")


WINDOW = 200


class Tally:
    """Counts of a client's records and commits for the live display and the warm-up rule; checks do not use them.

    ``progress`` returns at most WINDOW latencies, and at most WINDOW delays of sending, since its previous call.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._by_status = dict.fromkeys(Status, 0)
        self._latency_us: deque[int] = deque(maxlen=WINDOW)
        self._late_us: deque[int] = deque(maxlen=WINDOW)

    @property
    def done(self) -> int:
        return sum(self._by_status.values())

    def sent_late(self, late_us: int) -> None:
        self.sent += 1
        self._late_us.append(late_us)

    def never_sent(self) -> None:
        """Count a record that was due while its producer was down, and that therefore failed without being sent."""
        self.sent += 1
        self._by_status[Status.FAILED] += 1

    def ended(self, status: Status, latency_us: int) -> None:
        self._by_status[status] += 1
        if status is Status.OK:
            self._latency_us.append(latency_us)

    def counts(self) -> dict[str, int]:
        return {"sent": self.sent} | {status.text: count for status, count in self._by_status.items()}

    def progress(self) -> dict[str, Any]:
        lateness_us, latencies_us = sorted(self._late_us), list(self._latency_us)
        self._late_us.clear()
        self._latency_us.clear()
        return self.counts() | {
            "late_p99_us": lateness_us[len(lateness_us) * 99 // 100] if lateness_us else 0,
            "window": latencies_us,
        }
