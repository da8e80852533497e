"""Batches of a log and their markers, read from a synthetic leader; waiting for open transactions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.kafka.batches import read_batches, wait_until_stable
from aftershock.tests.scripted.log import Log, marker
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.load.logread import ReadLimit, Topic

TOPIC = Topic("t", "id-of-t", 1)
ONE = BrokerId(1)


def log_of(*entries: tuple[int, int, str]) -> Log:
    """Return a log of batches of two records, and markers: (producer id, epoch, data or commit or abort)."""
    log, sequences = Log(), dict[tuple[int, int], int]()
    for producer_id, epoch, kind in entries:
        if kind != "data":
            log.end_transaction(producer_id, epoch, 0, commit=kind == "commit")
            continue
        base = sequences.get((producer_id, epoch), 0)
        sequences[producer_id, epoch] = base + 2
        traits = {"producer_id": producer_id, "producer_epoch": epoch, "transactional": producer_id >= 0}
        batch = build([b"1", b"2"], timestamps_ms=[0, 0], base_sequence=base if producer_id >= 0 else -1, **traits)
        assert not log.append(batch, 0).error
    return log


class FakeAdmin:
    """One partition with a leader; ``stable`` are the last stable offsets of successive requests."""

    def __init__(self, log: Log, stable: tuple[int, ...] = ()) -> None:
        self._log, self._stable = log, list(stable)

    def partitions(self, _topics: Any) -> tuple[PartitionState, ...]:
        return (PartitionState("t", 0, ONE, 1, (ONE,), (ONE,)),)

    def ask(self, request: Any, *, only: BrokerId) -> Any:
        assert only == ONE
        none = ErrorCode.none
        if hasattr(request, "isolation_level") and not hasattr(request, "max_wait"):
            offset = self._stable.pop(0) if request.isolation_level else self._log.end
            told = SimpleNamespace(error_code=none, partition_index=0, offset=offset)
            return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[told])])
        _, records = self._log.read(request.topics[0].partitions[0].fetch_offset, 200, 1, at_least_one=True)
        answer = SimpleNamespace(error_code=none, records=records, log_start_offset=0)
        return SimpleNamespace(error_code=none, responses=[SimpleNamespace(partitions=[answer])])


def read(log: Log, folder: Path, begin: int = 0) -> tuple[list[dict[str, Any]], dict[str, dict[int, int]]]:
    admin: Any = FakeAdmin(log)
    readable = read_batches(admin, [TOPIC], {"t": {0: log.end}}, folder, ReadLimit(5.0), {"t": {0: begin}})
    return pq.read_table(folder / "part-t.parquet").to_pylist(), readable


def test_batches_and_markers(tmp_path: Path) -> None:
    """Two transactions of one producer, the first aborted, between them a batch without a transaction."""
    log = log_of((7, 0, "data"), (7, 1, "abort"), (-1, -1, "data"), (7, 1, "data"), (7, 2, "commit"))
    found, readable = read(log, tmp_path)
    assert [(0, 1), (2, 2), (3, 4), (5, 6), (7, 7)] == [(row["first_offset"], row["last_offset"]) for row in found]
    assert [None, "abort", None, None, "commit"] == [row["marker"] for row in found]
    assert [7, 7, None, 7, 7] == [row["kafka_producer_id"] for row in found]
    assert [0, 1, None, 1, 2] == [row["kafka_epoch"] for row in found]
    assert [True, True, False, True, True] == [row["transactional"] for row in found]
    assert [0, None, None, 0, None] == [row["base_sequence"] for row in found]
    assert {0, None} == {row["coordinator_epoch"] for row in found}
    assert {"t": {0: 7}} == readable, "no client reports the marker at offset 7"


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        ([(7, 0, "data"), (7, 0, "commit"), (7, 0, "data"), (7, 0, "abort")], 2),
        ([(7, 0, "data"), (7, 0, "commit"), (7, 0, "data")], 2),
        ([(7, 0, "data"), (8, 0, "data"), (7, 0, "abort"), (8, 0, "commit")], 4),
        ([(7, 0, "data"), (7, 0, "abort")], 0),
        ([(-1, -1, "data")], 2),
    ],
)
def test_readers_of_committed_records_read_up_to(tmp_path: Path, entries: list[Any], end: int) -> None:
    """The end of the last batch that is committed, or has no transaction; markers belong to one producer each."""
    assert {"t": {0: end}} == read(log_of(*entries), tmp_path)[1]


def test_a_log_from_before_the_run_is_left_out(tmp_path: Path) -> None:
    found, _ = read(log_of((7, 0, "data"), (7, 0, "commit"), (7, 0, "data")), tmp_path, begin=3)
    assert [3] == [row["first_offset"] for row in found]


def test_a_log_that_is_not_served_is_an_error(tmp_path: Path) -> None:
    admin: Any = FakeAdmin(log_of((7, 0, "data")))
    with pytest.raises(ClusterError, match="t/0 were read only to offset 2 of 9"):
        read_batches(admin, [TOPIC], {"t": {0: 9}}, tmp_path, ReadLimit(0.05), {})


def test_waiting_for_open_transactions() -> None:
    log = log_of((7, 0, "data"))
    slept: list[float] = []
    admin: Any = FakeAdmin(log, stable=(0, 0, 2))
    assert {} == wait_until_stable(admin, [TOPIC.name], 60.0, slept.append)
    assert len(slept) == 2
    admin = FakeAdmin(log, stable=(0,) * 9)
    assert {("t", 0): (0, 2)} == wait_until_stable(admin, [TOPIC.name], 0.0, slept.append)


def test_markers_are_kafkas() -> None:
    """Key: version and type; 0 aborts, 1 commits. Value: version and coordinator epoch."""
    for commit in (True, False):
        (batch,) = parse(marker(7, 3, commit=commit))
        assert batch.marker == ("commit" if commit else "abort")
        assert (7, 3, -1) == (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence)
