"""Libraries of ours in a node's processes, each with a file of 64-bit integers by which it is controlled at run time.

A library and its file come from the image with tools, and are on a volume of the node, ``<node>-<name of the folder>``:

* ``images/tools/clock.c`` changes what the processes of the node's container read as wall clock; monotonic time is
  never changed. The clock's error is measured by the append time of a record.
* ``images/tools/gc.c`` is an agent that stops the node's JVM with garbage collections of asked durations. The JVM
  writes the duration of each safepoint to a log on the same volume (``-Xlog:safepoint``).
"""

import re
import time
from collections.abc import Mapping
from datetime import timedelta

import docker
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta

from aftershock.errors import AdminError, EngineError
from aftershock.faults.targets.values import BrokerId, ClockShift, GcPauses
from aftershock.harness.cluster.engine import docker_errors, run_to_end
from aftershock.harness.kafka.admin import Admin, raise_for
from aftershock.workloads.kafka.wire.batch_builder import build

_MS_NS = 1_000_000


def preload_volume(container: str, folder: str) -> str:
    """Return the name of the volume of a node's container that is mounted at ``folder``."""
    return f"{container}-{folder.rpartition('/')[2]}"


def create_preload(
    client: docker.DockerClient, container: str, folder: str, labels: Mapping[str, str], tools: str
) -> None:
    """Create the volume of a library; the engine fills a new volume from the image."""
    volume = preload_volume(container, folder)
    with docker_errors(EngineError, f"create the Docker volume {volume}"):
        client.volumes.create(volume, labels=dict(labels))
        mount = {volume: {"bind": folder, "mode": "rw"}}
        run_to_end(client, tools, ["true"], volumes=mount, labels=dict(labels), network_disabled=True)


def write_integer(file: str, index: int, value: int) -> str:
    """Return a shell command that writes the 64-bit integer at ``index`` of a file at once."""
    octal = "".join(f"\\{byte:03o}" for byte in value.to_bytes(8, "little", signed=True))
    return f"printf '{octal}' | dd of={file} bs=8 count=1 conv=notrunc seek={index} 2>/dev/null"


CLOCK_DIR = "/aftershock/clock"
CLOCK_TOPIC = "aftershock-clock"
"""Topic with a partition on each broker, whose records get the broker's time."""
CLOCK_ENVIRONMENT = {"LD_PRELOAD": f"{CLOCK_DIR}/clock.so", "AFTERSHOCK_CLOCK": f"{CLOCK_DIR}/fields"}
_RATE_PPB = 1_000_000_000
_CLOCK_FIELDS = ("offset", "anchor", "drift", "period", "amplitude")
_PROBE_TIMEOUT_S = 5.0
_CLOCK_READINGS = 3


def clock_script(shift: ClockShift) -> str:
    """Return a shell script that moves the clock of the container in which it runs.

    Each integer is written at once. A drift and a strobe are switched off first and on last, so that no process ever
    reads one with the other's parameters.
    """
    values = {
        "offset": shift.offset_ms * _MS_NS,
        "anchor": time.monotonic_ns(),
        "drift": round((shift.rate - 1) * _RATE_PPB),
        "period": shift.every_ms * _MS_NS,
        "amplitude": shift.strobe_ms * _MS_NS,
    }
    writes = [("drift", 0), ("period", 0), *((name, values[name]) for name in ("offset", "anchor", "amplitude"))]
    writes += [(name, values[name]) for name in ("drift", "period")]
    lines = [write_integer(f"{CLOCK_DIR}/fields", _CLOCK_FIELDS.index(name), value) for name, value in writes]
    return "\n".join([*lines, "echo moved"])


def clock_error_ms(admin: Admin, brokers: list[BrokerId], broker: BrokerId) -> float:
    """Return by how much a broker's clock is ahead of this host's, from the append times of new records.

    The error is exact to half of a request's duration, so the quickest of several counts (the clock filter of NTP, RFC
    5905): a broker that has just started answers the first one late. Raises AdminError if the broker does not answer.
    """
    return min(_clock_reading(admin, brokers, broker) for _ in range(_CLOCK_READINGS))[1]


def _clock_reading(admin: Admin, brokers: list[BrokerId], broker: BrokerId) -> tuple[float, float]:
    """Return the duration of a request in seconds, and the error of the broker's clock in milliseconds."""
    data = PartitionProduceData(
        index=i32(brokers.index(broker)), records=Records(build([b"probe"], timestamps_ms=[time.time_ns() // _MS_NS]))
    )
    request = ProduceRequest(
        acks=i16(1),
        timeout=i32Timedelta.parse(timedelta(seconds=_PROBE_TIMEOUT_S)),
        topic_data=(TopicProduceData(name=TopicName(CLOCK_TOPIC), partition_data=(data,)),),
    )
    sent_s = time.time()
    answer = admin.ask(request, _PROBE_TIMEOUT_S, only=broker).responses[0].partition_responses[0]
    answered_s = time.time()
    raise_for(answer.error_code, f"append a record to {CLOCK_TOPIC} on broker {broker}", answer.error_message)
    if answer.log_append_time is None:
        raise AdminError(f"broker {broker} returned no append time", "UNKNOWN_SERVER_ERROR")
    error_s = float(answer.log_append_time.timestamp() - (sent_s + answered_s) / 2)
    return answered_s - sent_s, error_s * 1000


GC_DIR = "/aftershock/gc"
STOPS_LOG = f"{GC_DIR}/safepoints.log"
READ_STOPS = f"grep CollectFull {STOPS_LOG}; echo end"
READ_EVERY = f"od -A n -t d8 -N 8 {GC_DIR}/fields"
GC_ENVIRONMENT = {
    "KAFKA_OPTS": f"-agentpath:{GC_DIR}/gc.so={GC_DIR}/fields -Xlog:safepoint:file={STOPS_LOG}:uptime:filecount=0"
}
_GC_FIELDS = ("every", "least", "greatest", "seed")
_STOP = re.compile(r'Safepoint "\w+".* At safepoint: (\d+) ns')


def gc_script(pauses: GcPauses) -> str:
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
    lines = [write_integer(f"{GC_DIR}/fields", _GC_FIELDS.index(name), value) for name, value in writes]
    return "\n".join([*lines, "echo set"])


def stops_ms(log: str) -> list[float]:
    """Return the durations of the full collections in a JVM's log of safepoints."""
    return [int(duration_ns) / _MS_NS for duration_ns in _STOP.findall(log)]
