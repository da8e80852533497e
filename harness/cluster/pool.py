"""Pool of warm clusters, leased across tests and processes by cluster specification.

A lease begins and ends with a cluster that is proven to be as new. A cluster that can't be restored is destroyed. A
process that dies leaves its slot's lock free and its state unclean: the next lease heals or destroys the cluster.

Slots are chosen under the pool's lock, which is held only briefly; clusters are launched and restored under the lock of
their slot. All clusters belong to the pool's owner (with xdist, the controller), also if another process launched them.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from aftershock.errors import ClusterError, LeaseError
from aftershock.faults.kinds.registry import KINDS
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.launch import Images
from aftershock.harness.cluster.pool_slots import (
    DESCRIPTOR_FILE,
    Log,
    PoolDescriptor,
    Record,
    Slot,
    Upkeep,
    read_document,
    write_document,
)
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.safety.journal import read_journal
from aftershock.harness.safety.lease import Lock, hold, wait_for


@dataclass(frozen=True)
class ClusterLease:
    """A cluster for the duration of a lease.

    Attributes:
        since: start of the lease; earlier lines in the broker logs belong to earlier leases.
        run: call it with the run directory before the first fault of the run.
    """

    cluster: Cluster
    images: Images
    since: datetime
    run: Callable[[Path], None]


class Pool:
    """The pool in ``folder``. Any process that knows the pool's owner may open it.

    Args:
        folder: holds the slots; created if missing.
        owner: the process that the clusters belong to, as `ownership.owner` returns it.
        clusters_max: limit of clusters at the same time; by default one for each core.
        keep_dirty: don't restore the cluster at the end of a lease, but at the start of the next.
        upkeep: operations on clusters; replaced by tests.

    Raises LeaseError if the folder is the pool of another live owner.
    """

    def __init__(
        self,
        folder: Path,
        owner: str,
        clusters_max: int | None = None,
        *,
        keep_dirty: bool = False,
        upkeep: Upkeep | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = Lock(folder / "pool.lock")
        with hold(self._lock, "choosing"):
            descriptor = read_document(folder / DESCRIPTOR_FILE, PoolDescriptor)
            if descriptor is None or descriptor.owner != owner:
                if descriptor and ownership.is_alive(descriptor.owner):
                    pid = descriptor.owner.partition(":")[0]
                    raise LeaseError(
                        f"{folder} is the pool of the running process {pid}; two pools can't share a folder: "
                        "choose another one"
                    )
                descriptor = PoolDescriptor(secrets.token_hex(3), owner)
                write_document(folder / DESCRIPTOR_FILE, descriptor)
        self._descriptor = descriptor
        self._prefix = f"pool-{self._descriptor.id}-"
        self._slots = [Slot(folder / f"slot-{n}") for n in range(clusters_max or os.cpu_count() or 1)]
        self._keep_dirty = keep_dirty
        self._upkeep = upkeep or Upkeep()

    @contextmanager
    def lease(self, spec: ClusterSpec, holder: str, log: Log) -> Iterator[ClusterLease]:
        """Lease a cluster of this specification, as new, for the duration of the block. Waits without a limit.

        Waiting processes show ``holder``, for example a test's node id. Raises EngineError if the engine does not
        answer or an image is not available, ClusterError if a launch failed, LeaseError if the pool is closed.
        """
        slot = self._wait_for_slot(spec, holder, log)
        try:
            images = self._upkeep.images(spec, log)
            with closing(self._prepare(slot, spec, images, log)) as cluster:
                restores = not self._keep_dirty
                try:
                    yield ClusterLease(cluster, images, datetime.now(UTC), slot.record_run)
                except KeyboardInterrupt:
                    restores = False  # no later lease is expected
                    raise
                finally:
                    if restores and (record := slot.record()):
                        try:
                            self._restore(record, cluster, log)
                        except Exception as error:  # noqa: BLE001  # whatever the reason: it is not proven to be as new
                            self._discard(slot, record.cluster, error, log)
                        else:
                            slot.write(replace(record, state="clean", run=None))
        finally:
            slot.lock.release()

    def keep(self, run: Path) -> Cluster | None:
        """Keep the cluster of a run, unrestored, beyond the pool's end. Return None if a later run used it.

        The cluster can then be used like one of ``aftershock cluster up``. Raises ClusterError if it is gone.
        """
        with hold(self._lock, "choosing"):
            for slot in self._slots:
                record = slot.record()
                if record and record.state == "used" and record.run == str(run.resolve()) and slot.lock.take("keep"):
                    try:
                        home = slot.home(record.cluster)
                        cluster = self._upkeep.attach(home)
                        for name in ("run.json", "journal.jsonl"):
                            # copies: faults that are injected by hand from now on are no evidence of that run
                            shutil.copy(run / name, home / name)
                        (home / ownership.KEPT).touch()
                        slot.forget()
                        return cluster
                    finally:
                        slot.lock.release()
        return None

    def close(self, log: Log) -> None:
        """Remove the pool's clusters, including half-launched ones; kept clusters stay. No lease is possible after."""
        with hold(self._lock, "choosing"):
            write_document(self._folder / DESCRIPTOR_FILE, replace(self._descriptor, closed=True))
        occupied = [(slot, record.cluster) for slot in self._slots if (record := slot.record())]
        # without a record nothing was ever launched, perhaps because no engine is available to ask
        while occupied and (names := [n for n in self._upkeep.list_clusters(self._descriptor.owner) if self._owns(n)]):
            log(f"removing the pool's clusters: {', '.join(names)}")
            for run_id in names:
                self._upkeep.destroy(run_id)
        for slot, cluster in occupied:
            slot.clear(cluster)

    def _wait_for_slot(self, spec: ClusterSpec, holder: str, log: Log) -> Slot:
        """Return the idle slot that is cheapest to prepare, with its lock held; logs once if it has to wait."""

        def choose() -> Slot | None:
            with hold(self._lock, "choosing"):
                descriptor = read_document(self._folder / DESCRIPTOR_FILE, PoolDescriptor)
                if descriptor != self._descriptor or descriptor.closed:
                    raise LeaseError(f"the pool {self._folder} was closed; its session is over")
                best = None
                idle = [slot for slot in self._slots if slot.lock.take(holder)]
                try:
                    best = min(idle, key=lambda slot: self._cost(slot.record(), spec), default=None)
                finally:
                    for slot in idle:
                        if slot is not best:
                            slot.lock.release()
                return best

        @cache
        def log_holders() -> None:
            holders = ", ".join(name for slot in self._slots if (name := slot.lock.held_by()))
            log(f"waiting for a cluster: all of the pool's {len(self._slots)} are leased, by {holders}")

        return wait_for(choose, log_holders)

    def _cost(self, record: Record | None, spec: ClusterSpec) -> int:
        """Rank: clean, used, half-launched (it only disturbs until it is removed), empty, other specification."""
        if record is None:
            return 3
        if self._can_serve(record, spec):
            return 0 if record.state == "clean" else 1
        return 2 if record.state == "launching" else 4

    def _can_serve(self, record: Record, spec: ClusterSpec) -> bool:
        """True if the slot's cluster can be restored to this specification without a launch."""
        return self._owns(record.cluster) and record.state != "launching" and record.spec == spec.to_json()

    def _owns(self, run_id: str) -> bool:
        """True for a cluster of this pool; its owner may have others, and an earlier pool may have used the folder."""
        return run_id.startswith(self._prefix)

    def _prepare(self, slot: Slot, spec: ClusterSpec, images: Images, log: Log) -> Cluster:
        record = slot.record()
        if record and self._can_serve(record, spec):
            if cluster := self._reuse(slot, record, log):
                return cluster
        elif record:
            log(f"destroying {record.cluster} to make room")
            self._upkeep.destroy(record.cluster)
            slot.clear(record.cluster)
        run_id = f"{self._prefix}{self._slots.index(slot)}-{secrets.token_hex(2)}"
        home = slot.home(run_id)
        record = Record("launching", run_id, spec.to_json(), ownership.owner())
        slot.write(record)
        home.mkdir()
        try:
            cluster = self._upkeep.launch(spec, run_id, home, images, self._descriptor.owner, log)
        except Exception:
            self._upkeep.destroy(run_id)
            slot.clear(run_id)
            raise
        slot.write(replace(record, state="used"))
        return cluster

    def _reuse(self, slot: Slot, record: Record, log: Log) -> Cluster | None:
        """Heal and restore the slot's cluster; None if that failed and the cluster was destroyed."""
        with ExitStack() as on_failure:
            try:
                cluster = self._upkeep.attach(slot.home(record.cluster))
                on_failure.callback(cluster.close)
                if record.run:
                    self._upkeep.heal(cluster, Path(record.run), log)
                self._restore(record, cluster, log)
            except Exception as error:  # noqa: BLE001  # whatever the reason, the cluster is not proven to be as new
                self._discard(slot, record.cluster, error, log)
                return None
            slot.write(replace(record, state="used", owner=ownership.owner(), run=None))
            on_failure.pop_all()
            return cluster

    def _restore(self, record: Record, cluster: Cluster, log: Log) -> None:
        """Restore the cluster. Raises ClusterError if its last run had an effect that can't be undone."""
        if record.run and (effect := irreversible_effect(Path(record.run))):
            raise ClusterError(effect)
        self._upkeep.restore(cluster, log)

    def _discard(self, slot: Slot, cluster: str, why: Exception, log: Log) -> None:
        """Destroy a cluster that is not as new; if that fails too, `close` or the end of its owner removes it."""
        log(f"{cluster} can't be proven healthy and is destroyed: {why or repr(why)}")
        try:
            self._upkeep.destroy(cluster)
        except Exception as error:  # noqa: BLE001  # the lease itself went well, so its holder gets no error
            log(f"{cluster} could not be removed: {error or repr(error)}")
        else:
            slot.clear(cluster)


def irreversible_effect(run: Path) -> str:
    """Return a sentence about the run's first injected fault with a lasting effect on its cluster, "" without one.

    A ``permanent_effect`` has no inverse. On the run's own topics it goes with the topics; on Kafka's own it stays.
    """
    for line in read_journal(run / "journal.jsonl"):
        kind = KINDS.get(line["kind"])
        injected = line["state"] == "injected" and "why" not in line  # in a rehearsal `why` says that nothing was done
        if injected and kind is not None and kind.permanent_effect is not None:
            topics = line["targets"]["topics"]
            if not topics or any(topic.startswith("__") for topic in topics):
                return f"{line['fault']}: {kind.permanent_effect}"
    return ""
