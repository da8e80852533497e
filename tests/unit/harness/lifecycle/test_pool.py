"""The pool's rules between real processes and real locks, with clusters that consist of files."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from aftershock.errors import ClusterError, LeaseError
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.safety import lease, ownership
from aftershock.tests.unit.harness.child import Child
from aftershock.tests.unit.harness.cluster.fake_upkeep import ONE, TWO, FakeUpkeep

LESSEE = """
import sys
from pathlib import Path
from aftershock.harness.lifecycle.pool import Pool
from aftershock.tests.unit.harness.cluster.fake_upkeep import SPECS, FakeUpkeep
folder, owner, holder, run, *specs = sys.argv[1:]
pool = Pool(Path(folder, "pool"), owner, 2, upkeep=FakeUpkeep(Path(folder)))
for spec in specs:
    with pool.lease(SPECS[spec], holder, print) as leased:
        leased.run(Path(run))
        print("leased", leased.cluster.run_id)
        input()
    print("ended")
"""

OpenPool = Callable[..., Pool]
Lessee = Callable[..., Child]


@pytest.fixture
def upkeep(tmp_path: Path) -> FakeUpkeep:
    return FakeUpkeep(tmp_path)


@pytest.fixture
def pool_of(tmp_path: Path, upkeep: FakeUpkeep) -> OpenPool:
    """Return a function that opens the test's pool of two; by default the test's own process is the owner."""

    def opened(owner: str = ownership.owner(), *, keep_dirty: bool = False) -> Pool:
        return Pool(tmp_path / "pool", owner, 2, keep_dirty=keep_dirty, upkeep=upkeep)

    return opened


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory."""
    path = tmp_path / "run-1"
    path.mkdir()
    (path / "run.json").write_text("{}\n")
    (path / "journal.jsonl").write_text(_line("latency", "orders"))
    return path


def _line(kind: str, *topics: str) -> str:
    """Return the journal line of a fault in state ``kind``."""
    line = {"fault": f"{kind}-1", "kind": kind, "state": "injected", "targets": {"topics": topics}}
    line["undo"] = {"verb": "nothing", "args": {}}
    return json.dumps(line) + "\n"


@pytest.fixture
def lessee(tmp_path: Path, run: Path) -> Iterator[Lessee]:
    """Return a function that starts a process; it leases a cluster of each specification in turn, each until it is
    told to go on.
    """
    with ExitStack() as children:
        yield lambda holder, *specs: children.enter_context(
            Child(LESSEE, str(tmp_path), ownership.owner(), holder, str(run), *specs)
        )


def cluster_of(child: Child) -> str:
    """Return the id of the cluster that a lessee has leased."""
    word, _, cluster = child.line().partition(" ")
    assert "leased" == word, cluster
    return cluster


def test_leases_of_one_specification_share_a_cluster(pool_of: OpenPool, upkeep: FakeUpkeep) -> None:
    """The cluster is launched once, and restored at the end of each lease and at the beginning of each lease but the
    first.
    """
    with pool_of().lease(ONE, "first", print) as leased:
        cluster = leased.cluster.run_id
    with pool_of().lease(ONE, "second", print) as leased:
        assert cluster == leased.cluster.run_id
    assert [f"launch {cluster}", *[f"restore {cluster}"] * 3] == upkeep.log()


def test_a_lease_of_a_full_pool_waits_and_logs_the_holders(lessee: Lessee) -> None:
    """Two lessees have a cluster each; the third logs the holders once, and gets the cluster that is released first."""
    first, second = lessee("test_a", "one"), lessee("test_b", "one")
    clusters = {cluster_of(first), cluster_of(second)}
    assert 2 == len(clusters)
    third = lessee("test_c", "one")
    said = third.line()
    assert said.startswith("waiting for a cluster: all 2 clusters of the pool are leased, by ")
    assert f"test_a (pid {first.pid}) since" in said
    assert f"test_b (pid {second.pid}) since" in said
    first.tell()
    assert "ended" == first.line()
    assert cluster_of(third) in clusters


