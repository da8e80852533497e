"""Reads what `faults/from_run.py` makes a plan of: a run's plan, events, journal and marks."""

from pathlib import Path

from aftershock.faults.document import load
from aftershock.faults.from_run import Words, Written, plan_from
from aftershock.faults.phases import Marks
from aftershock.harness.cluster import CARD
from aftershock.harness.journal import read_journal
from aftershock.harness.rundir import RunDir
from aftershock.harness.spec import ClusterSpec
from aftershock.results.files import read_json, read_lines


def plan_of(home: Path) -> Written:
    """What was injected by hand into the run, or into the kept cluster, whose folder this is.

    Raises:
        EvidenceError: nothing was, or its files can't be read.
        PlanError: its plan can't be read.
    """
    run = RunDir.open(home)
    marks = run.facts.get("marks")
    events, journal = read_lines(home / "events.jsonl"), read_journal(home / "journal.jsonl")
    lasted = Marks(**marks) if marks else None
    return plan_from(run.run_id, _said(home), events, journal, lasted, run.facts.get("seed", 0))


def _said(home: Path) -> Words:
    """The plan of a run; of a cluster that a pool launched, what it is."""
    if (home / "plan.yaml").exists() or not (home / CARD).exists():
        return load(home / "plan.yaml").data
    spec = ClusterSpec.from_json(read_json(home / CARD)["spec"])
    return {"cluster": spec.as_plan().model_dump(mode="json")}
