"""Several processes that inject at once: fault ids are unique, and faults never conflict."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from aftershock.errors import FaultError
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.kinds.process.stop import Pause
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.harness.adhoc.inject import SharedJournal, claim, free_id
from aftershock.harness.safety.journal import read_journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.tests.unit.harness.child import Child

PAUSE = Pause.model_validate({"at": "0s", "for": "5s", "broker": "2"})
UNDO = Undo("resume", {"broker": 2})
CLAIMING = """
import sys
from pathlib import Path
from aftershock.faults.kinds.process.stop import Pause
from aftershock.harness.adhoc.inject import claim
from aftershock.harness.safety.rundir import RunDir
home = RunDir.open(Path(sys.argv[1]))
print("ready"); input()
pause = Pause.model_validate({"at": "0s", "for": "5s", "broker": "2"})
topics = [{"name": f"topic-{n}", "partitions": 3, "replication": 3} for n in range(300)]
print(" ".join(claim(home, pause, topics, 0).id for _ in range(10)))
"""
STRIKING = """
import sys
from pathlib import Path
from aftershock.errors import FaultError
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.harness.adhoc.inject import SharedJournal
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.safety.rundir import RunDir
journal = SharedJournal(RunDir.open(Path(sys.argv[1])), RunClock.starting_now(), print)
print("ready"); input()
try:
    journal.record(Entry(sys.argv[2], "pause", "intended", Targets(brokers=(2,)), Undo("resume", {"broker": 2})))
    print("taken")
except FaultError as error:
    print(error)
input()
"""


@pytest.fixture
def home(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "cluster", 0, "aftershock cluster up")


@pytest.fixture
def journal(home: RunDir) -> Iterator[SharedJournal]:
    with closing(SharedJournal(home, RunClock.starting_now(), print)) as journal:
        yield journal


def test_concurrent_claims_get_unique_ids(home: RunDir) -> None:
    """Four processes claim ten ids each at the same moment: forty distinct ids, and forty untorn journal lines."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(CLAIMING, str(home.path))) for _ in range(4)]
        assert ["ready"] * 4 == [child.line() for child in children]
        for child in children:
            child.tell()
        ids = [name for child in children for name in child.line().split()]
    assert sorted(ids) == sorted(f"pause-{number}" for number in range(1, 41))
    events = [json.loads(line) for line in (home.path / "events.jsonl").read_text().splitlines()]
    assert sorted(ids) == sorted(event["fault"]["id"] for event in events)
    assert {300} == {len(event["topics"]) for event in events}


def test_concurrent_claims_of_one_target_have_one_winner(home: RunDir) -> None:
    """Four processes target one node at the same moment: one process gets the node, the others' errors name the
    holder.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(Child(STRIKING, str(home.path), f"pause-{n}")) for n in range(4)]
        assert ["ready"] * 4 == [child.line() for child in children]
        for child in children:
            child.tell()
        answers = [child.line() for child in children]
        assert 1 == answers.count("taken")
        winner = children[answers.index("taken")]
        refused = [answer for answer in answers if answer != "taken"]
        assert all(f"held by process {winner.pid}" in answer for answer in refused), answers
    assert 1 == len(read_journal(home.path / "journal.jsonl"))


def test_ids_of_the_plan_and_of_the_journal_are_taken(home: RunDir, journal: SharedJournal) -> None:
    """Ids of planned faults and of faults that are only in the journal can't be claimed."""
    (home.path / "timeline.json").write_text(json.dumps({"steps": [{"id": "pause-1", "for_ms": 1000}]}))
    journal.record(Entry("pause-2", "pause", "intended", Targets(brokers=(1,)), UNDO))
    assert "pause-3" == claim(home, PAUSE, [], 0).id
    assert ("pause-4", "kill-1") == (free_id(home.path, "pause"), free_id(home.path, "kill"))


def test_the_journal_event_holds_the_fault_as_in_a_plan(home: RunDir) -> None:
    """The event has kind, id, duration and parameters, but not `at`, which only a plan has."""
    kill = Kill.model_validate({"at": "0s", "for": "1500ms", "broker": "any broker except controller"})
    claim(home, kill, [{"name": "t", "partitions": 3, "replication": 3}], 17)
    (event,) = map(json.loads, (home.path / "events.jsonl").read_text().splitlines())
    words = {"kind": "kill", "id": "kill-1", "for": "1500ms", "broker": "any broker except controller"}
    assert words == event["fault"]
    assert (17, None, "injected_by_hand") == (event["t_us"], event["arm"], event["event"])


def test_a_conflicting_fault_is_refused_before_the_journal_is_written(home: RunDir, journal: SharedJournal) -> None:
    """The error names holder, fault and remedy; the journal has no line of the second fault."""
    journal.record(Entry("pause-1", "pause", "intended", Targets(brokers=(2,)), UNDO))
    with pytest.raises(FaultError, match="node 2 is taken by pause-1: pause on node 2; held by process") as refused:
        journal.record(Entry("kill-1", "kill", "intended", Targets(brokers=(2,)), UNDO))
    assert f"aftershock heal --run {home.run_id}" in str(refused.value)
    assert {"pause-1"} == {line["fault"] for line in read_journal(home.path / "journal.jsonl")}


def test_after_the_heal_the_target_is_free(journal: SharedJournal) -> None:
    """A healed fault is no conflict, nor is a fault on another node."""
    journal.record(Entry("pause-1", "pause", "intended", Targets(brokers=(2,)), UNDO))
    journal.record(Entry("pause-2", "pause", "intended", Targets(brokers=(1,)), UNDO))
    journal.record(Entry("pause-1", "pause", "healed", Targets(brokers=(2,)), UNDO))
    journal.record(Entry("kill-1", "kill", "intended", Targets(brokers=(2,)), UNDO))
    assert "pause-2" in journal.in_force()
    assert "pause-1" not in journal.in_force()
