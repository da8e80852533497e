"""Plans of the zoo, its stored evidence, and its table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.harness.campaigns import zoo as lab
from aftershock.results.model.check import Check
from aftershock.results.studies.zoo import BROKEN, FIXED, Bug, read_bugs
from aftershock.tests.unit.results.studies.test_zoo import DIED, LOST, attempt, check

BUGS = read_bugs()
FIRST = next(iter(BUGS.values()))


@pytest.mark.parametrize("bug", lab.runnable(), ids=lambda bug: bug.id)
def test_plans(bug: Bug) -> None:
    """A plan runs the two registered versions of the client, on any side, within five minutes."""
    plan = load_plan(find(f"zoo/{bug.id}")).plan
    assert plan.name == bug.id
    for workload in plan.workloads:
        versions = {name: (arm.client, arm.version) for name, arm in workload.arms.items()}
        assert {BROKEN: (bug.client, bug.broken), FIXED: (bug.client, bug.fixed)} == versions
    assert lab.planned(bug).takes_s <= 60 * lab.MINUTES_MAX


def test_each_plan_belongs_to_a_bug() -> None:
    plans = {path.stem for path in find(f"zoo/{lab.runnable()[0].id}").parent.glob("*.yaml")}
    assert plans == {bug.id for bug in lab.runnable()}


def test_unknown_bugs_are_refused() -> None:
    with pytest.raises(AftershockError, match="no such bug"):
        lab.find_bug("librdkafka-lost")


def test_evidence_gives_the_same_words(tmp_path: Path) -> None:
    entries = [lab.Entry(FIRST, [attempt(LOST), replace(attempt(DIED), run_id="again", seed=2)])]
    lab.keep(tmp_path, entries)
    lab.keep(tmp_path, entries)
    (read,) = [entry for entry in lab.read_entries(tmp_path) if entry.outcome]
    assert entries[0].outcomes == read.outcomes
    assert 2 == len(read.attempts)
    (tmp_path / f"{FIRST.id}.json").write_text(json.dumps({"schema_version": 1, "attempts": [{"run_id": "x"}]}))
    with pytest.raises(EvidenceError, match="restore the file"):
        lab.read_entries(tmp_path)


def test_a_fourth_plan_is_refused(tmp_path: Path) -> None:
    for number in range(lab.ATTEMPTS_MAX):
        lab.keep(tmp_path, [lab.Entry(FIRST, [replace(attempt(LOST), run_id=f"r{number}", plan=f"p{number}")])])
    with pytest.raises(AftershockError, match="4 plans were tried"):
        lab.keep(tmp_path, [lab.Entry(FIRST, [replace(attempt(LOST), run_id="r4", plan="p4")])])


def test_places_of_this_machine_are_not_kept(tmp_path: Path) -> None:
    told = replace(LOST, why="see /home/user/runs")
    with pytest.raises(AftershockError, match="must not be published"):
        lab.keep(tmp_path, [lab.Entry(FIRST, [attempt(told)])])


def test_the_last_plan_counts() -> None:
    """Runs of an earlier plan are no repetitions of the last one."""
    first = attempt()
    last, again = (replace(attempt(LOST), run_id=f"r{number}", plan="q") for number in (1, 2))
    entry = lab.Entry(replace(FIRST, checks=("integrity/lost",)), [first, last, again])
    assert "found" == entry.word
    assert ["found", "found"] == [outcome.word for outcome in entry.outcomes]
    assert "2 of 2" in lab.markdown([entry])


@pytest.mark.parametrize(("checks", "code"), [((LOST,), 0), ((), 2), ((LOST, check("integrity/lost", FIXED)), 1)])
def test_exit_codes(checks: tuple[Check, ...], code: int) -> None:
    bug = replace(FIRST, checks=("integrity/lost",))
    assert code == lab.exit_code([lab.Entry(bug, [attempt(*checks)])])


def test_counts() -> None:
    bug = replace(FIRST, checks=("integrity/lost", "slo/*"))
    slow = check("slo/produce.gap", BROKEN)
    entries = [
        lab.Entry(bug, [attempt(LOST), replace(attempt(LOST), run_id="again")]),
        lab.Entry(bug, [attempt(slow)]),
        lab.Entry(bug, [attempt(LOST, check("integrity/lost", FIXED))]),
        lab.Entry(bug),
    ]
    text = lab.counts_in_words(entries)
    assert "3 of 4 registered bugs were tried" in text
    assert "**2 of 3**, for 1 of them by checks that need no SLO" in text
    assert "blamed in 1 of 4 runs" in text
    assert "said the same for 1 of 1 bugs" in text
