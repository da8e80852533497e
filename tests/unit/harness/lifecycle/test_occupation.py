"""Runs on kept clusters: what a run leaves is removed, and what was there before stays."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.errors import ClusterError, EvidenceError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.lifecycle import heal as healing
from aftershock.harness.lifecycle import occupation as module
from aftershock.harness.lifecycle.occupation import Occupation, lock_of, occupation_of, vacate
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import LabelledCluster
from aftershock.harness.safety.rundir import RunDir


class Kept:
    """A kept cluster with topics, and groups by their coordinator."""

    def __init__(self) -> None:
        self.elected = list[tuple[str, int]]()
        self.topics, self.groups = {"t", "own"}, {1: {"theirs": "classic"}, 2: {"readers": "consumer"}}
        self.admin = SimpleNamespace(
            topics=lambda: tuple(sorted(self.topics)),
            delete_topics=self.topics.difference_update,
            coordinator=lambda group: 2 if group == "readers" else 1,
            partitions=lambda: [
                PartitionState("t", 0, BrokerId(1), 0, (BrokerId(1), BrokerId(2)), (BrokerId(1), BrokerId(2))),
                PartitionState("t", 1, BrokerId(1), 0, (BrokerId(2), BrokerId(1)), (BrokerId(1), BrokerId(2))),
                PartitionState("own", 0, BrokerId(1), 0, (BrokerId(2), BrokerId(1)), (BrokerId(1), BrokerId(2))),
            ],
            elect_preferred=self.elected.extend,
        )
        self.spec = SimpleNamespace(topology=SimpleNamespace(broker_ids=(1, 2)))
        self.waits = list[float]()
        self.await_in_sync = self.waits.append

    def close(self) -> None: ...


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    cluster = Kept()
    monkeypatch.setattr(module, "groups", lambda _, broker: cluster.groups[broker])

    def delete(_: object, broker: int, group: str, __: str) -> str:
        del cluster.groups[broker][group]
        return ""

    monkeypatch.setattr(module, "delete_group", delete)
    return cluster


def test_only_what_the_run_creates_is_its_own(tmp_path: Path, kept: Any) -> None:
    kept.topics = {"t"}
    kept.groups[2] = {}
    occupation = Occupation.of(tmp_path / "run-1", kept, ["t", "own"], ["readers", "theirs"])
    assert (("own",), ("readers",), "run-1") == (occupation.topics, occupation.groups, occupation.run_id)
    assert not occupation.is_over
    occupation.write(tmp_path)
    assert occupation_of(tmp_path) == occupation


def test_topics_and_groups_of_the_user_stay(tmp_path: Path, kept: Any) -> None:
    occupation = Occupation(str(tmp_path / "run-1"), "1:1", ("own",), ("readers",))
    occupation.write(tmp_path)
    vacate(tmp_path, kept, occupation)
    assert kept.topics == {"t"}
    assert kept.groups == {1: {"theirs": "classic"}, 2: {}}
    assert occupation_of(tmp_path) is None
    assert kept.waits == [60.0]
    assert kept.elected == [("t", 1)]


@pytest.mark.parametrize("text", ["{}", '{"run": "x", "owner": "1:1", "topics": 3, "groups": []}', "{"])
def test_a_broken_description_is_an_error_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "occupied.json").write_text(text)
    with pytest.raises(EvidenceError, match=r"occupied\.json"):
        occupation_of(tmp_path)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    assert first.take("aftershock run a --on k")
    assert not second.take("aftershock run b --on k")
    assert "aftershock run a --on k" in second.held_by()
    first.release()
    assert second.take("aftershock run b --on k")
    second.release()


def kept_by_nobody(tmp_path: Path, owner: str) -> LabelledCluster:
    """Return a kept cluster, used by a run of the owner that has a topic of its own."""
    home = RunDir.create(tmp_path, "kept", 0, "c")
    (home.path / "cluster.json").write_text("{}")
    Occupation(str(tmp_path / "gone"), owner, ("own",), ("readers",)).write(home.path)
    return LabelledCluster(home.run_id, "1:1:0:a:b:c", home.path, keep=True)


def test_heal_removes_what_a_dead_run_left(tmp_path: Path, kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the id of the cluster or of the run; with a living run it is refused, and by a sweep left alone."""
    cluster = kept_by_nobody(tmp_path, "1:1")
    monkeypatch.setattr(ownership, "list_clusters", lambda _: [cluster])
    monkeypatch.setattr(healing, "attach", lambda *_: kept)
    monkeypatch.setattr(LabelledCluster, "liveness", property(lambda _: "dead"))
    client: Any = object()
    assert healing.has_remains(client, cluster.run_id, cluster.home)
    healing.heal(client, "gone", print)
    assert kept.topics == {"t"}
    assert not healing.has_remains(client, cluster.run_id, cluster.home)

    Occupation(str(tmp_path / "alive"), ownership.owner(), ("t",), ()).write(cluster.home)
    healing.heal(client, None, print)
    assert kept.topics == {"t"}
    with pytest.raises(ClusterError, match="is in use by the run alive; interrupt that run"):
        healing.heal(client, cluster.run_id, print)
