"""Comparison of replicas on fake brokers: equal replicas, differences and their place, and unreadable replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.kafka.replicas import SCHEMA, STRETCH, read_replicas
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.load.logread import ReadLimit, Topic

TOPIC = Topic("orders", "t1", 1)
BROKERS = tuple(map(BrokerId, (1, 2, 3)))


def batch(base_offset: int, values: list[bytes]) -> bytes:
    return build(values, timestamps_ms=[1] * len(values), base_offset=base_offset)


def log(batches: int = 4, size: int = 5) -> list[bytes]:
    return [batch(at, [b"%d" % offset for offset in range(at, at + size)]) for at in range(0, batches * size, size)]


@dataclass
class FakeAdmin:
    """Brokers with a log each, which return two batches at a time; a broker without a log doesn't answer."""

    logs: dict[int, list[bytes]]
    config: Mapping[str, str] = field(default_factory=dict)
    log_start: int = 0
    later: dict[int, int] = field(
        default_factory=dict
    )  # How often a broker returns no records because its high watermark lags.

    def copy(self) -> "FakeAdmin":
        return self

    def close(self) -> None:
        """Nothing is open."""

    def configs(self, _kind: Any, _name: str) -> Mapping[str, str]:
        return self.config

    def partitions(self, _topics: Any) -> tuple[PartitionState, ...]:
        return (PartitionState("orders", 0, BROKERS[0], 1, BROKERS, BROKERS),)

    def ask(self, request: Any, *, only: BrokerId) -> Any:
        if only not in self.logs:
            raise AdminError(f"no broker answered FetchRequest (k{only}: refused)", "NETWORK_EXCEPTION")
        at = request.topics[0].partitions[0].fetch_offset
        self.later[only] = self.later.get(only, 0) - 1
        found = [] if self.later[only] >= 0 else [each for each in self.logs[only] if _last(each) >= at][:2]
        answer = SimpleNamespace(error_code=ErrorCode.none, records=b"".join(found), log_start_offset=self.log_start)
        return SimpleNamespace(error_code=ErrorCode.none, responses=[SimpleNamespace(partitions=[answer])])


def _last(raw: bytes) -> int:
    return int.from_bytes(raw[:8], "big") + int.from_bytes(raw[23:27], "big")


def read(admin: FakeAdmin, folder: Path, end: int = 20, begin: int = 0) -> list[dict[str, Any]]:
    read_replicas(admin, [TOPIC], {"orders": {0: end}}, folder, ReadLimit(0.2), {"orders": {0: begin}})  # type: ignore[arg-type]
    found: list[dict[str, Any]] = pq.read_table(folder).to_pylist() if list(folder.glob("*.parquet")) else []
    return found


def prints(rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, int, int]]]:
    told: dict[int, list[tuple[int, int, int]]] = {}
    for row in rows:
        told.setdefault(row["broker_id"], []).append((row["start_offset"], row["records"], row["fingerprint"]))
    return told


def test_equal_replicas_have_one_fingerprint(tmp_path: Path) -> None:
    """Also if a follower's high watermark lags; records are counted."""
    rows = read(FakeAdmin({1: log(), 2: log(), 3: log()}, later={3: 2}), tmp_path / "r")
    assert SCHEMA.names == list(rows[0])
    assert prints(rows) == dict.fromkeys((1, 2, 3), prints(rows)[1])
    assert {(0, 20, 20, None)} == {(r["start_offset"], r["end_offset"], r["records"], r["error"]) for r in rows}


def spoilt() -> list[bytes]:
    *before, last = log()
    return [*before, last[:-1] + bytes([last[-1] ^ 1])]


@pytest.mark.parametrize("other", [[*log()[:3], batch(15, [b"x"] * 5)], spoilt(), [log()[0], *log()[2:]]])
def test_a_different_replica_has_another_fingerprint(other: list[bytes], tmp_path: Path) -> None:
    """A different batch, a flipped bit that the CRC doesn't cover, and a missing batch."""
    told = prints(read(FakeAdmin({1: log(), 2: other, 3: log()}), tmp_path / "r"))
    assert told[1] == told[3]
    assert told[1] != told[2]


