"""Coverage of a run: cells count only if the fault was witnessed, met traffic, and hit the phase that the journal
gives.
"""

from datetime import date
from pathlib import Path
from typing import Any

from aftershock.faults.plan.check import load_plan
from aftershock.faults.search.coverage import CoverageLine
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.search.explore import lines_of, lines_without_verdict
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check, Status, Verdict

PLAN = load_plan("""
name: mine
topics: [{name: t, partitions: 2, replication: 3}]
workloads:
  - name: w
    produce: {topic: t, rate: 50/s, rack: a}
    consume: {topic: t, rack: b}
    arms: {one: {}, other: {client: reference}}
timing: {warmup: {min: 1s, max: 2s}, steady: 2s, fault: 2s, recovery: 2s}
faults:
  - {at: 0s, for: 4s, kind: kill, broker: leader of t/0}
  - {at: 20s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 50ms}
""").plan
TIMELINE = compile_plan(PLAN, 7, "plan.yaml", ())
KILLED, SLOWED = 10_000_000, 26_000_000
PHASES = [
    {"name": "steady", "fault": None, "start_us": 0, "end_us": KILLED},
    {"name": "fault", "fault": "kill-1", "start_us": KILLED, "end_us": KILLED + 10_000_000},
    {"name": "fault", "fault": "latency-1", "start_us": SLOWED, "end_us": SLOWED + 4_000_000},
]


def check(name: str, status: Status = Status.PASS, subject: str = "run") -> Check:
    return Check(
        id=name, kind=name.partition("/")[0], subject=subject, status=status, n=1, minimum=1, unit="", why="so"
    )


def lines(*checks: Check, **analysis: Any) -> dict[tuple[str, str], CoverageLine]:
    """Return coverage lines by kind and workload. By default all records were due, and no recovery was measured."""
    due = [
        {"metric": f"{op}.latency", "client": f"w/{arm}", "window": f"fault/{fault}", "n": 5}
        for op in ("produce", "consume")
        for arm in ("one", "other")
        for fault in ("kill-1", "latency-1")
    ]
    told = {"distributions": due, "recoveries": []} | analysis
    verdict = Verdict("r1", "mine", 7, (), checks)
    stored = JudgedRun(Path(), {"run_id": "r1", "started_at": "2026-11-22T02:00:00"}, {}, told, verdict)
    return {(line.cell.fault, line.cell.workload): line for line in lines_of(stored, PLAN, TIMELINE, PHASES, 3)}


def test_the_cells_of_a_run() -> None:
    """Each fault with the clients that can meet it, in the phase given by the journal's times."""
    found = lines()
    assert 4 + 2 == len(found)
    assert {line.exercised for line in found.values()} == {True}
    assert ("leader", "steady") == found["kill", "reference consume"].cell[1:3]
    assert ("client link", "recovering") == found["latency", "confluent produce acks=all idempotent"].cell[1:3]
    assert ("latency", "confluent consume") not in found
    assert {(date(2026, 11, 22), "r1", 7, 3)} == {(x.night, x.run_id, x.seed, x.number) for x in found.values()}


def test_a_fault_without_witness_or_exposure_is_not_exercised() -> None:
    """The reason is the check's; other faults' cells are unchanged."""
    for name in ("witness/kill-1", "exposure/kill-1"):
        found = lines(check(name, Status.INCONCLUSIVE))
        assert {(False, "so")} == {(line.exercised, line.why) for (kind, _), line in found.items() if kind == "kill"}
        assert found["latency", "reference produce acks=all idempotent"].exercised


def test_a_client_without_due_records_exercises_nothing() -> None:
    """Only clients with records due while the fault was in force count."""
    one = {"metric": "produce.latency", "client": "w/one", "window": "fault/kill-1", "n": 5}
    found = lines(distributions=[one, one | {"client": "w/other", "n": 0}])
    assert [("kill", "confluent produce acks=all idempotent")] == [key for key, line in found.items() if line.exercised]
    assert "the workload sent no record" in found["kill", "reference produce acks=all idempotent"].why


def test_a_failure_belongs_to_the_arm_of_its_check() -> None:
    """A check of an arm, or of one operation of an arm, fails that arm; a check of the log fails every arm."""
    arm = lines(check("slo/lost", Status.FAIL, "arm=one"))
    assert {"FAIL"} == {line.verdict for (_, label), line in arm.items() if label.startswith("confluent")}
    assert {"PASS"} == {line.verdict for (_, label), line in arm.items() if label.startswith("reference")}
    side = lines(check("integrity/lost", Status.FAIL, "arm=one produce"))
    assert ("FAIL", "PASS") == tuple(
        side["kill", f"confluent {op}"].verdict for op in ("produce acks=all idempotent", "consume")
    )
    log = lines(check("integrity/collision", Status.FAIL, "log"))
    assert {"FAIL"} == {line.verdict for line in log.values()}


def test_recovery_is_measured_by_client() -> None:
    """In seconds; None if the client never recovered or recovery was not measured."""
    rows = [
        {"fault": "kill-1", "client": "w/one", "recovered_us": 3_500_000},
        {"fault": "kill-1", "client": "w/other", "recovered_us": None},
    ]
    found = lines(recoveries=rows)
    assert 3.5 == found["kill", "confluent consume"].recovered_s
    assert None is found["kill", "reference consume"].recovered_s
    assert None is found["latency", "confluent produce acks=all idempotent"].recovered_s


def test_a_run_without_verdict_counts_as_tried() -> None:
    """All cells that its plan would have exercised, by the plan's own times."""
    found = lines_without_verdict(PLAN, TIMELINE, 3, "none-7-3", date(2026, 11, 22), "a node died")
    assert 6 == len(found)
    assert {("ERROR", False, "a node died")} == {(line.verdict, line.exercised, line.why) for line in found}
    assert {"steady", "recovering"} == {line.cell.phase for line in found}
