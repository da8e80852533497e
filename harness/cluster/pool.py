"""What a run has done to its cluster that no restore undoes.

A kind without an inverse says what it ``leaves``. What it leaves on the run's own topics goes with them; what it did to
Kafka's own topics, or to nodes, stays, and the next lessee must not find it.

Warm clusters by specification, leased across tests and processes.

::

    choose a slot ─▶ attach, heal, restore ─▶ [ lease ] ─▶ restore ─▶ clean
                  └▶ launch ───────────────▶

Rules:

* A lease begins and ends with a cluster proven to be as new. One that can't be is destroyed, and that is said.
* A process that dies leaves its slot's lock free and its state unclean: the next lessee heals, or destroys.
* Slots are chosen under the pool's lock, which is held for a moment; clusters are launched and mended under their own.
* All clusters belong to the pool's owner (with xdist, the controller), whoever launched them, and die with it.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from aftershock.errors import ClusterError, LeaseError
from aftershock.faults.kinds.registry import KINDS
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.launch import Images
from aftershock.harness.cluster.pool_slots import Card, DockerUpkeep, Record, Slot, Upkeep
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.safety.journal import read_journal
from aftershock.harness.safety.lease import Lock

_KAFKAS_OWN = "__"


def lasting(run: Path) -> str:
    """A sentence about the first such fault of a run, "" if there was none."""
    for line in read_journal(run / "journal.jsonl"):
        kind = KINDS.get(line["kind"])
        done = line["state"] == "injected" and "why" not in line  # a rehearsal's lines say why nothing was done
        if done and kind is not None and kind.leaves is not None:
            topics = line["targets"]["topics"]
            if not topics or any(topic.startswith(_KAFKAS_OWN) for topic in topics):
                return f"{line['fault']} leaves {kind.leaves}"
    return ""


Say = Callable[[str], None]
_PERIOD_S = 0.1
_BOOKS = ("run.json", "journal.jsonl")


@dataclass(frozen=True)
class Leased:
    """A cluster for the time of a lease.

    Attributes:
        cluster: as new; our connections to it are closed with the lease.
        images: what it runs.
        since: when it was handed over: what its brokers logged before is an earlier lessee's.
        run: to be called with the run directory that will be driven on it, before the first fault.
    """

    cluster: Cluster
    images: Images
    since: datetime
    run: Callable[[Path], None]


class Pool:
    """The pool in ``folder``, which any process may open that is told its owner.

    Args:
        folder: where its slots are; made when it isn't there.
        owner: the process that its clusters die with, as `labels.owner` gives it.
        clusters_max: how many there may be at once; by default one for each core.
        keep_dirty: the end of a lease leaves the cluster as it is, and the beginning of the next restores it.
        upkeep: what is done to clusters, if not the real thing.

    Raises:
        LeaseError: the folder is the pool of another owner, who lives; or it can't be used.
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
        self._card = self._entered(owner)
        self._prefix = f"pool-{self._card.id}-"
        self._slots = [Slot(folder / f"slot-{n}") for n in range(clusters_max or os.cpu_count() or 1)]
        self._keep_dirty = keep_dirty
        self._upkeep = upkeep or DockerUpkeep()

    @contextmanager
    def lease(self, spec: ClusterSpec, holder: str, say: Say) -> Iterator[Leased]:
        """Have a cluster of this specification, as new, while the block runs; waits for one as long as it takes.

        Args:
            spec: what the cluster must be.
            holder: what those who wait are told: a test's node id, say.
            say: gets a line before anything that takes time.

        Raises:
            EngineError: there is no engine, or no image.
            ClusterError: a cluster that had to be launched did not come up.
            LeaseError: the pool was closed.
        """
        slot = self._awaited(spec, holder, say)
        try:
            images = self._upkeep.images(spec, say)
            with closing(self._ready(slot, spec, images, say)) as cluster, self._put_back(slot, cluster, say):
                yield Leased(cluster, images, datetime.now(UTC), lambda run: _note_run(slot, run))
        finally:
            slot.lock.release()

    def keep(self, run: Path) -> Cluster | None:
        """Keep the cluster that a run was driven on, as it is, beyond the pool's end; None if it served another since.

        The caller closes it. From now on it is a cluster like those of ``aftershock cluster up``.

        Raises:
            ClusterError: it has vanished.
        """
        with self._alone():
            for slot in self._slots:
                record = slot.record()
                if record and record.state == "used" and record.run == str(run.resolve()) and slot.lock.take("keep"):
                    try:
                        return self._kept(slot, record, run)
                    finally:
                        slot.lock.release()
        return None

    def close(self, say: Say) -> None:
        """Remove the pool's clusters, half launched ones too; those kept stay. There are no leases any more."""
        with self._alone():
            replace(self._card, closed=True).write(self._folder)
        left = [(slot, record.cluster) for slot in self._slots if (record := slot.record())]
        # without a record nothing was ever launched, perhaps because there is no engine to ask
        while left and (mine := [name for name in self._upkeep.standing(self._card.owner) if self._ours(name)]):
            say(f"removing the pool's clusters: {', '.join(mine)}")
            for run_id in mine:
                self._upkeep.destroy(run_id)
        for slot, cluster in left:
            slot.clear(cluster)

    def _entered(self, owner: str) -> Card:
        """The pool's card; a new one where there is none, or where its owner is dead."""
        with self._alone():
            found = Card.read(self._folder)
            if found and found.owner == owner:
                return found
            if found and ownership.lives(found.owner):
                whose = f"the pool of process {found.owner.partition(':')[0]}, which lives"
                raise LeaseError(f"{self._folder} is {whose}; two pools can't share it: choose another folder")
            card = Card(secrets.token_hex(3), owner)
            card.write(self._folder)
            return card

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the pool's own lock, which nobody holds for longer than a moment."""
        while not self._lock.take("choosing"):
            time.sleep(_PERIOD_S)
        try:
            yield
        finally:
            self._lock.release()

    def _awaited(self, spec: ClusterSpec, holder: str, say: Say) -> Slot:
        """A slot for such a cluster, its lock held; says once why that takes its time."""
        said = False
        while True:
            with self._alone():
                card = Card.read(self._folder)
                if card != self._card or card.closed:
                    raise LeaseError(f"the pool {self._folder} was closed; its session is over")
                if slot := self._chosen(spec, holder):
                    return slot
            if not said:
                said = True
                holders = ", ".join(name for slot in self._slots if (name := slot.lock.held_by()))
                say(f"waiting for a cluster: all of the pool's {len(self._slots)} are leased, by {holders}")
            time.sleep(_PERIOD_S)

    def _chosen(self, spec: ClusterSpec, holder: str) -> Slot | None:
        """The idle slot that costs least to make ready, its lock held."""
        best = None
        idle = [slot for slot in self._slots if slot.lock.take(holder)]
        try:
            best = min(idle, key=lambda slot: self._cost(slot.record(), spec), default=None)
        finally:
            for slot in idle:
                if slot is not best:
                    slot.lock.release()
        return best

    def _cost(self, record: Record | None, spec: ClusterSpec) -> int:
        """In order: clean, used, half launched (till it is gone it only disturbs), empty, of another specification."""
        if record is None:
            return 3
        if self._serves(record, spec):
            return 0 if record.state == "clean" else 1
        return 2 if record.state == "launching" else 4

    def _serves(self, record: Record, spec: ClusterSpec) -> bool:
        """Whether what stands in a slot can be made such a cluster without a launch."""
        return self._ours(record.cluster) and record.state != "launching" and record.spec == spec.to_json()

    def _ours(self, run_id: str) -> bool:
        """Whether a cluster is this pool's: not its owner's for another purpose, nor of a pool before it here."""
        return run_id.startswith(self._prefix)

    def _ready(self, slot: Slot, spec: ClusterSpec, images: Images, say: Say) -> Cluster:
        record = slot.record()
        if record and self._serves(record, spec):
            if cluster := self._renewed(slot, record, say):
                return cluster
        elif record:
            say(f"destroying {record.cluster} to make room")
            self._upkeep.destroy(record.cluster)
            slot.clear(record.cluster)
        return self._launched(slot, spec, images, say)

    def _renewed(self, slot: Slot, record: Record, say: Say) -> Cluster | None:
        """The cluster that stands in the slot, as new; None if it couldn't be made so and was destroyed."""
        with ExitStack() as failed:
            try:
                cluster = self._upkeep.attach(slot.home(record.cluster))
                failed.callback(cluster.close)
                if record.run:
                    self._upkeep.heal(cluster, Path(record.run), say)
                self._as_new(record, cluster, say)
            except Exception as error:  # noqa: BLE001  # whatever the reason, it is not proven to be as new
                self._discard(slot, record.cluster, error, say)
                return None
            slot.write(replace(record, state="used", owner=ownership.owner(), run=None))
            failed.pop_all()
            return cluster

    def _launched(self, slot: Slot, spec: ClusterSpec, images: Images, say: Say) -> Cluster:
        run_id = f"{self._prefix}{self._slots.index(slot)}-{secrets.token_hex(2)}"
        home = slot.home(run_id)
        record = Record("launching", run_id, spec.to_json(), ownership.owner())
        slot.write(record)
        home.mkdir()
        try:
            cluster = self._upkeep.launch(spec, run_id, home, images, self._card.owner, say)
        except Exception:
            self._upkeep.destroy(run_id)
            slot.clear(run_id)
            raise
        slot.write(replace(record, state="used"))
        return cluster

    @contextmanager
    def _put_back(self, slot: Slot, cluster: Cluster, say: Say) -> Iterator[None]:
        """Restore the cluster when the block is left. Not after Ctrl-C: nobody will want it, and nobody should wait."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._restored(slot, cluster, say)
            raise
        self._restored(slot, cluster, say)

    def _restored(self, slot: Slot, cluster: Cluster, say: Say) -> None:
        record = slot.record()
        if record is None or self._keep_dirty:
            return
        try:
            self._as_new(record, cluster, say)
        except Exception as error:  # noqa: BLE001  # whatever the reason, it is not proven to be as new
            self._discard(slot, record.cluster, error, say)
        else:
            slot.write(replace(record, state="clean", run=None))

    def _as_new(self, record: Record, cluster: Cluster, say: Say) -> None:
        """Restore it. ClusterError if its last run did what can't be restored."""
        if record.run and (left := lasting(Path(record.run))):
            raise ClusterError(left)
        self._upkeep.restore(cluster, say)

    def _discard(self, slot: Slot, cluster: str, why: Exception, say: Say) -> None:
        """Destroy a cluster that is not as new; where even that fails, its owner's end or `close` will."""
        say(f"{cluster} can't be proven healthy and is destroyed: {why or repr(why)}")
        try:
            self._upkeep.destroy(cluster)
        except Exception as error:  # noqa: BLE001  # the lease is over, and went well for all its lessee knows
            say(f"{cluster} could not be removed: {error or repr(error)}")
        else:
            slot.clear(cluster)

    def _kept(self, slot: Slot, record: Record, run: Path) -> Cluster:
        home = slot.home(record.cluster)
        cluster = self._upkeep.attach(home)
        for name in _BOOKS:
            # copied: what is injected by hand from now on is no evidence of that run
            shutil.copy(run / name, home / name)
        (home / ownership.KEPT).touch()
        slot.forget()
        return cluster


def _note_run(slot: Slot, run: Path) -> None:
    record = slot.record()
    if record:
        slot.write(replace(record, run=str(run.resolve())))
