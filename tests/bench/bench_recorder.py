"""What the recorder costs a client, in nanoseconds a record: ``python tests/bench/bench_recorder.py``.

Absolute figures say more about the machine than about us, so each stands beside ``list.append`` in the same run. Exits
with 1 when a record costs more than half a microsecond.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aftershock.workloads.load.assignment import ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.spool import ConsumeSpool, ProduceSpool, Status, spool_home

RECORDS = 200_000
ROUNDS = 5
LIMIT_NS = 500.0


def common(home: Path, worker: str) -> dict[str, object]:
    return {
        "run_id": "bench",
        "origin_ns": 0,
        "worker": worker,
        "workload": "w",
        "arm": "a",
        "topic": "t",
        "topic_id": "t",
        "partitions": 1,
        "bootstrap": "b",
        "rack": "a",
        "spool": home,
        "events": home / "events",
    }


def producing(home: Path, name: str) -> Callable[[int], None]:
    told = common(home, name) | {"producer_id": 0, "rate_per_s": 1, "seed": 0}
    spool = ProduceSpool(home, ProduceAssignment.model_validate(told | {"record_size_min": 1, "record_size_max": 1}))
    ok = Status.OK

    def record(seq: int) -> None:
        spool.begin(seq, intended_us=seq, deadline_us=seq, sent_us=seq, size_bytes=1000)
        spool.end(seq, done_us=seq, status=ok, code=0, partition=3, offset=seq)

    return record


def consuming(home: Path, name: str) -> Callable[[int], None]:
    spool = ConsumeSpool(home, ConsumeAssignment.model_validate(common(home, name)))

    def record(seq: int) -> None:
        spool.append(
            producer_id=0,
            seq=seq,
            intended_us=seq,
            done_us=seq,
            partition=3,
            offset=seq,
            high_watermark=seq,
            leader_epoch=0,
            size_bytes=1000,
        )

    return record


def appending(_home: Path, _name: str) -> Callable[[int], None]:
    rows: list[int] = []

    def record(seq: int) -> None:
        rows.append(seq)

    return record


def ns_a_record(make: Callable[[Path, str], Callable[[int], None]]) -> float:
    """Return the best of ROUNDS: the noise of a shared host only ever adds."""
    best = float("inf")
    with tempfile.TemporaryDirectory(dir=spool_home("bench", Path(tempfile.gettempdir())).parent) as home:
        for number in range(ROUNDS):
            record = make(Path(home), f"w{number}")
            begun = time.perf_counter_ns()
            for seq in range(RECORDS):
                record(seq)
            best = min(best, (time.perf_counter_ns() - begun) / RECORDS)
    return best


def main() -> int:
    append_ns = ns_a_record(appending)
    costs = {"produce (begin + end)": ns_a_record(producing), "consume (append)": ns_a_record(consuming)}
    sys.stdout.write(f"{'list.append':24}{append_ns:8.0f} ns/record\n")
    for name, cost_ns in costs.items():
        sys.stdout.write(f"{name:24}{cost_ns:8.0f} ns/record {cost_ns / append_ns:6.1f} x list.append\n")
    return int(max(costs.values()) > LIMIT_NS)


if __name__ == "__main__":
    sys.exit(main())
