"""Garbage collections that stop a node's JVM for asked times, and the JVM's log of its stops.

An agent in the JVM (``images/tools/gc.c``) maps a file of four 64-bit integers on a volume of the node. The JVM writes
the duration of each safepoint to a log on the same volume (``-Xlog:safepoint``).
"""

import re

from aftershock.faults.targets.values import GcPauses
from aftershock.harness.cluster.preloads import write_integer

GC_DIR = "/aftershock/gc"
LOG = f"{GC_DIR}/safepoints.log"
READ_STOPS = f"grep CollectFull {LOG}; echo end"
READ_EVERY = f"od -A n -t d8 -N 8 {GC_DIR}/fields"
ENVIRONMENT = {"KAFKA_OPTS": f"-agentpath:{GC_DIR}/gc.so={GC_DIR}/fields -Xlog:safepoint:file={LOG}:uptime:filecount=0"}
_MS_NS = 1_000_000
_FIELDS = ("every", "least", "greatest", "seed")
_STOP = re.compile(r'Safepoint "\w+".* At safepoint: (\d+) ns')


def script_of(pauses: GcPauses) -> str:
    """Return a shell script that changes the stops of the JVM in whose container it runs.

    The stops are switched off first and on last, so that the agent never reads a mixture.
    """
    values = {
        "least": pauses.least_ms * _MS_NS,
        "greatest": pauses.greatest_ms * _MS_NS,
        "seed": pauses.seed,
        "every": pauses.every_ms * _MS_NS,
    }
    writes = [("every", 0), *values.items()]
    lines = [write_integer(f"{GC_DIR}/fields", _FIELDS.index(name), value) for name, value in writes]
    return "\n".join([*lines, "echo set"])


def stops_ms(log: str) -> list[float]:
    """Return the durations of the full collections in a JVM's log of safepoints."""
    return [int(duration_ns) / _MS_NS for duration_ns in _STOP.findall(log)]
