"""Damaged and hostile bytes: always our error or a valid message, within bounds of memory and time."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.fetch.v18 import response as fetch
from kio.schema.produce.v12 import response as produce

from aftershock.tests.unit.workloads.kafka.wire import fuzz
from aftershock.workloads.kafka.wire.decoder import ITEMS_MAX, decode
from aftershock.workloads.kafka.wire.encoder import encode

ROUNDS = 8_000
WORST_BYTES = 250_000_000


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_responses_are_read_or_refused(seed: int) -> None:
    """Thousands of responses with flipped bits, cuts, huge lengths and pieces of others never end the process.

    It runs in 64 MiB and two minutes of CPU time of its own; that both fates occur often shows that bodies are reached.
    """
    child = run("-m", fuzz.__name__, str(seed), str(ROUNDS))
    assert 0 == child.returncode, child.stderr[-2000:]
    tally = json.loads(child.stdout)
    assert sum(tally.values()) == ROUNDS
    assert min(tally["read"], tally["refused"]) > ROUNDS / 50


def test_kio_s_own_reader_would_not_do() -> None:
    """Why there is a decoder of ours: ten bytes that claim 2^31 items end a process of two GiB that reads with kio."""
    script = (
        "import resource; from kio.serial import entity_reader\n"
        "from kio.schema.produce.v11.response import ProduceResponse as R\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "entity_reader(R)(bytes.fromhex('ffffffff07') + bytes(5), 0)\n"
    )
    assert run("-c", script).returncode < 0


def produced(count: int) -> produce.ProduceResponse:
    hint = produce.LeaderIdAndEpoch(leader_id=70_000, leader_epoch=70_000)  # type: ignore[arg-type]
    partitions = tuple(
        produce.PartitionProduceResponse(
            index=index,  # type: ignore[arg-type]
            error_code=999,  # type: ignore[arg-type]
            base_offset=1 << 40,  # type: ignore[arg-type]
            log_append_time=datetime(2026, 1, 1, tzinfo=UTC),  # type: ignore[arg-type]
            log_start_offset=1 << 40,  # type: ignore[arg-type]
            record_errors=(),
            error_message="e",
            current_leader=hint,
        )
        for index in range(1000, 1000 + count)
    )
    return produce.ProduceResponse(responses=(produce.TopicProduceResponse(name="t", partition_responses=partitions),))  # type: ignore[arg-type]


def fetched(count: int) -> fetch.FetchResponse:
    big = {"high_watermark": 1 << 40, "last_stable_offset": 1 << 40, "log_start_offset": 1 << 40}
    partitions = tuple(
        fetch.PartitionData(
            partition_index=index,  # type: ignore[arg-type]
            error_code=999,  # type: ignore[arg-type]
            aborted_transactions=None,
            preferred_read_replica=70_000,  # type: ignore[arg-type]
            records=b"r",  # type: ignore[arg-type]
            current_leader=fetch.LeaderIdAndEpoch(leader_id=70_000, leader_epoch=70_000),  # type: ignore[arg-type]
            diverging_epoch=fetch.EpochEndOffset(epoch=70_000, end_offset=1 << 40),  # type: ignore[arg-type]
            snapshot_id=fetch.SnapshotId(end_offset=1 << 40, epoch=70_000),  # type: ignore[arg-type]
            **big,  # type: ignore[arg-type]
        )
        for index in range(1000, 1000 + count)
    )
    topic = fetch.FetchableTopicResponse(topic_id=UUID(int=1), partitions=partitions)
    return fetch.FetchResponse(throttle_time=timedelta(0), error_code=0, session_id=1, responses=(topic,))  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [produced, fetched])
def test_the_most_items_that_a_message_may_have_fit_into_memory(made: Callable[[int], Any]) -> None:
    """The fattest items there are, every field a new object, every tag there, ITEMS_MAX of them: within bounds."""
    count = 2_000
    message = made(count)
    encoded = encode(message)
    decode(type(message), encoded)  # compiles
    tracemalloc.start()
    try:
        decoded, _ = decode(type(message), encoded)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message == decoded
    assert peak_bytes / count * ITEMS_MAX < WORST_BYTES
