"""Our reference producer beside confluent-kafka and kafka-python: ``python tests/bench/bench_producer.py``.

All send to librdkafka's mock cluster, which is a process of its own, and each client is one, too. They take turns, so
that what else the machine does meets all alike; of each figure the best of the rounds counts. Absolute figures say more
about the machine than about us: read the ratios. Exits with 1 when a target of ours is missed.

=============  =========================================================================================
batched        records of 1000 B, 16 a batch, each with a header and an outcome of its own: records a second
single         one record a batch, one batch at a time, and five: CPU time of the client's process a round trip
echo           as many bytes over a bare asyncio connection and back: the part of a round trip that isn't ours
paced          500 records a second, by the clock: how late each was handed over, and its CPU time
full           a buffer of 32 MiB filled while the brokers are down: resident memory of the process
=============  =========================================================================================
"""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Self

from aftershock.tests.mock_cluster import MockCluster
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.producer.produce_request import Delivery
from aftershock.workloads.kafka.producer.producer import Producer

TOPIC = "bench"
SIZE = 1000
BATCH_RECORDS = 16
BATCH_BYTES = 17_100  # holds 16 of our records and not 17
BREATH_RECORDS = 64  # After so many records the sender yields to the client.
RECORDS = 150_000
ROUND_TRIPS = 3_000
IN_FLIGHT = 5
RATE_PER_S = 500
PACED_S = 8
BUFFER_BYTES = 32 * 1024 * 1024
ROUNDS = 3
VALUE = bytes(SIZE)

Figures = dict[str, float]


def header(seq: int) -> bytes:
    return b"%020d" % seq


class Measured:
    """Wall and CPU time of what is inside of it."""

    def __enter__(self) -> Self:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s


# -- the reference


class Reference:
    """Counts an outcome for each record, as a recorder would."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self.ended = 0
        common = {"bootstrap.servers": bootstrap, "max.block.ms": 60_000}
        self.producer = Producer(
            parse(ProducerSettings, common | settings), report=self.report, on_event=lambda _event, **_details: None
        )

    def report(self, delivery: Delivery) -> None:
        assert delivery.error == 0, delivery
        for _token in delivery.tokens:
            self.ended += 1

    async def send(self, seq: int) -> None:
        headers = (("aftershock", header(seq)),)
        if not self.producer.offer(TOPIC, VALUE, headers=headers, token=seq):
            await self.producer.send(TOPIC, VALUE, headers=headers, token=seq)


async def reference_batched(bootstrap: str) -> Figures:
    client = Reference(bootstrap, **{"batch.size": BATCH_BYTES, "linger.ms": 5})
    await client.producer.start([TOPIC])
    for records in (RECORDS // 10, RECORDS):  # the first is for warming up
        with Measured() as took:
            for seq in range(records):
                await client.send(seq)
                if seq % BREATH_RECORDS == 0:
                    await asyncio.sleep(0)
            await client.producer.flush()
    assert RECORDS + RECORDS // 10 == client.ended
    await client.producer.close(1000)
    return {"records_per_s": RECORDS / took.wall_s, "cpu_us_per_record": took.cpu_s / RECORDS * 1e6}


async def reference_single(bootstrap: str) -> Figures:
    """One batch at a time; then, of one partition, as many as may be in flight, which share the turns of the loop."""
    client = Reference(bootstrap, **{"linger.ms": 0, "batch.size": 0})
    await client.producer.start([TOPIC])
    for trips in (ROUND_TRIPS // 10, ROUND_TRIPS):
        with Measured() as alone:
            for seq in range(trips):
                await client.send(seq)
                await client.producer.flush()
        with Measured() as together:
            for seq in range(0, trips, IN_FLIGHT):
                for number in range(IN_FLIGHT):
                    client.producer.offer(
                        TOPIC, VALUE, headers=(("aftershock", header(seq)),), token=seq + number, partition=0
                    )
                await client.producer.flush()
    await client.producer.close(1000)
    return {
        "cpu_us_per_trip": alone.cpu_s / ROUND_TRIPS * 1e6,
        "cpu_us_per_trip_of_5": together.cpu_s / ROUND_TRIPS * 1e6,
    }


class Waiter(asyncio.Protocol):
    """A connection whose caller waits for its echo."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, _data: bytes) -> None:
        self.echoed.set_result(None)

    async def ask(self, data: bytes) -> None:
        self.echoed = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        await self.echoed


