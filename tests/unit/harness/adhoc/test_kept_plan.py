"""Plan from a run directory: the faults that were injected by hand."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError, PlanError
from aftershock.faults.kinds.process.stop import Pause
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.faults.sections.cluster import Cluster
from aftershock.harness.adhoc.inject import claim
from aftershock.harness.adhoc.kept import plan_of
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.rundir import RunClock, RunDir

PAUSE = Pause.model_validate({"at": "0s", "for": "5s", "broker": "leader of t/0"})
TOPIC = {"name": "t", "partitions": 3, "replication": 3}


@pytest.fixture
def home(tmp_path: Path) -> RunDir:
    """A kept cluster into which one pause was injected."""
    home = RunDir.create(tmp_path, "cluster", 0, "")
    (home.path / "plan.yaml").write_text("cluster: {racks: {a: 1, b: 1, c: 1}, kafka: 4.3.1}\ntopics: []\n")
    fault = str(claim(home, PAUSE, [TOPIC], 0).id)
    with closing(Journal(home.path / "journal.jsonl", RunClock.starting_now())) as journal:
        for state in ("intended", "injected", "healing", "healed"):
            journal.record(Entry(fault, "pause", state, Targets(brokers=(3,)), Undo("resume", {"broker": 3})))
    return home


def test_plan_of_a_kept_cluster(home: RunDir) -> None:
    """The written plan is valid, and has the cluster, the topic of the role, and the fault."""
    plan = load_plan(plan_of(home.path).text).plan
    assert ("4.3.1", ["t"]) == (plan.cluster.kafka, [topic.name for topic in plan.topics])
    assert [("pause-1", {"broker": "leader of t/0"})] == [(fault.id, fault.parameters()) for fault in plan.faults]


def test_plan_of_a_run_counts_from_the_end_of_steady(home: RunDir) -> None:
    """A pause that was injected before that time starts at 0 in the plan."""
    (home.path / "plan.yaml").write_text(find("demo").read_text())
    home.update(
        marks={"load_start_us": 0, "steady_start_us": 1, "faults_start_us": 60_000_000, "load_end_us": 99_000_000}
    )
    plan = load_plan(plan_of(home.path).text).plan
    assert ["slow-a", "slow-replicas", "kill-leader", "rotate", "pause-1"] == [fault.id for fault in plan.faults]
    assert 0 == plan.faults[-1].at


def test_plan_of_a_pooled_cluster(home: RunDir) -> None:
    """Without a plan, the cluster comes from its descriptor."""
    (home.path / "plan.yaml").unlink()
    spec = ClusterSpec.of(Cluster(racks={"b": 2, "a": 1}, profile="production"))
    (home.path / DESCRIPTOR_FILE).write_text(json.dumps({"run_id": "pool-1", "spec": spec.to_json()}))
    plan = load_plan(plan_of(home.path).text).plan
    assert (["b", "a"], "production") == (list(plan.cluster.racks), plan.cluster.profile)


def test_a_torn_last_journal_line_is_ignored(home: RunDir) -> None:
    """An injector that is killed while it writes leaves half a line."""
    for name in ("events.jsonl", "journal.jsonl"):
        with (home.path / name).open("a") as file:
            file.write('{"t_us": 12, "event": "inj')
    assert "pause-1" in plan_of(home.path).text


def test_a_broken_journal_and_a_missing_plan_are_errors(home: RunDir) -> None:
    """The error names the file."""
    (home.path / "plan.yaml").unlink()
    with pytest.raises(PlanError, match=r"plan\.yaml: the plan can't be read"):
        plan_of(home.path)
    (home.path / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(EvidenceError, match=r"journal\.jsonl:1: damaged line"):
        plan_of(home.path)
