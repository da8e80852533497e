"""Pool of warm clusters, leased across tests and processes by cluster specification.

At the start and the end of each lease, the pool checks that the cluster is as it was after its launch; a cluster that
can't be restored is destroyed. The pool's owner (with pytest-xdist, the controller process) owns all clusters of the
pool, including clusters that other processes launched.

Each cluster has a folder ``slot-<n>`` with the lock ``lease.lock``, the description ``lease.json`` and the cluster's
own folder. A process holds ``lease.lock`` while it launches, uses or restores the cluster; if the process dies, the
kernel releases the lock, and the next lease heals or destroys the cluster. The state in ``lease.json`` (launching,
used, clean) is written before the launch, use or release of the cluster begins, and so tells the next lease whether the
cluster was only half launched, or used and not restored.
"""

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import docker

from aftershock.errors import ClusterError, LeaseError, Log
from aftershock.faults.kinds.registry import KINDS
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster, attach
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.heal import heal, undo_open
from aftershock.harness.lifecycle.launch import Images, images_for, launch
from aftershock.harness.lifecycle.restore import restore
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import read_journal
from aftershock.harness.safety.lease import Lock, hold, wait_for
from aftershock.harness.safety.rundir import RunDir
from aftershock.results.evidence.files import write_whole

_DESCRIPTOR_FILE = "pool.json"


@dataclass(frozen=True)
class PoolDescriptor:
    """Content of ``pool.json``; ``owner`` is the pool's owner process, and run ids of clusters start ``pool-<id>-``."""

    id: str
    owner: str
    closed: bool = False


@dataclass(frozen=True)
class Record:
    """Content of ``lease.json``, the description of one cluster of the pool.

    ``cluster`` is the cluster's run id, and ``spec`` its specification, as `ClusterSpec.to_json` returns it. ``owner``
    is the owner label of the process that leased the cluster last. ``run`` is the run directory of the last run on the
    cluster, None before the first run.
    """

    state: Literal["launching", "used", "clean"]
    cluster: str
    spec: Mapping[str, Any]
    owner: str
    run: str | None = None


class Slot:
    """Folder ``slot-<n>`` of one cluster of the pool; only the process that holds ``lock`` may write to the folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(folder / "lease.lock")
        self._folder = folder
        self._file = folder / "lease.json"

    def record(self) -> Record | None:
        """Return the content of ``lease.json``, None without the file; raise LeaseError for an unreadable file."""
        return _read_document(self._file, Record)

    def write(self, record: Record) -> None:
        _write_document(self._file, record)

    def record_run(self, run: Path) -> None:
        if record := self.record():
            self.write(replace(record, run=str(run.resolve())))

    def home(self, cluster: str) -> Path:
        return self._folder / cluster

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def clear(self, cluster: str) -> None:
        shutil.rmtree(self.home(cluster), ignore_errors=True)
        self.forget()


Document = TypeVar("Document", PoolDescriptor, Record)


def _read_document(file: Path, kind: type[Document]) -> Document | None:
    try:
        return kind(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LeaseError(
            f"can't read {file} ({error}); remove the cluster pool's folder, then its clusters with: aftershock heal"
        ) from error


def _write_document(file: Path, document: PoolDescriptor | Record) -> None:
    write_whole(file, json.dumps(asdict(document), indent=1) + "\n")


class Upkeep:
    """Operations on a pool's clusters through the Docker engine, replaceable in tests of the pool."""

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def images(self, spec: ClusterSpec, log: Log) -> Images:
        return images_for(self._client, spec, log)

    def launch(self, spec: ClusterSpec, run_id: str, home: Path, images: Images, owner: str, log: Log) -> Cluster:
        return launch(spec, run_id, home, images, log, owner=owner)

    def attach(self, home: Path) -> Cluster:
        return attach(self._client, home)

    def heal(self, cluster: Cluster, run: Path, log: Log) -> None:
        """Heal the faults of a dead run on the cluster, and end the run's client processes."""
        if run.is_dir():
            asyncio.run(undo_open(RunDir.open(run), cluster, log))
        heal(self._client, run.name, log, explicit=False)

    def restore(self, cluster: Cluster, log: Log) -> None:
        restore(cluster, log)

    def destroy(self, run_id: str) -> None:
        ownership.remove_run(self._client, run_id)

    def list_clusters(self, owner: str) -> list[str]:
        """Return the run ids of all clusters of a pool's owner, except kept clusters."""
        clusters = ownership.list_clusters(self._client)
        return [cluster.run_id for cluster in clusters if cluster.owner == owner and not cluster.keep]


@dataclass(frozen=True)
class ClusterLease:
    """A leased cluster of the pool.

    ``since`` is the start time of the lease; lines of the broker logs before that time belong to earlier leases. A run
    on the cluster must call the function ``run`` with its run directory before its first fault.
    """

    cluster: Cluster
    images: Images
    since: datetime
    run: Callable[[Path], None]


