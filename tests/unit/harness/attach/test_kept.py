"""What a run on pods keeps beside the brokers, so that another machine can heal it."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.attach.attached import (
    AttachedCluster,
    AttachmentDescriptor,
    kept_name,
    read_descriptor,
    restore,
)
from aftershock.harness.safety.journal import Journal, open_faults, read_journal
from aftershock.harness.safety.rundir import RunClock, RunDir


class Kept:
    """The config map of a run, in the place of `broker_pods.Agents`."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.refuses = False

    def keep(self, texts: Mapping[str, str | None]) -> None:
        if self.refuses:
            raise ClusterError("the API server does not answer")
        self.data |= {name: text for name, text in texts.items() if text is not None}
        for name in (name for name, text in texts.items() if text is None):
            del self.data[name]


class Stage:
    """A run on attached pods, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.home = RunDir.create(folder, "pods", 0)
        descriptor = AttachmentDescriptor(self.home.run_id, Attach(bootstrap="127.0.0.1:1"), ("orders",), ())
        descriptor.write(self.home.path)
        self.cluster, self.kept = AttachedCluster(descriptor, self.home.path), Kept()
        self.cluster._agents = self.kept  # type: ignore[assignment]
        self.journal = Journal(self.home.path / "journal.jsonl", RunClock.starting_now(), self.cluster.keep_line)

    def write(self, fault: str, *states: str) -> None:
        for state in states:
            undo = {"verb": "resume", "args": {"broker": 1}}
            self.journal.append({"fault": fault, "kind": "pause", "state": state, "targets": {}, "undo": undo})


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    (tmp_path / "runs").mkdir()
    stage = Stage(tmp_path / "runs")
    with closing(stage.journal):
        yield stage


def test_faults_in_force_and_created_topics_are_restored_elsewhere(stage: Stage, tmp_path: Path) -> None:
    """The journal's lines are those of the run, with their checksums; healed faults are forgotten."""
    stage.cluster.created("orders", "AAAA")
    stage.write("a/1", "intended", "injected", "healing", "healed")
    stage.write("b#2", "intended", "injected")
    stage.write("c", "intended")
    home = restore(stage.kept.data, tmp_path, stage.home.run_id)
    assert home
    assert ["b#2", "c"] == [line["fault"] for line in open_faults(read_journal(home / "journal.jsonl"))]
    own = open_faults(read_journal(stage.home.path / "journal.jsonl"))
    assert own == open_faults(read_journal(home / "journal.jsonl"))
    assert {"orders": "AAAA"} == read_descriptor(home).created
    opened = RunDir.open(home)
    assert (stage.home.run_id, stage.home.facts["owner"]) == (opened.run_id, opened.facts["owner"])


def test_a_fault_that_is_injected_again_is_in_force_once(stage: Stage, tmp_path: Path) -> None:
    stage.cluster._keep_descriptor()
    stage.write("a", "intended", "injected", "healed", "intended", "injected")
    home = restore(stage.kept.data, tmp_path, stage.home.run_id)
    assert home
    assert ["intended", "injected"] == [line["state"] for line in read_journal(home / "journal.jsonl")]


def test_a_fault_that_cannot_be_kept_is_not_injected(stage: Stage) -> None:
    """Before the injection that is an error; afterwards the heal goes on."""
    stage.write("a", "intended", "injected")
    stage.kept.refuses = True
    with pytest.raises(FaultError, match="the fault b can't be kept for a heal from another machine: the API server"):
        stage.write("b", "intended")
    stage.write("a", "healing", "healed")


def test_witnesses_are_not_kept(stage: Stage) -> None:
    """There is one each second, and a config map holds 1 MiB."""
    stage.write("a", "intended", "injected")
    size = len(stage.kept.data[kept_name("a")])
    stage.write("a", *["witnessed"] * 100)
    assert size == len(stage.kept.data[kept_name("a")])


def test_a_run_that_kept_nothing_is_not_restored(tmp_path: Path) -> None:
    """Such as one on a launched cluster, whose config map has manifests."""
    assert restore({"k1": "{}"}, tmp_path, "run") is None


@pytest.mark.parametrize("fault", ["kill-1", "block/3#2", "ä" * 200])
def test_a_name_of_kept_lines_suits_a_config_map(fault: str) -> None:
    assert kept_name(fault).replace("-", "").isalnum()
    assert len(kept_name(fault)) < 253
