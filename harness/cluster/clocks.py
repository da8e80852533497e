"""Wall clocks of nodes that can be moved, and their error by the append time of a record.

A preloaded library (``images/tools/clock.c``) changes what the processes of a node's container read as wall clock. It
maps a file of five 64-bit integers on a volume of the node. Monotonic time is never changed.
"""

import time
from datetime import timedelta

from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, ClockShift
from aftershock.harness.cluster.preloads import write_integer
from aftershock.harness.kafka.admin import Admin, raise_for
from aftershock.workloads.kafka.wire.batch_builder import build

CLOCK_DIR = "/aftershock/clock"
TOPIC = "aftershock-clock"
"""Topic with a partition on each broker, whose records get the broker's time."""
ENVIRONMENT = {"LD_PRELOAD": f"{CLOCK_DIR}/clock.so", "AFTERSHOCK_CLOCK": f"{CLOCK_DIR}/fields"}
_MS_NS, _RATE_PPB = 1_000_000, 1_000_000_000
_FIELDS = ("offset", "anchor", "drift", "period", "amplitude")
_PROBE_TIMEOUT_S = 5.0


def script_of(shift: ClockShift) -> str:
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
    lines = [write_integer(f"{CLOCK_DIR}/fields", _FIELDS.index(name), value) for name, value in writes]
    return "\n".join([*lines, "echo moved"])


def clock_error_ms(admin: Admin, brokers: list[BrokerId], broker: BrokerId) -> float:
    """Return by how much a broker's clock is ahead of this host's, from the append time of a new record.

    The error is exact to half of the request's duration. Raises AdminError if the broker does not answer.
    """
    data = PartitionProduceData(
        index=i32(brokers.index(broker)), records=Records(build([b"probe"], timestamps_ms=[time.time_ns() // _MS_NS]))
    )
    request = ProduceRequest(
        acks=i16(1),
        timeout=i32Timedelta.parse(timedelta(seconds=_PROBE_TIMEOUT_S)),
        topic_data=(TopicProduceData(name=TopicName(TOPIC), partition_data=(data,)),),
    )
    sent_s = time.time()
    answer = admin.ask(request, _PROBE_TIMEOUT_S, only=broker).responses[0].partition_responses[0]
    halfway_s = (sent_s + time.time()) / 2
    raise_for(answer.error_code, f"append a record to {TOPIC} on broker {broker}", answer.error_message)
    if answer.log_append_time is None:
        raise AdminError(f"broker {broker} returned no append time", "UNKNOWN_SERVER_ERROR")
    return float(answer.log_append_time.timestamp() - halfway_s) * 1000