def echo_single(_bootstrap: str) -> Figures:
    """Against a separate process, like the other clients."""
    command = [sys.executable, __file__, "echo-server", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        return asyncio.run(echo(int(server.stdout.readline())))


async def echo(port: int) -> Figures:
    _, waiter = await asyncio.get_running_loop().create_connection(Waiter, "127.0.0.1", port)
    for trips in (ROUND_TRIPS // 10, ROUND_TRIPS):
        with Measured() as took:
            for _ in range(trips):
                await waiter.ask(VALUE)
    waiter.transport.close()
    return {"cpu_us_per_trip": took.cpu_s / ROUND_TRIPS * 1e6}


def echo_server(_bootstrap: str) -> Figures:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data[:64])  # as long as an answer to Produce
    return {}


async def reference_paced(bootstrap: str) -> Figures:
    client = Reference(bootstrap, **{"linger.ms": 5})
    await client.producer.start([TOPIC])
    await client.send(0)  # the first one compiles the codec and connects
    await client.producer.flush()
    late_s, start_s = [], time.monotonic()
    with Measured() as took:
        for seq in range(RATE_PER_S * PACED_S):
            due_s = start_s + seq / RATE_PER_S
            await asyncio.sleep(due_s - time.monotonic())
            late_s.append(time.monotonic() - due_s)
            await client.send(seq)
        await client.producer.flush()
    await client.producer.close(1000)
    return lateness(late_s) | {"cpu_us_per_record": took.cpu_s / len(late_s) * 1e6}


async def reference_full(bootstrap: str) -> Figures:
    """The brokers go down when this says that it has started, and stay down."""
    client = Reference(bootstrap, **{"batch.size": BATCH_BYTES, "buffer.memory": BUFFER_BYTES})
    client.report = lambda _delivery: None  # type: ignore[method-assign]  # nothing of this is ever delivered
    await client.producer.start([TOPIC])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("started", flush=True)
    sys.stdin.readline()
    taken = 0
    while client.producer.offer(TOPIC, bytes(bytearray(VALUE)), headers=(("aftershock", header(taken)),), token=taken):
        taken += 1
        if taken % BATCH_RECORDS == 0:
            await asyncio.sleep(0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"records": taken, "rss_before_mib": before / 1024, "rss_mib": after / 1024}


# -- the others


def confluent(bootstrap: str, **settings: object) -> Any:
    from confluent_kafka import Producer as ConfluentProducer  # noqa: PLC0415  # each process loads one client

    return ConfluentProducer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})


