"""Space and rates that a plan needs: the estimate against real runs and real spools, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import AftershockError, PlanError
from aftershock.faults.timeline.timeline import Timeline, from_json
from aftershock.harness.run import estimate as limits
from aftershock.harness.run import preflight
from aftershock.harness.run.estimate import SAVE_PERIOD_S, SEGMENTS_A_MOVE, ClientLoad, estimate, loads, rate_problems
from aftershock.harness.run.preflight import space
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.load.outcomes import move
from aftershock.workloads.load.spool import ROWS, ConsumeSpool, ProduceSpool, Status

STORED = Path(__file__).parents[3] / "data" / "evidence"
RUNS = ("attached", "commits", "demo", "failing", "kip", "readme")
FACTOR = 4
"""The estimate is up to 3.7 times the bytes of these short runs, and 1.4 times those of a run of two hours."""


def timeline(name: str = "demo") -> Timeline:
    return from_json((STORED / name / "timeline.json").read_bytes())


def scaled(rate_per_s: float, hours: float) -> Timeline:
    """Return the plan of the run ``demo`` with one arm, another rate and another length."""
    plan = timeline()
    workload = dict(plan.workloads[0])
    workload["produce"] = workload["produce"] | {"rate_per_s": rate_per_s}
    workload["arms"] = dict([*workload["arms"].items()][:1])
    return replace(plan, workloads=(workload,), length_ms=int(hours * 3_600_000))


@pytest.mark.parametrize("name", RUNS)
def test_the_estimate_is_above_the_bytes_of_a_real_run(name: str) -> None:
    """The evidence of a run takes less than the estimate (without logs and report), and at least a quarter of it."""
    home = STORED / name
    tables = ("outcomes", "log", "replicas", "offsets", "metrics", "transactions", "batches")
    files = [path for table in tables for path in (home / table).glob("*.parquet")]
    actual = sum(path.stat().st_size for path in [*files, home / "events.jsonl", home / "journal.jsonl"])
    need = estimate(timeline(name)).disk_bytes - limits._RUN
    assert actual <= need <= FACTOR * actual


def test_shared_memory_is_bounded_by_the_rate_and_not_by_the_length() -> None:
    """A day at 500 records a second takes as much memory as an hour, and 24 times the disk space."""
    hour, day = estimate(scaled(500, 1)), estimate(scaled(500, 24))
    assert hour.memory_bytes == day.memory_bytes < 64 << 20
    assert 20 < (day.disk_bytes - limits._RUN) / (hour.disk_bytes - limits._RUN) < 25
    assert day.rows == pytest.approx(24 * hour.rows, rel=0.03)


def test_real_spools_stay_within_the_estimate(tmp_path: Path) -> None:
    """A producer and a consumer at 3,000/s, of whose records none has a result during an outage of 20 s."""
    rate, deadline_s, kept, moved_us, peak, ended = 3_000, 20.0, 0, 0, 0, 0
    plan = scaled(rate, 1)
    assert [("produce", rate, deadline_s), ("consume", rate, 0.0)] == [
        (client.op, client.rate_per_s, client.deadline_s) for client in loads(plan)
    ]
    bench, outcomes = Bench(tmp_path, "127.0.0.1:1", "orders"), tmp_path / "outcomes"
    outcomes.mkdir()
    producer, consumer = ProduceSpool(bench.spool, bench.produce()), ConsumeSpool(bench.spool, bench.consume())
    for seq in range(rate * 90):
        now_us = seq * 1_000_000 // rate
        producer.begin(seq, intended_us=now_us, deadline_us=now_us + 20_000_000, sent_us=now_us, size_bytes=1)
        while not 35_000_000 < now_us < 55_000_000 and ended <= seq:
            producer.end(ended, done_us=now_us, status=Status.OK, code=0)
            consumer.append(
                producer_id=0, seq=ended, intended_us=0, done_us=now_us, partition=0, offset=ended,
                high_watermark=ended, leader_epoch=0, size_bytes=1,
            )  # fmt: skip
            ended += 1
        if seq % 1_000 == 0:
            producer.idle()
            consumer.idle()
        if seq % (rate * 5) == 0:  # as the runner does
            segments = len([*bench.spool.glob("*/*.rows")])
            peak = max(peak, sum(path.stat().st_size for path in bench.spool.glob("*/*.rows")))
            if segments - kept >= SEGMENTS_A_MOVE or now_us - moved_us >= SAVE_PERIOD_S * 1e6:
                move(bench.spool, outcomes)
                kept, moved_us = len([*bench.spool.glob("*/*.rows")]), now_us
    assert peak > 10 * ROWS * 64
    assert peak <= estimate(plan).memory_bytes <= FACTOR * peak


def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path) -> None:
    """Each problem has what is needed, where, what is free, and what to do."""
    said: list[str] = []
    with pytest.raises(PlanError) as refused:
        preflight.preflight(
            scaled(90_000, 24), tmp_path / "runs", tmp_path, {"confluent produce": 50_000.0}, said.append
        )
    text = str(refused.value)
    assert "at most 24 h" in said[0]
    assert f"in {tmp_path / 'runs'} (" in said[0]
    assert "the evidence and the brokers' records need about " in text
    assert "free disk space, choose another --out, lower the rates, or shorten the plan" in text
    assert "90,000/s exceeds the 50,000/s that one confluent client reached on this host" in text


def test_a_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Docker's default of 64 MiB a run at a low rate fits, and one at a high rate is told what to do."""
    usage = type("Usage", (), {"free": 64 << 20})
    real = preflight.shutil.disk_usage
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage if path == tmp_path / "shm" else real(path))
    (tmp_path / "shm").mkdir()
    sentence, problems = space(scaled(200, 24), tmp_path, None, tmp_path / "shm")
    assert f"in {tmp_path / 'shm'} (67.1 MB free)" in sentence
    assert [] == problems
    (problem,) = space(scaled(20_000, 1), tmp_path, None, tmp_path / "shm")[1]
    assert (
        f"in {tmp_path / 'shm'}, which has 67.1 MB free; enlarge it (in a container: docker run --shm-size=1g)"
        in problem
    )