class Pool:
    """Pool of warm clusters, used by any process that knows the pool's folder and owner.

    The pool's folder is created if missing. ``owner`` is the owner label of the process that the clusters belong to. At
    most ``clusters_max`` clusters exist at the same time, by default one for each CPU core. With ``keep_dirty`` a
    cluster is not restored at the end of a lease, but at the start of the next lease.

    Raises LeaseError if the folder has a pool of another live process.
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
            descriptor = _read_document(folder / _DESCRIPTOR_FILE, PoolDescriptor)
            if descriptor is None or descriptor.owner != owner:
                if descriptor and ownership.is_alive(descriptor.owner):
                    pid = descriptor.owner.partition(":")[0]
                    raise LeaseError(
                        f"the folder {folder} has the cluster pool of the running process {pid}; choose another folder"
                    )
                descriptor = PoolDescriptor(secrets.token_hex(3), owner)
                _write_document(folder / _DESCRIPTOR_FILE, descriptor)
        self._descriptor = descriptor
        self._prefix = f"pool-{self._descriptor.id}-"
        self._slots = [Slot(folder / f"slot-{n}") for n in range(clusters_max or os.cpu_count() or 1)]
        self._keep_dirty = keep_dirty
        self._upkeep = upkeep or Upkeep()

    @contextmanager
    def lease(self, spec: ClusterSpec, holder: str, log: Log) -> Iterator[ClusterLease]:
        """Lease a freshly launched or restored cluster for the ``with`` block; wait while all clusters are in use.

        ``holder``, for example a test's node id, is shown to users whose processes wait for the cluster. Raises
        EngineError if Docker does not answer or an image is not available, ClusterError if a launch failed, LeaseError
        if the pool is closed.
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
        """Keep the cluster of a run, unrestored, after the pool is closed, like one of ``aftershock cluster up``.

        Returns None if a later run used the cluster; raises ClusterError if the cluster was removed.
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
        """Refuse further leases, and remove the pool's clusters except kept clusters."""
        with hold(self._lock, "choosing"):
            _write_document(self._folder / _DESCRIPTOR_FILE, replace(self._descriptor, closed=True))
        occupied = [(slot, record.cluster) for slot in self._slots if (record := slot.record())]
        # without a record nothing was ever launched, perhaps because no engine is available to ask
        give_up_s = time.monotonic() + ownership.REMOVAL_DEADLINE_S
        while occupied and (names := [n for n in self._upkeep.list_clusters(self._descriptor.owner) if self._owns(n)]):
            if time.monotonic() > give_up_s:
                raise ClusterError(
                    f"the pool's clusters {', '.join(names)} still exist; remove them with: aftershock heal"
                )
            log(f"removing the pool's clusters: {', '.join(names)}")
            for run_id in names:
                self._upkeep.destroy(run_id)
        for slot, cluster in occupied:
            slot.clear(cluster)

    def _wait_for_slot(self, spec: ClusterSpec, holder: str, log: Log) -> Slot:
        """Lock and return the free `Slot` whose cluster is the fastest to prepare for the specification."""

        def choose() -> Slot | None:
            with hold(self._lock, "choosing"):
                descriptor = _read_document(self._folder / _DESCRIPTOR_FILE, PoolDescriptor)
                if descriptor != self._descriptor or descriptor.closed:
                    raise LeaseError(f"the cluster pool in {self._folder} was closed, because its session has ended")
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
            log(f"waiting for a cluster: all {len(self._slots)} clusters of the pool are leased, by {holders}")

        return wait_for(choose, log_holders)

    def _cost(self, record: Record | None, spec: ClusterSpec) -> int:
        """Return how slowly a slot can provide a cluster of ``spec``, from 0 (fastest) to 4."""
        if record is None:
            return 3
        if self._can_serve(record, spec):
            return 0 if record.state == "clean" else 1
        return 2 if record.state == "launching" else 4

    def _can_serve(self, record: Record, spec: ClusterSpec) -> bool:
        return self._owns(record.cluster) and record.state != "launching" and record.spec == spec.to_json()

    def _owns(self, run_id: str) -> bool:
        return run_id.startswith(self._prefix)

    def _prepare(self, slot: Slot, spec: ClusterSpec, images: Images, log: Log) -> Cluster:
        record = slot.record()
        if record and self._can_serve(record, spec):
            if cluster := self._reuse(slot, record, log):
                return cluster
        elif record:
            log(f"destroying the cluster {record.cluster} to make room in the pool")
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
        """Restore a leased cluster; raise ClusterError if its last run had an effect that can't be undone."""
        if record.run and (effect := irreversible_effect(Path(record.run))):
            raise ClusterError(effect)
        self._upkeep.restore(cluster, log)

    def _discard(self, slot: Slot, cluster: str, why: Exception, log: Log) -> None:
        """Destroy a cluster that can't be restored; if its removal fails, `close` or the watchdog removes it later."""
        log(f"destroying the pool's cluster {cluster}, which could not be restored: {why or repr(why)}")
        try:
            self._upkeep.destroy(cluster)
        except Exception as error:  # noqa: BLE001  # the lease itself went well, so its holder gets no error
            log(f"the pool's cluster {cluster} could not be removed: {error or repr(error)}")
        else:
            slot.clear(cluster)


def irreversible_effect(run: Path) -> str:
    """Return a sentence about a run's first fault whose effect on the cluster can't be undone; "" if none.

    A fault with a ``permanent_effect``, for example an upgrade of a broker, has no undo. If the effect is only on the
    run's own topics, the effect ends with the deletion of the topics.
    """
    for line in read_journal(run / "journal.jsonl"):
        kind = KINDS.get(line["kind"])
        injected = line["state"] == "injected" and "why" not in line  # in a rehearsal `why` says that nothing was done
        if injected and kind is not None and kind.permanent_effect is not None:
            topics = line["targets"]["topics"]
            if not topics or any(topic.startswith("__") for topic in topics):
                return f"{line['fault']}: {kind.permanent_effect}"
    return ""
