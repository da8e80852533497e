"""Commits are measured and judged like records and separately from records: a run with a workload that only commits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.results.evidence.evidence import Evidence, Objective, read
from aftershock.results.evidence.stored import analysis_document
from aftershock.results.judge import evaluate
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts, LongestGap
from aftershock.results.report.timeline import timeline
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, Made, Row, S
from aftershock.tests.unit.results.measuring import named, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OURS, THEIRS = "positions/ours", "positions/theirs"
RATE, GROUPS, TAKEN_US = 20, 5, 8_000
FAILED_SEQ = 26 * RATE
SILENT_S = (30, 33)
SLOS = (
    "commit.latency p95 < 100ms in steady",
    "commit.service p50 < 10ms",
    "commit.success >= 99%",
    "commit.gap < 4s in fault/kill-1",
    "p50(ours) <= 1 * p50(theirs) of commit.latency in steady",
)


def commits_of(arm: str, producer_id: int) -> list[Row]:
    """Return fifty seconds of commits of 8 ms each; commits due during the outage complete at its end."""
    rows: list[Row] = []
    for seq in range(RATE * LOAD_END_S):
        intended = seq * S // RATE
        done = intended + TAKEN_US
        done = SILENT_S[1] * S if SILENT_S[0] * S <= done < SILENT_S[1] * S else done
        rows.append(
            {"workload": "positions", "arm": arm, "client": "reference", "op": "commit", "producer_id": producer_id}
            | {"seq": seq, "topic": "orders", "topic_id": "t1", "partition": seq % GROUPS, "offset": seq // GROUPS}
            | {"group": f"positions-{arm}-{seq % GROUPS}", "intended_us": intended, "sent_us": intended + 300}
            | {"done_us": done, "deadline_us": intended + 30 * S, "client_rack": "a", "status": "ok"}
        )
    rows[FAILED_SEQ] |= {"status": "failed", "error": "GROUP_AUTHORIZATION_FAILED"}
    return rows


def entry_of(row: Row) -> Row:
    """Return the coordinator's log entry of a commit."""
    place = {"broker_id": 1, "partition": 0, "offset": row["seq"], "batch": row["seq"], "transactional": False}
    known = {"group": row["group"], "topic": row["topic"], "topic_partition": row["partition"]}
    return place | known | {"committed": row["offset"]}


def with_commits(made: Made) -> Made:
    """Return the clean run with a workload of two arms that only commit, with ids that no producer has."""
    both = made.copy()
    both.produce += commits_of("ours", 2) + commits_of("theirs", 3)
    both.offsets = [entry_of(row) for row in both.produce if row["op"] == "commit"]
    commit = {"topic": "orders", "groups": GROUPS, "rate_per_s": float(RATE), "rack": "a", "deadline_ms": 30_000}
    arms = {"ours": {"client": "reference"}, "theirs": {"client": "confluent"}}
    both.timeline["workloads"].append(
        {"name": "positions", "produce": None, "consume": None, "commit": commit, "arms": arms}
    )
    both.timeline["slo"] += [{"text": text, "at": None} for text in SLOS]
    return both