def test_processes_share_a_rate_and_pods_need_no_core_of_this_host() -> None:
    limits = {"confluent produce": 50_000.0}
    shared = ClientLoad("orders/base produce", "confluent", "produce", 90_000, 20, processes=2)
    assert [] == rate_problems([shared], limits, 2)
    (problem,) = rate_problems([replace(shared, rate_per_s=110_000)], limits, 4)
    assert "55,000/s exceeds the 50,000/s that one confluent client reached" in problem
    assert [] == rate_problems([replace(shared, rate_per_s=10**6, here=False)], limits, 1)


def test_rates_of_each_client_and_of_all_together() -> None:
    """A rate above the client's limit, an absurd rate without a calibration, and a sum for which there are no cores."""
    one = ClientLoad("orders/base produce", "confluent", "produce", 40_000, 20)
    limits = {"confluent produce": 50_000.0}
    assert [] == rate_problems([one], limits, 1)
    assert [] == rate_problems([one] * 8, {}, 1)
    assert [] == rate_problems([replace(one, rate_per_s=90_000, closed_loop=True)], limits, 1)
    (problem,) = rate_problems([one, one], limits, 1)
    assert problem.startswith("the clients together need 1.6 cores at the rates that this host reached")
    (problem,) = rate_problems([replace(one, rate_per_s=999_999)], {}, 1)
    assert "999,999/s exceeds 200,000/s, which no client process reaches on any host" in problem


def test_limits_are_those_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored calibration is read back; that of another host is ignored; a damaged file is an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert {} == limits.read_limits()
    path = limits.store_limits({"confluent produce": 1234.5})
    assert path == tmp_path / "aftershock" / "calibration.json"
    assert {"confluent produce": 1234.5} == limits.read_limits()
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 999)
    assert {} == limits.read_limits()
    path.write_text('{"records_per_s": 3}')
    with pytest.raises(AftershockError, match=r"not a calibration .*; measure again: aftershock doctor --calibrate"):
        limits.read_limits()
