"""The journal: on disk before the fault is injected, with all that another process needs to heal."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.faults.runtime.record import Entry, Targets, Undo, Witness
from aftershock.harness.run.rundir import RunClock
from aftershock.harness.safety.journal import Journal

START = Undo("start", {"broker": 2})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.jsonl", RunClock.starting_now())) as journal:
        yield journal


def test_a_line_is_synced_before_record_returns(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole line is written before fsync: a crash right after loses nothing."""
    path, seen, fsync = tmp_path / "journal.jsonl", list[str](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), seen.append(path.read_text())))
    journal.record(Entry("kill-1", "kill", "intended", Targets(brokers=(2,)), START))
    (line,) = map(json.loads, seen[0].splitlines())
    assert ("kill-1", "intended", [2]) == (line["fault"], line["state"], line["targets"]["brokers"])
    assert {"verb": "start", "args": {"broker": 2}} == line["undo"]


def test_witness_and_reason_are_kept_when_there_are_any(journal: Journal) -> None:
    """Optional fields without a value are absent, not null."""
    journal.record(Entry("p", "pause", "injected", Targets(), START))
    witness = Witness("container is paused", 1, 1, "state", 1, ok=True)
    journal.record(Entry("p", "pause", "witnessed", Targets(), START, witness))
    journal.record(Entry("p", "pause", "failed", Targets(), START, why="it is gone"))
    assert [{"witness"}, {"why"}] == [{"witness", "why"} & line.keys() for line in journal.lines[1:]]
    assert not {"witness", "why"} & journal.lines[0].keys()


def test_open_faults_are_those_not_yet_healed(journal: Journal) -> None:
    """The status line shows the faults in force."""
    told = [("a", "intended"), ("b", "intended"), ("a", "injected"), ("a", "healed")]
    # Fault c had no target; fault d could not be healed.
    told += [("c", "failed"), ("d", "intended"), ("d", "healing"), ("d", "failed")]
    for fault, state in told:
        journal.record(Entry(fault, "kill", state, Targets(), START))  # type: ignore[arg-type]  # each is a State
    assert ["b", "d"] == journal.open_faults()
