"""What the wire layer costs, beside kio's codec and kafka-python's: ``python tests/bench/bench_codec.py``.

First the codec, in nanoseconds a partition of messages of 1,000 partitions and of one; the ratio says how many times as
long the others take. Then a whole round trip through the channel, in microseconds of CPU. Exits with 1 when our encoder
is not twice as fast as kio's, or a round trip takes 100 us.
"""

import asyncio
import io
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetch_request
from kio.schema.fetch.v16 import response as fetch
from kio.schema.metadata.v12 import response as metadata
from kio.schema.produce.v11 import request as produce_request
from kio.schema.produce.v11 import response as produce
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from aftershock.tests.unit.workloads.kafka.wire.kafka_python import message_classes
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode

ROUNDS = 5
PARTITIONS_A_ROUND = 20_000
ROUND_TRIPS = 5_000
RATIO_MIN = 2.0
ROUND_TRIP_US_MAX = 100.0
NO_TIME = timedelta(0)
TOPIC_ID = UUID(int=7)


class Sizes(NamedTuple):
    """What one operation takes on one message, in ns a partition."""

    ours: float
    kio: float
    kafka_python: float

    def __str__(self) -> str:
        others = (f"{ns:8.0f} {ns / self.ours:5.1f}x" for ns in (self.kio, self.kafka_python))
        return f"{self.ours:8.0f} " + " ".join(others)


def produced(count: int, **more: Any) -> Any:
    one = {"error_code": ErrorCode.none, "base_offset": 5, "record_errors": ()} | more
    partitions = tuple(produce.PartitionProduceResponse(index=index, **one) for index in range(count))
    return produce.ProduceResponse(
        responses=(produce.TopicProduceResponse(name="topic", partition_responses=partitions),)
    )


def produced_elsewhere(count: int) -> Any:
    hint = produce.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    return produced(count, error_code=ErrorCode.not_leader_or_follower, current_leader=hint)


def producing(count: int) -> Any:
    data = tuple(produce_request.PartitionProduceData(index=index, records=bytes(1024)) for index in range(count))
    topic = produce_request.TopicProduceData(name="topic", partition_data=data)
    return produce_request.ProduceRequest(transactional_id=None, acks=-1, timeout=NO_TIME, topic_data=(topic,))


def fetched(count: int) -> Any:
    one = {
        "error_code": ErrorCode.none,
        "high_watermark": 5,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
    }
    partitions = tuple(fetch.PartitionData(partition_index=index, records=bytes(1024), **one) for index in range(count))
    topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)
    return fetch.FetchResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, session_id=1, responses=(topic,))


def fetching(count: int) -> Any:
    one = {"fetch_offset": 5, "partition_max_bytes": 1 << 20}
    topic = fetch_request.FetchTopic(
        topic_id=TOPIC_ID,
        partitions=tuple(fetch_request.FetchPartition(partition=index, **one) for index in range(count)),
    )
    return fetch_request.FetchRequest(max_wait=NO_TIME, min_bytes=1, topics=(topic,), forgotten_topics_data=())


def described(count: int) -> Any:
    one = {
        "leader_id": 1,
        "leader_epoch": 3,
        "replica_nodes": (1, 2, 3),
        "isr_nodes": (1, 2, 3),
        "offline_replicas": (),
    }
    partitions = tuple(
        metadata.MetadataResponsePartition(error_code=ErrorCode.none, partition_index=index, **one)
        for index in range(count)
    )
    named = {"error_code": ErrorCode.none, "name": "topic", "topic_id": TOPIC_ID, "is_internal": False}
    topic = metadata.MetadataResponseTopic(partitions=partitions, **named)
    return metadata.MetadataResponse(throttle_time=NO_TIME, brokers=(), controller_id=1, topics=(topic,))


MESSAGES: dict[str, Callable[[int], Any]] = {
    "Produce request": producing,
    "Produce response": produced,
    "the same, with hints": produced_elsewhere,
    "Fetch request": fetching,
    "Fetch response": fetched,
    "Metadata response": described,
}


def ns_a_partition(operation: Callable[[], object], count: int) -> float:
    """The best of ROUNDS: the noise of a shared host only ever adds."""
    times = max(1, PARTITIONS_A_ROUND // count)
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        for _ in range(times):
            operation()
        best = min(best, (time.perf_counter_ns() - begun) / times / count)
    return best


def codec_costs(make: Callable[[int], Any], count: int) -> tuple[Sizes, Sizes]:
    """Of encoding and of decoding."""
    message = make(count)
    kind, encoded = type(message), encode(message)
    oracle = message_classes()[kind.__api_key__, kind.__type__ is EntityType.request]
    their_message = oracle.decode(encoded, version=kind.__version__)
    write, read = entity_writer(kind), entity_reader(kind)
    operations = (
        (lambda: encode(message), lambda: write(io.BytesIO(), message), their_message.encode),
        (
            lambda: decode(kind, encoded),
            lambda: read(encoded, 0),
            lambda: oracle.decode(encoded, version=kind.__version__),
        ),
    )
    encoding, decoding = (Sizes(*(ns_a_partition(one, count) for one in three)) for three in operations)
    return encoding, decoding


def serve(listener: socket.socket, bodies: Mapping[int, bytes]) -> None:
    """One connection: the body of its API for each request, behind the request's correlation id."""
    connection, _ = listener.accept()
    with connection:
        while prefix := connection.recv(4, socket.MSG_WAITALL):
            message = connection.recv(struct.unpack(">i", prefix)[0], socket.MSG_WAITALL)
            api, _, correlation_id = struct.unpack_from(">hhi", message)
            answer = struct.pack(">i", correlation_id) + bodies[api]
            connection.sendall(struct.pack(">i", len(answer)) + answer)


async def round_trip_us(address: Address, request: Any) -> float:
    """CPU of the loop's thread for one request and its reply, one after the other, system calls included."""
    channel = await Channel.open(address, client_id="bench", connect_timeout_ms=10_000)
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(ROUND_TRIPS):
            await channel.request(request, timeout_ms=10_000)
        best = min(best, (time.thread_time_ns() - begun) / ROUND_TRIPS / 1000)
    await channel.close()
    return best


def produce_round_trip_us() -> float:
    entry = ApiVersion(api_key=Api.PRODUCE, min_version=3, max_version=13)  # type: ignore[arg-type]
    versions = ApiVersionsResponse(error_code=ErrorCode.none, api_keys=(entry,), throttle_time=NO_TIME)  # type: ignore[arg-type]
    bodies = {Api.API_VERSIONS: encode(versions), Api.PRODUCE: b"\x00" + encode(produced(1))}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=serve, args=(listener, bodies))
        peer.start()
        cost_us = asyncio.run(round_trip_us(Address(*listener.getsockname()), producing(1)))
        peer.join()
    return cost_us


def main() -> int:
    slowest = float("inf")
    sys.stdout.write(f"{'ns a partition':32}{'ours':>8} {'kio':>15} {'kafka-python':>15}\n")
    for name, make in MESSAGES.items():
        for count in (1, 1000):
            encoding, decoding = codec_costs(make, count)
            sys.stdout.write(f"{name:22}{count:5} enc {encoding}\n{'':22}{'':5} dec {decoding}\n")
            slowest = min(slowest, encoding.kio / encoding.ours)
    cost_us = produce_round_trip_us()
    sys.stdout.write(f"Produce round trip of one record of 1 KiB: {cost_us:.1f} us of CPU\n")
    return int(slowest < RATIO_MIN or cost_us > ROUND_TRIP_US_MAX)


if __name__ == "__main__":
    sys.exit(main())
