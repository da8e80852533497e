"""The conformance run on a real cluster: correct programs pass, and the check for each planted defect catches it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.harness.adhoc.conformance import LaunchedCluster, leased_cluster, text
from aftershock.harness.cli import adhoc
from aftershock.tests.unit.workloads.adapters.steps import EXAMPLE
from aftershock.workloads.adapters.conformance import commit, consume, group, produce
from aftershock.workloads.adapters.conformance.bench import ONCE, Bench
from aftershock.workloads.adapters.conformance.checks import CHECKS, Check, judge
from aftershock.workloads.adapters.exec_protocol import INTEGERS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

PATIENT_S = 30.0
IMPATIENT_S = 3.0
BROKEN = Path(__file__).with_name("broken_client.py")

EXAMINED = [pytest.param(op, check, id=f"{op}-{check.__name__}") for op, checks in CHECKS.items() for check in checks]

BURST, READ, COMMITS = (
    produce.acks_a_burst_once_at_its_offsets,
    consume.reads_from_start_positions,
    commit.acks_and_keeps_commits,
)
PLANTED: list[tuple[str, Check, str]] = [
    ("no-commit", consume.continues_from_committed_offsets, "at the latest on `close`"),
    ("dies", BURST, ""),
    ("gives-up", BURST, "you cannot continue"),
    ("hangs", BURST, "`ready` means"),
    ("wrong-seq", BURST, "exactly once"),
    ("twice", BURST, "exactly once"),
    ("fails-what-is-written", BURST, "you gave up"),
    ("pretends", BURST, "Kafka has acknowledged it"),
    ("duplicates", BURST, "Send each record unchanged"),
    ("no-null", BURST, "Send each record unchanged"),
    ("no-headers", BURST, "Send each record unchanged"),
    ("eager", produce.acks_nothing_during_an_outage, "An acknowledgement comes from Kafka"),
    ("late", produce.keeps_deadlines, "exactly once"),
    ("leaves", produce.reports_open_records_on_close, "exactly once"),
    ("outlives", produce.exits_with_the_worker, "The end of standard input means exit"),
    ("twice", READ, "in the order of the partition"),
    ("skips", READ, "in the order of the partition"),
    ("swaps", READ, "in the order of the partition"),
    ("wrong-size", READ, "`mark` is the value"),
    ("no-mark", READ, "`mark` is the value"),
    ("from-the-start", READ, "read every partition from `positions`"),
    ("unassigned", READ, "Send `assigned` at every assignment"),
    ("half-assigned", READ, "Send `assigned` at every assignment"),
    ("some-mark", consume.reports_foreign_records, "`mark` is the value"),
    ("outlives", consume.exits_with_the_worker, "The end of standard input means exit"),
    ("silent-revocation", group.shares_the_partitions, "Send `revoked` before another member"),
    ("no-commit", group.takes_over_from_a_member_that_leaves, "before you give up partitions"),
    ("commits-ahead", group.commits_what_it_has_reported, "A commit covers only records"),
    ("no-took", group.commits_what_it_has_reported, "`took_us`, the time from your request"),
    ("assigned-owned", group.delivers_only_what_it_owns, "An assignment lists only the partitions"),
    ("stale", COMMITS, "They must reach Kafka in the order of `seq`"),
    ("eager", commit.acks_nothing_during_an_outage, "An acknowledgement comes from Kafka"),
    ("late", commit.keeps_deadlines, "exactly once"),
    ("outlives", commit.exits_with_the_worker, "The end of standard input means exit"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LaunchedCluster]:
    with leased_cluster(None, print) as cluster:
        yield cluster


@pytest.mark.parametrize(("op", "check"), EXAMINED)
def test_a_correct_client_passes(cluster: LaunchedCluster, op: str, check: Check) -> None:
    """The documented example passes, and a committer: no check requires more than docs/EXEC.md does."""
    command = [sys.executable, str(BROKEN), "none"] if op == "commit" else EXAMPLE
    result = judge(op, check, Bench(command, cluster, PATIENT_S))
    if op == "transaction":  # which the example does not offer
        assert ("skipped", True) == (result.outcome, "accepts" in result.reason)
    else:
        assert ("passed", "") == (result.outcome, result.reason)


@pytest.mark.parametrize(("fault", "check", "rule"), PLANTED, ids=[f"{c[0]}-{c[1].__name__}" for c in PLANTED])
def test_a_planted_defect_is_caught(
    cluster: LaunchedCluster, monkeypatch: pytest.MonkeyPatch, fault: str, check: Check, rule: str
) -> None:
    """The check fails the defective program, and names the rule of docs/EXEC.md that the program breaks."""
    for op in (produce, commit):
        monkeypatch.setattr(op, "GRACE_S", 1.0)
    monkeypatch.setattr("aftershock.workloads.adapters.conformance.bench.EXIT_S", 1.0)
    patience_s = IMPATIENT_S if fault in ("hangs", "wrong-seq", "skips") else PATIENT_S
    result = judge("op", check, Bench([sys.executable, str(BROKEN), fault], cluster, patience_s))
    assert "failed" == result.outcome
    assert rule in result.rule
    if fault in ("dies", "gives-up"):
        assert "it hurts" in result.reason  # on its standard error


def test_three_planted_defects_break_a_line_of_the_protocol(
    cluster: LaunchedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wrong type, a missing acknowledgement and a wrong offset in the example: the line or order, and the rule."""
    for fault, told, rule in (
        ("wrong-type", "(field offset of acked: Input should be a valid integer): ", str(INTEGERS)),
        ("forgets", "the client does not report all of 300 records within 3 s", str(ONCE)),
        ("wrong-offset", "the client acked record ", str(produce.ACKED)),
    ):
        result = judge("produce", BURST, Bench([sys.executable, str(BROKEN), fault], cluster, IMPATIENT_S))
        assert "failed" == result.outcome
        assert told in result.reason
        assert rule == result.rule
        print(text(result))
    assert capfd.readouterr().out.count("FAILED  produce: ") == 3


def test_the_command_on_a_given_cluster(cluster: LaunchedCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """On a cluster at an address, checks that need an outage are skipped and do not count as failures."""
    address = {"bootstrap": cluster.bootstrap, "allow_attach": [cluster.bootstrap]}
    assert 0 == adhoc.conformance([*EXAMPLE], ["produce"], as_json=True, **address)
    told = json.loads(capfd.readouterr().out)["operations"]["produce"]
    assert "passes" == told["result"]
    skipped = [row["check"] for row in told["checks"] if row["outcome"] == "skipped"]
    assert ["acks_nothing_during_an_outage", "keeps_deadlines"] == skipped
