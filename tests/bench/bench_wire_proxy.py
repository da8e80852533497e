"""What the wire proxy costs, side by side with none: ``python tests/bench/bench_wire_proxy.py``.

Client, proxy and peer are three processes, as in a run; a round without the proxy and one with it take turns. First
round trips of a small request, one at a time: what the proxy adds at p50 and at p99, and as how many times as long.
Then Produce requests of 256 KiB, five in flight: MB/s. The same with a rule in force that meets other clients, with one
that must look at every topic, and with one that changes nothing but takes every frame apart.

Exits with 1 when the proxy without a rule adds more than 0.3 ms at p50, or takes less than 20 MB/s.
"""

import asyncio
import json
import multiprocessing
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema

from aftershock.faults.plan.catalogue import save_measurements
from aftershock.faults.wire_proxy.messages import build_entity
from aftershock.faults.wire_proxy.proxy import LOOPBACK
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.codec import encode_frame
from aftershock.workloads.kafka.wire.encoder import encode

ROUNDS, ROUND_TRIPS = 7, 1_000
FRAME_BYTES, FRAMES, IN_FLIGHT = 256 * 1024, 200, 5
P50_ADDED_MS_MAX, MB_PER_S_MIN = 0.3, 20.0
PRODUCE, METADATA = 0, 3
RULES: dict[str, Mapping[str, Any] | None] = {
    "no rule": None,
    "a rule for other clients": {"do": "drop_response", "clients": ["somebody-else"]},
    "a rule for another topic": {"do": "drop_response", "topic": "another"},
    "a rule for every answer": {"do": "strip_hints", "hints": ["current_leader"]},
}


class Cost(NamedTuple):
    """Of one round: round trips in ms, and MB/s."""

    p50_ms: float
    p99_ms: float
    mb_per_s: float


def small_request() -> bytes:
    return encode_frame(build_entity(load_request_schema(METADATA, 12), {"topics": ()}), 7, "bench")


def large_request() -> bytes:
    kind: Any = load_request_schema(PRODUCE, 12)
    struct_of_topic = kind.__dataclass_fields__["topic_data"].type.__args__[0]
    of_partition = struct_of_topic.__dataclass_fields__["partition_data"].type.__args__[0]
    records = build([bytes(FRAME_BYTES)], timestamps_ms=[0])
    topic = build_entity(
        struct_of_topic, {"name": "bench", "partition_data": (build_entity(of_partition, {"records": records}),)}
    )
    return encode_frame(build_entity(kind, {"acks": -1, "topic_data": (topic,)}), 7, "bench")


def serve(pipe: Pipe) -> None:
    """A peer that answers whatever it is asked, in a process of its own."""
    answers = {}
    for key, version in ((PRODUCE, 12), (METADATA, 12)):
        kind = load_response_schema(key, version)
        body = encode(kind.__header_schema__(correlation_id=7)) + encode(build_entity(kind, {}))
        answers[key] = struct.pack(">i", len(body)) + body

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                message = await reader.readexactly(size)
                writer.write(answers[int.from_bytes(message[:2])])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(talk, LOOPBACK, 0, limit=1 << 20)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


class Client:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = self._socket.makefile("rb")

    def round_trips_ms(self, request: bytes) -> list[float]:
        """Return sorted round trips."""
        return sorted(self._round_trip_ms(request) for _ in range(ROUND_TRIPS))

    def mb_per_s(self, request: bytes) -> float:
        """Send with a few requests in flight, like a producer."""
        began_s = time.perf_counter()
        for number in range(FRAMES + IN_FLIGHT):
            if number < FRAMES:
                self._socket.sendall(request)
            if number >= IN_FLIGHT:
                self._answer()
        return FRAMES * len(request) / (time.perf_counter() - began_s) / 1e6

    def close(self) -> None:
        self._received.close()
        self._socket.close()

    def _round_trip_ms(self, request: bytes) -> float:
        began_s = time.perf_counter()
        self._socket.sendall(request)
        self._answer()
        return (time.perf_counter() - began_s) * 1000

    def _answer(self) -> None:
        (size,) = struct.unpack(">i", self._received.read(4))
        self._received.read(size)


def cost(port: int) -> Cost:
    client = Client(port)
    trips_ms = client.round_trips_ms(small_request())
    mb_per_s = client.mb_per_s(large_request())
    client.close()
    return Cost(trips_ms[ROUND_TRIPS // 2], trips_ms[ROUND_TRIPS * 99 // 100], mb_per_s)


def compared(direct: int, through: int) -> tuple[Cost, Cost]:
    """The medians of each over all rounds, which take turns: a busy host is busy for both."""
    rounds = [(cost(direct), cost(through)) for _ in range(ROUNDS)]
    sides = zip(*rounds, strict=True)
    plain, proxied = (Cost(*(statistics.median(each) for each in zip(*side, strict=True))) for side in sides)
    return plain, proxied


def order(port: int, **said: Any) -> None:
    with socket.create_connection((LOOPBACK, port)) as connection:
        connection.sendall(json.dumps(said).encode() + b"\n")
        answer = json.loads(connection.makefile("rb").readline())
    if "error" in answer:
        raise ValueError(answer["error"])


def measure(direct: int, through: int, control: int) -> bool:
    """Prints a line for each rule; whether the proxy keeps to its limits without one."""
    sys.stdout.write(f"{'':26}{'p50 ms':>22}{'p99 ms':>24}{'MB/s':>24}\n{'':26}")
    sys.stdout.write(3 * f"{'none':>7}{'proxy':>7}{'ratio':>9} " + "\n")
    kept, rows = True, list[list[str]]()
    for name, rule in RULES.items():
        if rule:
            order(control, do="add", rule={"name": "bench", **rule})
        plain, proxied = compared(direct, through)
        order(control, do="remove", name="bench")
        shown = "".join(f"{a:8.3g}{b:8.3g}{b / a:7.2f}x" for a, b in zip(plain, proxied, strict=True))
        added_ms = proxied.p50_ms - plain.p50_ms
        sys.stdout.write(f"{name:26}{shown}   added at p50: {added_ms:.3f} ms\n")
        kept = kept and (rule is not None or (added_ms <= P50_ADDED_MS_MAX and proxied.mb_per_s >= MB_PER_S_MIN))
        pairs = [f"{a:.3g} / {b:.3g}" for a, b in zip(plain, proxied, strict=True)]
        rows.append([name, f"{added_ms:.3f} ms", *pairs])
    save_measurements("The wire proxy", ("rule", "added at p50", "p50 ms, none / proxy", "p99 ms", "MB/s"), rows)
    return kept


def main() -> int:
    ours, theirs = multiprocessing.Pipe()
    peer = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    peer.start()
    direct = ours.recv()
    told = {"ways": [["client_a-k1", "a", 1, [LOOPBACK, direct]]], "guard": [LOOPBACK, direct]}
    command = [sys.executable, "-m", "aftershock.faults.wire_proxy", json.dumps(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout
        said = json.loads(proxy.stdout.readline())
        try:
            kept = measure(direct, said["ports"]["client_a-k1"], said["control"])
        finally:
            proxy.kill()
            peer.kill()
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