@pytest.fixture(scope="module")
def evidence_(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return read(with_commits(made).write(tmp_path_factory.mktemp("commits") / "run"), columns())


@pytest.fixture(scope="module")
def facts_(spark: "SparkSession", evidence_: Evidence) -> Facts:
    return together(spark, {str(evidence_.run["run_id"]): evidence_})[str(evidence_.run["run_id"])]


def checks_of(evidence: Evidence, facts: Facts) -> dict[tuple[str, str], Check]:
    return {(check.id, check.subject): check for check in evaluate(evidence, facts).checks}


def test_commit_latency_starts_at_the_intended_time(facts_: Facts) -> None:
    """Service time starts when the commit is sent, lateness lies in between, and a failed commit is censored."""
    steady = facts_.distribution("commit.latency", OURS, "steady")
    assert (RATE * 10, 0, TAKEN_US, TAKEN_US) == (steady.n, steady.censored, steady.at[0.5], steady.at[0.95])
    assert TAKEN_US - 300 == facts_.distribution("commit.service", THEIRS, "steady").at[0.5]
    assert 300 == facts_.distribution("commit.lateness", OURS, "run").at[0.99]
    kill = facts_.distribution("commit.latency", OURS, "fault/kill-1")
    assert (RATE * 8, 1, None) == (kill.n, kill.censored, kill.at[1.0])
    assert {("a", 50)} == {
        (one.rack, sum(other.client == OURS for other in facts_.bins)) for one in facts_.bins if one.client == OURS
    }


def test_the_longest_time_without_an_acknowledged_commit(facts_: Facts) -> None:
    """The gap is three silent seconds plus the 42 ms since the last success before them."""
    longest = facts_.longest["commit.gap", OURS, "fault/kill-1"]
    before_us = 30 * S - 1 - ((30 * S - 1 - TAKEN_US) // (S // RATE) * (S // RATE) + TAKEN_US)
    assert LongestGap(RATE * 8 - 1, 3 * S + before_us + 1) == longest


def test_records_are_judged_as_if_there_were_no_commits(facts: Facts, facts_: Facts) -> None:
    """Commits in the same table change no integrity rule, latency or recovery of records."""
    assert facts.findings == {key: result for key, result in facts_.findings.items() if result.side != "commit"}
    assert facts.recoveries == facts_.recoveries
    assert facts.produced == facts_.produced
    for key, distribution in facts.distributions.items():
        assert distribution.at[0.95] == facts_.distributions[key].at[0.95]
        assert (distribution.n, distribution.censored) == (
            facts_.distributions[key].n,
            facts_.distributions[key].censored,
        )


def test_every_slo_of_commits_is_judged_for_the_arms_that_commit(evidence_: Evidence, facts_: Facts) -> None:
    """The SLOs pass, and none is INCONCLUSIVE because an arm only commits or never commits."""
    checks = checks_of(evidence_, facts_)
    assert [] == [(key, check.why) for key, check in checks.items() if check.status is not Status.PASS]
    asked = {id_: subject for (id_, subject), check in checks.items() if check.kind == "slo" and "commit" in id_}
    assert {"slo/commit.latency-p95-steady", "slo/commit.service-p50", "slo/commit.success"} <= asked.keys()
    subjects = {subject for id_, subject in checks if id_.startswith("slo/commit.")}
    assert {"arm=ours", "arm=theirs"} == subjects
    others = {id_ for id_, subject in checks if "commit" not in id_ and subject.split()[0] in subjects}
    assert {"integrity/lost", "integrity/backward", "integrity/phantom"} == others
    success = next(check for (id_, subject), check in checks.items() if id_ == "slo/commit.success")
    assert f"{RATE * (LOAD_END_S - 6) - 1} of {RATE * (LOAD_END_S - 6)} commits were acknowledged" in success.why


@pytest.mark.parametrize(
    "text",
    ["commit.latency p95 < 8ms in steady", "commit.success >= 100%", "commit.gap < 3s in fault/kill-1"],
)
def test_tighter_slos_of_commits_fail(evidence_: Evidence, facts_: Facts, text: str) -> None:
    asked = replace(evidence_, objectives=(Objective(text, None),))
    result = [check.status for check in evaluate(asked, facts_).checks if check.kind == "slo"]
    assert [Status.FAIL, Status.FAIL] == result


def test_a_lagging_committer_is_inconclusive(evidence_: Evidence, facts_: Facts) -> None:
    """The generator of commits has its own check besides those of the producers."""
    seen = facts_.distribution("commit.lateness", OURS, "run")
    late = replace(seen, at={**seen.at, 0.99: 51_000})
    spoiled = replace(facts_, distributions={**facts_.distributions, ("commit.lateness", OURS, "run"): late})
    undecided = [check for check in evaluate(evidence_, spoiled).checks if check.status is not Status.PASS]
    assert ["harness/generator-commit"] == [check.id for check in undecided]
    assert "fell behind" in undecided[0].why


def test_a_plan_that_only_commits_is_judged_by_its_commits(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """Without records only the coordinators' logs are checked, and no check of records is INCONCLUSIVE."""
    only = with_commits(made)
    only.timeline["workloads"] = only.timeline["workloads"][1:]
    only.timeline["slo"] = [{"text": text, "at": None} for text in SLOS if "fault/" not in text]
    only.timeline["steps"], only.journal = [], []
    only.phases = [row for row in only.phases if not row["fault"]]
    only.produce = [row for row in only.produce if row["op"] == "commit"]
    only.consume, only.log, only.run["producers"] = [], [], []
    runs = named({"only": only}, tmp_path)
    verdict = evaluate(runs["only"], together(spark, runs)["only"])
    assert [] == [(check.id, check.why) for check in verdict.checks if check.status is not Status.PASS]
    assert {"integrity/lost", "integrity/backward", "integrity/phantom"} == {
        check.id for check in verdict.checks if check.kind == "integrity"
    }


def test_commits_meet_faults_on_the_offsets_topic(evidence_: Evidence, facts_: Facts) -> None:
    """Commits meet a move of the leaders of __consumer_offsets; records meet it only if produced to that topic."""
    moved = [
        line | {"targets": {**line["targets"], "topics": ["__consumer_offsets"]}}
        if line["fault"] == "reassign-1"
        else line
        for line in evidence_.journal
    ]
    met = checks_of(replace(evidence_, journal=tuple(moved)), facts_)["exposure/reassign-1", "fault=reassign-1"]
    assert (Status.PASS, float(2 * 3 * RATE)) == (met.status, met.observed)


def test_the_report_has_a_plot_of_commits(evidence_: Evidence, facts_: Facts) -> None:
    """The plot has a panel for each arm that commits."""
    labels = {client.key: f"arm={client.arm}" for client in evidence_.clients}
    document = json.loads(json.dumps(analysis_document(facts_)))
    drawn = timeline(evidence_, document, labels, chapters={}, slowest=(), failed=())
    by_title = {group.title: [chart.name for chart in group.charts] for group in drawn.groups}
    assert ["Produce latency, in ms", "End-to-end latency, in ms", "Commit latency, in ms"] == [*by_title][1:4]
    assert "arm=ours, committer in rack a" in by_title["Commit latency, in ms"]
    assert "kill-1" in [lane.name for lane in drawn.groups[0].lanes]
