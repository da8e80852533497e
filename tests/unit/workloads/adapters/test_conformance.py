"""The conformance run itself: a correct client passes, and each planted defect is caught by the check for it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.adapters.steps import EXAMPLE
from aftershock.workloads.adapters.conformance import commit, consume, produce
from aftershock.workloads.adapters.conformance.__main__ import CHECKS, Check, examine, judge, main
from aftershock.workloads.adapters.conformance.bench import Bench, StandingCluster
from aftershock.workloads.adapters.conformance.mock_cluster import MockCluster

PATIENT_S = 30.0
IMPATIENT_S = 3.0
BROKEN = Path(__file__).with_name("broken_client.py")

PASSED = {f"{op}-{check.__name__}": check for op, checks in CHECKS.items() for check in checks}

CAUGHT: list[tuple[str, Check, str]] = [
    ("hangs", produce.acks_a_burst_once_at_its_offsets, "does not say ready within"),
    ("dies", produce.acks_a_burst_once_at_its_offsets, "exit status 3"),
    ("noise", produce.acks_a_burst_once_at_its_offsets, "got one"),
    ("twice", produce.acks_a_burst_once_at_its_offsets, "twice; report the result of each order once"),
    ("wrong-seq", produce.acks_a_burst_once_at_its_offsets, "does not report all"),
    ("wrong-offset", produce.acks_a_burst_once_at_its_offsets, "where"),
    ("fails-what-is-written", produce.acks_a_burst_once_at_its_offsets, "although all brokers were up"),
    ("forgets", produce.acks_a_burst_once_at_its_offsets, "does not report all"),
    ("pretends", produce.acks_a_burst_once_at_its_offsets, "acked record 13"),
    ("duplicates", produce.acks_a_burst_once_at_its_offsets, "the log of the topic has 301"),
    ("no-null", produce.acks_a_burst_once_at_its_offsets, "another record"),
    ("no-headers", produce.acks_a_burst_once_at_its_offsets, "another record"),
    ("eager", produce.acks_nothing_during_an_outage, "only after Kafka acknowledges it"),
    ("late", produce.keeps_deadlines, "fail all records that have a deadline of 2000 ms within"),
    ("leaves", produce.reports_open_records_on_close, "report every record before bye"),
    ("outlives", produce.exits_with_the_worker, "still runs"),
    ("hangs", consume.reads_from_start_positions, "does not say ready"),
    ("noise", consume.reads_from_start_positions, "got one"),
    ("twice", consume.reads_from_start_positions, "twice"),
    ("skips", consume.reads_from_start_positions, "does not report every record"),
    ("swaps", consume.reads_from_start_positions, "after a later offset"),
    ("wrong-size", consume.reads_from_start_positions, "bytes"),
    ("no-mark", consume.reads_from_start_positions, "mark"),
    ("from-the-start", consume.reads_from_start_positions, "should not have read"),
    ("unassigned", consume.reads_from_start_positions, "ready before its assigned partitions"),
    ("half-assigned", consume.reads_from_start_positions, "reports as assigned only [0, 1]"),
    ("some-mark", consume.reports_foreign_records, "mark None"),
    ("no-commit", consume.continues_from_committed_offsets, "committed offsets"),
    ("outlives", consume.exits_with_the_worker, "still runs"),
    ("stale", commit.acks_and_keeps_commits, "the last commit of group"),
    ("eager", commit.acks_nothing_during_an_outage, "only after Kafka acknowledges it"),
    ("late", commit.keeps_deadlines, "fail all commits that have a deadline of 2000 ms within"),
    ("outlives", commit.exits_with_the_worker, "still runs"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("check", PASSED.values(), ids=PASSED.keys())
def test_a_correct_client_passes(cluster: MockCluster, check: Check) -> None:
    """No check requires more than docs/EXEC.md does."""
    assert judge(check, Bench([sys.executable, str(BROKEN), "none"], cluster, PATIENT_S)) == ("ok", "")


@pytest.mark.parametrize(("fault", "check", "complaint"), CAUGHT, ids=[f"{c[0]}-{c[1].__name__}" for c in CAUGHT])
def test_a_planted_fault_is_caught(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, fault: str, check: Check, complaint: str
) -> None:
    """A check fails each faulty client, and its message says what the client did."""
    for op in (produce, commit):
        monkeypatch.setattr(op, "GRACE_S", 1.0)
    monkeypatch.setattr("aftershock.workloads.adapters.conformance.bench.EXIT_S", 1.0)
    patience_s = IMPATIENT_S if complaint.startswith("does not") else PATIENT_S
    how, why = judge(check, Bench([sys.executable, str(BROKEN), fault], cluster, patience_s))
    assert how == "FAILS", fault
    assert complaint in why


def test_the_example_and_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    """The documented example conforms to the protocol, and the command exits with status 0."""
    assert main(["--op", "consume", "--", *EXAMPLE]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == "the client conforms to the protocol"
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * len(consume.CHECKS)


def test_the_command_line_of_a_client_that_fails() -> None:
    """The command prints every failure with its reason and exits with status 1."""
    module = [sys.executable, "-P", "-m", "aftershock.workloads.adapters.conformance"]
    options = ["--op", "produce", "--patience", "1", "--", "no-such-program-at-all"]
    done = subprocess.run([*module, *options], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.count("FAILS") == len(produce.CHECKS)
    assert "cannot start 'no-such-program-at-all'" in done.stdout
    assert f"the client fails {len(produce.CHECKS)} of the conformance checks" in done.stdout


def test_outage_checks_are_skipped_on_a_given_cluster(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster at an address, checks that need an outage are skipped and do not count as failures."""
    said: list[str] = []
    standing = StandingCluster(cluster.bootstrap)
    monkeypatch.setattr(standing, "create", cluster.create)  # The mock cluster has no CreateTopics.
    bench = Bench(EXAMPLE, standing, PATIENT_S)
    assert examine(bench, ["consume"], said.append) == 0
    (left_out,) = [line for line in said if line.startswith("-")]
    assert "must not stop the brokers" in left_out


def test_an_unreachable_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named within bounded time, and is not counted as the client's failure."""
    monkeypatch.setattr("aftershock.workloads.adapters.conformance.bench._PATIENCE_S", 0.5)
    with pytest.raises(WorkloadError, match=r"127\.0\.0\.1:1 did not create the topic t"):
        StandingCluster("127.0.0.1:1").create("t")