def confluent_batched(bootstrap: str) -> Figures:
    ended = 0

    def report(error: object, _message: object) -> None:
        nonlocal ended
        assert error is None, error
        ended += 1

    producer = confluent(bootstrap, **{"batch.num.messages": BATCH_RECORDS, "linger.ms": 5})
    for records in (RECORDS // 10, RECORDS):
        with Measured() as took:
            for seq in range(records):
                headers = [("aftershock", header(seq))]
                while True:
                    try:
                        producer.produce(TOPIC, VALUE, headers=headers, on_delivery=report)
                        break
                    except BufferError:
                        producer.poll(0.01)
                if seq % BREATH_RECORDS == 0:
                    producer.poll(0)
            producer.flush()
    assert RECORDS + RECORDS // 10 == ended
    return {"records_per_s": RECORDS / took.wall_s, "cpu_us_per_record": took.cpu_s / RECORDS * 1e6}


def confluent_single(bootstrap: str) -> Figures:
    producer = confluent(bootstrap, **{"linger.ms": 0, "batch.num.messages": 1})
    for trips in (ROUND_TRIPS // 10, ROUND_TRIPS):
        with Measured() as alone:
            for seq in range(trips):
                producer.produce(TOPIC, VALUE, headers=[("aftershock", header(seq))])
                producer.flush()
        with Measured() as together:
            for seq in range(0, trips, IN_FLIGHT):
                for _ in range(IN_FLIGHT):
                    producer.produce(TOPIC, VALUE, headers=[("aftershock", header(seq))], partition=0)
                producer.flush()
    return {
        "cpu_us_per_trip": alone.cpu_s / ROUND_TRIPS * 1e6,
        "cpu_us_per_trip_of_5": together.cpu_s / ROUND_TRIPS * 1e6,
    }


def confluent_paced(bootstrap: str) -> Figures:
    producer = confluent(bootstrap, **{"linger.ms": 5})
    producer.produce(TOPIC, VALUE)
    producer.flush()
    late_s, start_s = [], time.monotonic()
    with Measured() as took:
        for seq in range(RATE_PER_S * PACED_S):
            due_s = start_s + seq / RATE_PER_S
            producer.poll(max(0.0, due_s - time.monotonic()))
            while time.monotonic() < due_s:
                time.sleep(max(0.0, due_s - time.monotonic()))
            late_s.append(time.monotonic() - due_s)
            producer.produce(TOPIC, VALUE, headers=[("aftershock", header(seq))])
        producer.flush()
    return lateness(late_s) | {"cpu_us_per_record": took.cpu_s / len(late_s) * 1e6}


def kafka_python_batched(bootstrap: str) -> Figures:
    from kafka import KafkaProducer  # noqa: PLC0415  # each process loads one client

    ended = 0

    def report(_metadata: object) -> None:
        nonlocal ended
        ended += 1

    # the mock cluster answers newer ApiVersions in a way that kafka-python (and Java) can't read: so it is told
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, api_version=(2, 0), batch_size=BATCH_BYTES, linger_ms=5, acks="all"
    )
    records = RECORDS // 5
    for count in (records // 10, records):
        with Measured() as took:
            for seq in range(count):
                producer.send(TOPIC, VALUE, headers=[("aftershock", header(seq))]).add_callback(report)
            producer.flush()
    assert records + records // 10 == ended
    return {"records_per_s": records / took.wall_s, "cpu_us_per_record": took.cpu_s / records * 1e6}


def lateness(late_s: list[float]) -> Figures:
    ordered = sorted(late_s)
    return {"late_p50_ms": ordered[len(ordered) // 2] * 1e3, "late_p99_ms": ordered[len(ordered) * 99 // 100] * 1e3}


# -- the runner

CASES: dict[str, Callable[[str], Any]] = {
    "reference-batched": reference_batched,
    "confluent-batched": confluent_batched,
    "kafka_python-batched": kafka_python_batched,
    "reference-single": reference_single,
    "confluent-single": confluent_single,
    "echo-single": echo_single,
    "reference-paced": reference_paced,
    "confluent-paced": confluent_paced,
}
HIGHER_IS_BETTER = {"records_per_s"}


def child(case: str, bootstrap: str) -> None:
    """One client, one measurement: its figures on standard output."""
    function = {**CASES, "reference-full": reference_full, "echo-server": echo_server}[case]
    figures = asyncio.run(function(bootstrap)) if asyncio.iscoroutinefunction(function) else function(bootstrap)
    print(json.dumps(figures), flush=True)


def measure(case: str, cluster: MockCluster) -> Figures:
    done = subprocess.run([sys.executable, __file__, case, cluster.bootstrap], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def measure_full() -> Figures:
    with MockCluster() as cluster:
        cluster.create(TOPIC, PARTITIONS)
        command = [sys.executable, __file__, "reference-full", cluster.bootstrap]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            process.stdout.readline()
            cluster.down()
            process.stdin.write("\n")
            process.stdin.flush()
            return dict(json.loads(process.stdout.readline()))


def best(rounds: list[Figures]) -> Figures:
    return {name: (max if name in HIGHER_IS_BETTER else min)(figures[name] for figures in rounds) for name in rounds[0]}


def main() -> int:
    with MockCluster() as cluster:
        cluster.create(TOPIC, PARTITIONS)
        rounds = [{case: measure(case, cluster) for case in CASES} for _ in range(ROUNDS)]
    found = {case: best([each[case] for each in rounds]) for case in CASES} | {"reference-full": measure_full()}
    for case, figures in found.items():
        print(f"{case:<22}" + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    rate = {
        client: found[f"{client}-batched"]["records_per_s"] for client in ("reference", "confluent", "kafka_python")
    }
    checks = {
        "rate over confluent's, at least 0.6": (rate["reference"] / rate["confluent"], 0.6, 1e9),
        "rate over kafka-python's, at least 3": (rate["reference"] / rate["kafka_python"], 3, 1e9),
        "us of CPU a round trip, one at a time, at most 30": (found["reference-single"]["cpu_us_per_trip"], 0, 30),
        "us of CPU a round trip, five in flight, at most 30": (
            found["reference-single"]["cpu_us_per_trip_of_5"],
            0,
            30,
        ),
        "ms late at 500/s, p99, at most 3": (found["reference-paced"]["late_p99_ms"], 0, 3),
        "MiB resident with 32 MiB of buffer, at most 150": (found["reference-full"]["rss_mib"], 0, 150),
    }
    for name, (value, least, most) in checks.items():
        print(f"{'ok  ' if least <= value <= most else 'MISS'} {name}: {value:.2f}")
    return 0 if all(least <= value <= most for value, least, most in checks.values()) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    else:
        sys.exit(main())