def test_a_waiting_lessee_logs_the_holders_once(
    pool_of: OpenPool, lessee: Lessee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for three retries."""
    first, second = lessee("test_a", "one"), lessee("test_b", "one")
    cluster_of(first), cluster_of(second)
    looks: list[int] = []
    said: list[str] = []

    def wait(_period_s: float) -> None:
        looks.append(len(said))
        if len(looks) == 3:
            first.tell()
            assert "ended" == first.line()

    monkeypatch.setattr(
        lease, "time", SimpleNamespace(**{**vars(time), "sleep": wait})
    )  # Other threads may sleep as well.
    with pool_of().lease(ONE, "third", said.append):
        assert [0, 1, 1] == looks


def test_six_tests_on_two_workers_launch_at_most_two_clusters(lessee: Lessee, upkeep: FakeUpkeep) -> None:
    """Two processes take three leases each, side by side."""
    workers = [lessee(f"worker {n}", "one", "one", "one") for n in range(2)]
    for worker in workers * 3:
        cluster_of(worker)
        worker.tell()
        assert "ended" == worker.line()
    assert 2 >= sum(line.startswith("launch") for line in upkeep.log())


def test_an_empty_slot_is_used_before_an_idle_cluster_is_replaced(pool_of: OpenPool, upkeep: FakeUpkeep) -> None:
    """Another specification is launched beside the first while there is an empty slot; then it replaces an idle
    cluster.
    """
    three = type(ONE)("4.3.0", ONE.racks, ONE.controllers, ONE.profile, ONE.config)
    for spec in (ONE, TWO):
        with pool_of().lease(spec, "test", print):
            pass
    assert [] == [line for line in upkeep.log() if line.startswith("destroy")]
    with pool_of().lease(three, "test", print):
        assert 1 == len([line for line in upkeep.log() if line.startswith("destroy")])


def test_a_killed_lessees_cluster_is_healed_and_restored_by_the_next(
    lessee: Lessee, pool_of: OpenPool, upkeep: FakeUpkeep
) -> None:
    """SIGKILL during a lease: the next lessee undoes the dead run's faults first, and then restores the cluster."""
    victim = lessee("victim", "one")
    cluster = cluster_of(victim)
    victim.kill()
    with pool_of().lease(ONE, "heir", print) as leased:
        assert cluster == leased.cluster.run_id
        assert [f"heal {cluster} after run-1", f"restore {cluster}"] == upkeep.log()[1:]


def test_a_cluster_of_a_lessee_killed_while_restoring_is_restored_again(
    lessee: Lessee, pool_of: OpenPool, upkeep: FakeUpkeep, tmp_path: Path
) -> None:
    """SIGKILL at the end of a lease leaves a cluster that may not be clean: the next lessee heals and restores it."""
    victim = lessee("victim", "one")
    cluster = cluster_of(victim)
    (tmp_path / "hang-restore").touch()
    victim.tell()
    assert "hanging in restore" == victim.line()
    victim.kill()
    (tmp_path / "hang-restore").unlink()
    with pool_of().lease(ONE, "heir", print):
        assert [f"heal {cluster} after run-1", f"restore {cluster}"] == upkeep.log()[2:]


def test_a_half_launched_cluster_is_destroyed(
    lessee: Lessee, pool_of: OpenPool, upkeep: FakeUpkeep, tmp_path: Path
) -> None:
    """SIGKILL during a launch: the cluster is destroyed, although another slot is empty, and a new one is launched."""
    (tmp_path / "hang-launch").touch()
    victim = lessee("victim", "one")
    assert "hanging in launch" == victim.line()
    victim.kill()
    (tmp_path / "hang-launch").unlink()
    half = upkeep.log()[-1].removeprefix("launch ")
    said: list[str] = []
    with pool_of().lease(ONE, "heir", said.append) as leased:
        assert [f"destroying the cluster {half} to make room in the pool"] == said
        assert [f"destroy {half}", f"launch {leased.cluster.run_id}"] == upkeep.log()[1:]


def test_a_cluster_that_can_not_be_restored_is_destroyed(pool_of: OpenPool, upkeep: FakeUpkeep, tmp_path: Path) -> None:
    """A failed restore at the end of a lease is logged, not raised: the lessee's work succeeded. The next lease
    launches.
    """
    said: list[str] = []
    with pool_of().lease(ONE, "first", said.append) as leased:
        cluster = leased.cluster.run_id
        (tmp_path / "fail-restore").touch()
    assert [f"destroying the pool's cluster {cluster}, which could not be restored: restore went wrong"] == said
    (tmp_path / "fail-restore").unlink()
    with pool_of().lease(ONE, "second", print) as leased:
        assert [f"destroy {cluster}", f"launch {leased.cluster.run_id}"] == upkeep.log()[2:]


def test_an_idle_cluster_that_died_is_replaced(pool_of: OpenPool, upkeep: FakeUpkeep, tmp_path: Path) -> None:
    """A cluster was removed between two leases: the next lessee gets a new cluster, and the old one's remains are
    removed.
    """
    with pool_of().lease(ONE, "first", print) as leased:
        old = leased.cluster.run_id
    (tmp_path / "engine" / old).unlink()
    with pool_of().lease(ONE, "second", print) as leased:
        assert [f"destroy {old}", f"launch {leased.cluster.run_id}"] == upkeep.log()[2:]
        assert [] == list(tmp_path.glob(f"pool/*/{old}"))


def test_a_failing_test_leaves_a_clean_cluster(pool_of: OpenPool, upkeep: FakeUpkeep) -> None:
    """The lessee's exception, pytest's outcomes included, passes through after the cluster is restored."""
    for error in (ValueError("its own"), pytest.fail.Exception("pytest's")):
        with pytest.raises(type(error), match=str(error)), pool_of().lease(ONE, "fails", print):
            raise error
        assert upkeep.log()[-1].startswith("restore")


def test_an_interrupt_does_not_wait_for_a_restore(pool_of: OpenPool, upkeep: FakeUpkeep) -> None:
    """An interrupted session ends at once; the next lease restores the cluster."""
    with pytest.raises(KeyboardInterrupt), pool_of().lease(ONE, "interrupted", print) as leased:
        raise KeyboardInterrupt
    assert [f"launch {leased.cluster.run_id}"] == upkeep.log()
    with pool_of().lease(ONE, "next", print):
        assert [f"restore {leased.cluster.run_id}"] == upkeep.log()[1:]


def test_a_launch_that_fails_leaves_nothing(pool_of: OpenPool, tmp_path: Path) -> None:
    """The lessee gets the reason; the half-launched cluster is removed, and its slot is free."""
    (tmp_path / "fail-launch").touch()
    with pytest.raises(ClusterError, match="launch went wrong"), pool_of().lease(ONE, "test", print):
        pass
    assert [] == list((tmp_path / "engine").iterdir())
    (tmp_path / "fail-launch").unlink()
    with pool_of().lease(ONE, "test", print):
        pass


def test_a_dirty_pool_restores_at_the_next_lease(pool_of: OpenPool, upkeep: FakeUpkeep, run: Path) -> None:
    """With keep_dirty a lease ends without a restore; the next lease of the same specification heals and restores the
    cluster.
    """
    pool = pool_of(keep_dirty=True)
    with pool.lease(ONE, "first", print) as leased:
        leased.run(run)
    cluster = leased.cluster.run_id
    assert [f"launch {cluster}"] == upkeep.log()
    with pool.lease(ONE, "second", print):
        assert [f"heal {cluster} after run-1", f"restore {cluster}"] == upkeep.log()[1:]


def test_a_kept_cluster_outlives_its_pool(pool_of: OpenPool, run: Path, tmp_path: Path) -> None:
    """A kept cluster is marked for every sweep, has the run's files in its home, and is neither leased again nor
    closed.
    """
    pool = pool_of(keep_dirty=True)
    with pool.lease(ONE, "failed", print) as leased:
        leased.run(run)
    kept = pool.keep(run)
    assert kept
    assert leased.cluster.run_id == kept.run_id
    (home,) = tmp_path.glob(f"pool/slot-*/{kept.run_id}")
    assert {"cluster.json", "journal.jsonl", "keep", "run.json"} == {path.name for path in home.iterdir()}
    with pool.lease(ONE, "next", print) as other:
        assert kept.run_id != other.cluster.run_id
    pool.close(print)
    assert [kept.run_id] == [path.name for path in (tmp_path / "engine").iterdir()]
    assert home.exists()


def test_a_cluster_that_was_leased_again_can_not_be_kept(pool_of: OpenPool, run: Path, tmp_path: Path) -> None:
    """Neither during nor after another lease: the cluster is no longer in the state that the run left."""
    pool = pool_of(keep_dirty=True)
    with pool.lease(ONE, "failed", print) as leased:
        leased.run(run)
        assert None is pool.keep(run)
    with pool.lease(ONE, "later", print) as leased:
        assert None is pool.keep(run)
        leased.run(tmp_path)
    assert None is pool.keep(run)


def test_close_removes_the_clusters_of_the_pool_only(pool_of: OpenPool, lessee: Lessee, tmp_path: Path) -> None:
    """Idle, leased by a dead process, and half launched clusters are removed. The owner's other cluster stays."""
    (tmp_path / "engine" / "20261121-demo").write_text(ownership.owner())
    pool = pool_of()
    with pool.lease(TWO, "test", print):
        (tmp_path / "hang-launch").touch()
        victim = lessee("victim", "one")
        assert "hanging in launch" == victim.line()
        victim.kill()
    pool.close(print)
    assert ["20261121-demo"] == [path.name for path in (tmp_path / "engine").iterdir()]
    assert [] == list(tmp_path.glob("pool/slot-*/pool-*"))


def test_a_pool_that_never_launched_closes_without_an_engine(pool_of: OpenPool, tmp_path: Path) -> None:
    """Without an engine every lease fails, and closing must not fail as well."""
    (tmp_path / "fail-images").touch()
    (tmp_path / "fail-list_clusters").touch()
    pool = pool_of()
    with pytest.raises(ClusterError, match="images went wrong"), pool.lease(ONE, "test", print):
        pass
    pool.close(print)


def test_a_closed_pool_refuses_leases(pool_of: OpenPool) -> None:
    """Neither the object that closed the pool nor an object opened since gives a lease."""
    pool = pool_of()
    pool.close(print)
    for late in (pool, pool_of()):
        with (
            pytest.raises(LeaseError, match="because its session has ended"),
            late.lease(ONE, "late", print),
        ):
            pass


def test_the_folder_of_a_live_pool_is_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    """The folder of a pool whose owner lives is unchanged."""
    with Child("input()") as other:
        pool_of(ownership.owner(other.pid))
        before = (tmp_path / "pool/pool.json").read_text()
        with pytest.raises(LeaseError, match=f"pool of the running process {other.pid}; choose another folder"):
            pool_of()
        assert before == (tmp_path / "pool/pool.json").read_text()


def test_a_dead_owners_folder_is_taken_over(pool_of: OpenPool, upkeep: FakeUpkeep) -> None:
    """The dead owner's clusters are removed with it: without an empty slot, one of them makes room."""
    with Child("input()") as other:
        pool = pool_of(ownership.owner(other.pid))
        with pool.lease(ONE, "test", print), pool.lease(ONE, "test", print):
            pass
    with pool_of().lease(ONE, "heir", print) as leased:
        assert upkeep.log()[-2].startswith("destroy")
        assert f"launch {leased.cluster.run_id}" == upkeep.log()[-1]


def test_a_broken_pool_record_is_a_clear_error(pool_of: OpenPool, tmp_path: Path) -> None:
    """The error names the file and the remedy; the other slot's lock is released."""
    pool = pool_of()
    (tmp_path / "pool/slot-0/lease.json").write_text("{")
    with pytest.raises(LeaseError, match=r"can't read .*slot-0/lease.json.*; remove the cluster pool's folder"):
        with pool.lease(ONE, "test", print):
            pass
    (tmp_path / "pool/slot-0/lease.json").unlink()
    with pool.lease(ONE, "test", print), pool.lease(ONE, "test", print):
        pass


@pytest.mark.parametrize(
    ("kind", "topic", "again"),
    [
        ("delete_records", "orders", True),
        ("delete_records", "__consumer_offsets", False),
        ("latency", "__consumer_offsets", True),
    ],
)
def test_a_fault_without_inverse_on_an_internal_topic_replaces_the_cluster(
    pool_of: OpenPool, run: Path, kind: str, topic: str, again: bool
) -> None:
    """A fault without an inverse on a topic of the run disappears with that topic; on an internal topic it persists."""
    (run / "journal.jsonl").write_text(_line(kind, topic))
    pool, said = pool_of(), list[str]()
    clusters = []
    for _ in range(2):
        with pool.lease(ONE, "a test", said.append) as leased:
            leased.run(run)
            clusters.append(leased.cluster.run_id)
    assert again == (clusters[0] == clusters[1])
    assert again == (not any("deleted records are missing" in line for line in said))
