"""The producer of a flood, on librdkafka's mock cluster: its rate, and its two ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator


PARTITIONS, RECORD_BYTES, RATE = 3, 10_000, 500_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 2, "log_level": 0})
    yield ",".join(f"{broker.host}:{broker.port}" for broker in mock.list_topics("t", timeout=10).brokers.values())
    mock.flush(1)


def written(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    try:
        places = [TopicPartition("t", number) for number in range(PARTITIONS)]
        return [consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]  # type: ignore[index]
    finally:
        consumer.close()


def start(bootstrap: str, for_ms: int) -> subprocess.Popen[bytes]:
    order = {"bootstrap": bootstrap, "fault": "it", "topic": "t", "partitions": PARTITIONS, "for_ms": for_ms}
    order |= {"bytes_per_s": RATE, "record_size": RECORD_BYTES}
    command = [sys.executable, "-P", "-m", "aftershock.harness.world.flood_process", json.dumps(order)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def test_it_sends_at_its_rate_and_ends_after_its_time(bootstrap: str) -> None:
    """Of two seconds, never more than is due, in all partitions alike."""
    before = written(bootstrap)
    with start(bootstrap, 2_000) as process:
        assert 0 == process.wait(60)
    sent = [after - earlier for after, earlier in zip(written(bootstrap), before, strict=True)]
    assert 0 < sum(sent) <= 2 * RATE / RECORD_BYTES
    assert max(sent) - min(sent) <= 1 + sum(sent) // 10


def test_it_ends_with_the_process_that_started_it(bootstrap: str) -> None:
    """At the end of its standard input, which the end of that process closes."""
    before = sum(written(bootstrap))
    with start(bootstrap, 600_000) as process:
        deadline_s = time.monotonic() + 60
        while sum(written(bootstrap)) == before:
            assert time.monotonic() < deadline_s, "it has sent nothing"
        assert process.stdin is not None
        process.stdin.close()
        assert 0 == process.wait(60)