def test_the_range_of_a_difference_is_reported(tmp_path: Path) -> None:
    """Ranges before and after it are equal."""
    many = [batch(at, [b"x"] * 1000) for at in range(0, 3 * STRETCH, 1000)]
    other = [batch(at, [b"y" if at == STRETCH else b"x"] * 1000) for at in range(0, 3 * STRETCH, 1000)]
    told = prints(read(FakeAdmin({1: many, 2: other, 3: many}), tmp_path / "r", end=3 * STRETCH))
    assert [True, False, True] == [ours == theirs for ours, theirs in zip(told[1], told[2], strict=True)]
    assert [0, STRETCH, 2 * STRETCH] == [start for start, _, _ in told[1]]


def test_an_unreadable_replica_has_a_reason(tmp_path: Path) -> None:
    """A broker that doesn't answer, and a broker whose high watermark never reaches the end; the third replica's row
    is complete.
    """
    rows = read(FakeAdmin({1: log(), 2: log(3)}), tmp_path / "r")
    errors = {row["broker_id"]: row["error"] for row in rows if row["error"]}
    assert "broker k2 served its replica only to offset 15 of 20: there was no progress for 0.2 s" == errors[2]
    assert "refused" in errors[3]
    assert [None] == [row["error"] for row in rows if row["broker_id"] == 1]


def test_a_slow_read_goes_on_while_it_makes_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten fetches take 1.5 s; the limit of 0.2 s concerns each."""
    now_s = [0.0]
    monkeypatch.setattr("aftershock.workloads.load.logread.time.monotonic", lambda: now_s[0])

    class Slow(FakeAdmin):
        def ask(self, request: Any, *, only: BrokerId) -> Any:
            now_s[0] += 0.15
            return super().ask(request, only=only)

    rows = read(Slow(dict.fromkeys((1, 2, 3), log(20))), tmp_path / "r", end=100)
    assert [(100, None)] * 3 == [(row["records"], row["error"]) for row in rows]
    assert now_s[0] > 1.5


def test_a_stopped_read_ends_at_once(tmp_path: Path) -> None:
    """Ctrl-C during the final read doesn't wait for the end of a lagging follower."""
    limit = ReadLimit(3600)
    limit.stop()
    admin: Any = FakeAdmin({1: log(), 2: log(3), 3: log(3)})
    read_replicas(admin, [TOPIC], {"orders": {0: 20}}, tmp_path, limit.part(), {})
    rows = pq.read_table(tmp_path).to_pylist()
    assert "of 20: the run is ending" in str(rows[-1]["error"])


def test_reading_starts_at_the_log_start_or_the_run(tmp_path: Path) -> None:
    """Reading starts at the leader's log start or the start of the run, whichever is later, and stops at the run's
    end.
    """
    short = FakeAdmin({1: log()[1:], 2: log(), 3: [*log(), batch(20, [b"later"])]}, log_start=5)
    told = prints(read(short, tmp_path / "a"))
    assert told == dict.fromkeys((1, 2, 3), told[1])
    assert 15 == told[1][0][1]
    ours = prints(read(FakeAdmin({1: log(), 2: log(), 3: log()}), tmp_path / "b", begin=10))
    assert 10 == ours[1][0][1]


def test_compacted_and_empty_topics_are_left_out(tmp_path: Path) -> None:
    """Each broker compacts its replica on its own; an empty topic has nothing to compare."""
    assert [] == read(FakeAdmin({1: log()}, {"cleanup.policy": "compact,delete"}), tmp_path / "a")
    assert [] == read(FakeAdmin({1: [], 2: [], 3: []}), tmp_path / "b", end=0)
