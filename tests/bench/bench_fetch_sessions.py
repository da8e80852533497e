"""What fetch sessions save (KIP-227): ``python tests/bench/bench_fetch_sessions.py``.

One topic of 500 partitions on one scripted broker, a process of its own; in each round one of the partitions gets a
record, and the reference consumer reads it. With sessions a request names what changed, without them it names all.
Bytes are exact, CPU time is this process's and says as much about the machine: read the ratios. Exits with 1 when the
request of a session isn't at least 50 times smaller.
"""

import asyncio
import statistics
import sys
import time
from typing import NamedTuple

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch_builder import build

PARTITIONS = 500
ROUNDS = 100
RATIO_MIN = 50
TOPIC = "bench"


class Cost(NamedTuple):
    """Of one fetch, the median."""

    request_bytes: float
    response_bytes: float
    cpu_us: float


async def measure(cluster: ScriptedBroker, *, sessions: bool) -> Cost:
    settings = {"bootstrap.servers": cluster.bootstrap, "fetch_session": sessions, "client.id": str(sessions)}
    consumer = Consumer(parse(ConsumerSettings, settings), on_event=lambda *_, **__: None)
    await consumer.start([TOPIC])
    consumer.assign(dict.fromkeys([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], "latest"))
    while not await one_round(cluster, consumer, 0):
        pass
    received_before, cpu_before_s = consumer.brokers.traffic[1][1], time.process_time()
    fetches_before = len(fetches(cluster, sessions=sessions))
    for number in range(ROUNDS):
        await one_round(cluster, consumer, number % PARTITIONS)
    cpu_s, received = time.process_time() - cpu_before_s, consumer.brokers.traffic[1][1] - received_before
    sizes = fetches(cluster, sessions=sessions)[fetches_before:]
    await consumer.close(5_000)
    return Cost(statistics.median(sizes), received / len(sizes), cpu_s / len(sizes) * 1e6)


async def one_round(cluster: ScriptedBroker, consumer: Consumer, partition: int) -> int:
    """One record in, one record out; how many came within a second."""
    cluster.append(TOPIC, partition, build([b"v" * 100], timestamps_ms=[0]))
    return len(await consumer.poll(1_000))


def fetches(cluster: ScriptedBroker, *, sessions: bool) -> list[int]:
    """The sizes of the Fetch requests so far, length prefixes included."""
    return [seen.size_bytes for seen in cluster.journal("Fetch") if seen.client_id == str(sessions)]


def main() -> int:
    with ScriptedBroker() as cluster:
        cluster.create(TOPIC, PARTITIONS)
        full, incremental = (asyncio.run(measure(cluster, sessions=sessions)) for sessions in (False, True))
    print(f"{PARTITIONS} partitions, 1 active     {'full':>10} {'session':>10} {'ratio':>8}")
    for name, whole, part in zip(Cost._fields, full, incremental, strict=True):
        print(f"{name + ' a fetch':<28} {whole:>10.0f} {part:>10.0f} {whole / part:>8.1f}")
    return 0 if full.request_bytes >= RATIO_MIN * incremental.request_bytes else 1


if __name__ == "__main__":
    sys.exit(main())
