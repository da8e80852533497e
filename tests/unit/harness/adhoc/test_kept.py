"""Selection of a kept cluster: by its id, or as the only kept cluster; every other case is an error."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.errors import ClusterError, EvidenceError
from aftershock.harness.adhoc.kept import clock_of, connect, describe_owner, kept_clusters, resolve
from aftershock.harness.safety import ownership
from aftershock.harness.safety.rundir import RunDir

DEAD = f"1:1:{ownership.owner().split(':', 2)[2]}"


def engine(*clusters: dict[str, str]) -> Any:
    """Return an engine with one container, network or volume for each cluster, with the given labels."""
    containers = [SimpleNamespace(labels=each) for each in clusters[:1]]
    networks = [SimpleNamespace(attrs={"Labels": each}) for each in clusters[1:2]]
    volumes = [SimpleNamespace(attrs={"Labels": each}) for each in clusters[2:]]
    kinds = {"containers": containers, "networks": networks, "volumes": volumes}
    return SimpleNamespace(
        **{kind: SimpleNamespace(list=lambda found=found, **_: found) for kind, found in kinds.items()}
    )


def cluster(run_id: str, home: Path, *, keep: bool = True, owner: str = DEAD) -> dict[str, str]:
    return ownership.labels_of(run_id, home, keep=keep, owned_by=owner)


def test_the_only_kept_cluster_is_the_default(tmp_path: Path) -> None:
    """Without an id the only kept cluster is selected; clusters that aren't kept don't count."""
    client = engine(cluster("live", tmp_path, keep=False), cluster("mine", tmp_path))
    assert "mine" == resolve(client, None).run_id
    assert ["mine"] == [each.run_id for each in kept_clusters(client)]


def test_no_kept_cluster_and_several_are_errors(tmp_path: Path) -> None:
    """Without a kept cluster the error says how to start one; with several it lists them and names --run."""
    with pytest.raises(ClusterError, match="no cluster is kept; start one with: aftershock cluster up"):
        resolve(engine(), None)
    client = engine(cluster("one", tmp_path), cluster("two", tmp_path))
    with pytest.raises(ClusterError, match=r"several clusters are kept: one, two; choose one with --run"):
        resolve(client, None)
    assert "two" == resolve(client, "two").run_id


def test_a_cluster_that_is_not_on_the_engine(tmp_path: Path) -> None:
    """No container, network or volume on the engine has the id."""
    with pytest.raises(ClusterError, match="no cluster gone on this engine"):
        resolve(engine(cluster("one", tmp_path)), "gone")


def test_a_cluster_that_is_not_kept_is_refused(tmp_path: Path) -> None:
    """The cluster of a run or pool belongs to its process: the error names the process, running or dead."""
    client = engine(
        cluster("pool-3f-0-1a", tmp_path, keep=False, owner=ownership.owner()), cluster("left", tmp_path, keep=False)
    )
    with pytest.raises(
        ClusterError,
        match=r"pool-3f-0-1a is not kept: the owner of the cluster is process \d+ of user \d+, which is running",
    ):
        resolve(client, "pool-3f-0-1a")
    with pytest.raises(
        ClusterError, match=r"left is not kept: the owner of the cluster is process 1 of user \d+, which is dead"
    ):
        resolve(client, "left")


def test_a_cluster_may_be_kept_by_a_file(tmp_path: Path) -> None:
    """A pool's cluster that was kept later counts as kept, although its label can't change."""
    client = engine(cluster("pool-3f-0-1a", tmp_path, keep=False))
    (tmp_path / ownership.KEPT).touch()
    assert "pool-3f-0-1a" == resolve(client, None).run_id


def test_the_owner_of_another_host_is_not_checked(tmp_path: Path) -> None:
    """A process id of another host has no meaning on this host."""
    found = resolve(engine(cluster("far", tmp_path, owner="1:1:0:elsewhere:elsewhere:7")), "far")
    assert found.owned
    assert "its owner, process 1 of user 0, can't be checked from here" in describe_owner(found)
    assert "label=aftershock.run=far | xargs -r docker rm -fv" in describe_owner(found)


def test_the_clock_starts_at_the_origin_in_run_json(tmp_path: Path) -> None:
    """An error while the launch is under way, and where there is no run.json."""
    home = RunDir.create(tmp_path, "cluster", 0, "")
    with pytest.raises(ClusterError, match="is not ready yet"):
        clock_of(home.path)
    home.update(origin_ns=17)
    assert 17 == clock_of(home.path).origin_ns
    with pytest.raises(EvidenceError, match=r"run\.json: .*missing"):
        clock_of(tmp_path)


def test_a_cluster_that_is_being_launched(tmp_path: Path) -> None:
    """The error advises to wait for the cluster, not to take it down."""
    client = engine(cluster("young", tmp_path, owner=ownership.owner()))
    with pytest.raises(
        ClusterError,
        match=r"young is still being launched: the owner of the cluster is process \d+ of user \d+, which is running",
    ):
        with connect(client, resolve(client, None)):
            pass


def test_a_cluster_without_run_directory(tmp_path: Path) -> None:
    """A cluster whose run directory was removed can't be reached, only taken down."""
    client = engine(cluster("orphan", tmp_path / "gone"))
    with pytest.raises(ClusterError, match="take the cluster down with: aftershock cluster down --run orphan"):
        with connect(client, resolve(client, None)):
            pass
