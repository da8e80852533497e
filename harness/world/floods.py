"""Producer that overloads brokers for the fault ``flood``, a process of its own that is no arm of a workload.

``python -m aftershock.harness.world.floods`` reads no record of what it has sent: the topic's log tells. It ends after
its time, and at the end of its standard input, which is that of the process that started it.
"""

import asyncio
import json
import os
import select
import sys
import time
from dataclasses import asdict
from subprocess import DEVNULL
from typing import Any

from confluent_kafka import Producer

from aftershock.faults.targets.values import FloodLoad
from aftershock.harness.cluster.cluster import Cluster

_STEP_S = 0.01
_BUFFER_KIB = 65_536
_MESSAGE_TIMEOUT_MS = 5_000
_END_S = 5.0


class FloodsWorld:
    """Start and end of floods, by the protocol `faults.targets.world.FloodControl`."""

    _cluster: Cluster

    def __init__(self) -> None:
        self._floods: dict[str, asyncio.subprocess.Process] = {}

    async def start_flood(self, fault: str, flood: FloodLoad) -> None:
        order = json.dumps({"bootstrap": self._cluster.bootstrap(None), "fault": fault, **asdict(flood)})
        command = (sys.executable, "-P", "-m", "aftershock.harness.world.floods", order)
        self._floods[fault] = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=DEVNULL, stderr=DEVNULL
        )

    async def end_flood(self, fault: str) -> None:
        process = self._floods.pop(fault, None)
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def pour(order: dict[str, Any], stdin: int) -> None:
    """Send records at the given rate until the time is over, or ``stdin`` ends; what a broker refuses is given up."""
    settings = {"bootstrap.servers": order["bootstrap"], "client.id": f"aftershock-flood-{order['fault']}"}
    settings |= {"acks": 1, "linger.ms": 5, "batch.size": 1_000_000, "log_level": 0}
    settings |= {"queue.buffering.max.kbytes": _BUFFER_KIB, "message.timeout.ms": _MESSAGE_TIMEOUT_MS}
    producer = Producer(settings)
    value = os.urandom(order["record_size"])
    began_s, sent = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < order["for_ms"] / 1000:
        if select.select([stdin], [], [], 0)[0] and not os.read(stdin, 1):
            break
        due = int(passed_s * order["bytes_per_s"] / order["record_size"])
        while sent < due:
            try:
                producer.produce(order["topic"], value, partition=sent % order["partitions"])
            except BufferError:
                sent = due  # the brokers are slower than the flood: it does not catch up
                break
            sent += 1
        producer.poll(_STEP_S)
        time.sleep(max(0.0, _STEP_S - (time.monotonic() - began_s - passed_s)))
    producer.purge()


if __name__ == "__main__":
    pour(json.loads(sys.argv[1]), sys.stdin.fileno())
