"""Slots of a pool on disk, and the operations that a pool performs on its clusters.

``pool.json`` names the pool and its owner. A slot's folder holds ``lease.lock``, which the kernel releases when the
lessee dies, ``lease.json``, the cluster in the slot (no file: the slot is empty), and that cluster's home.

A state (launching, used, clean) is on disk before the action it announces begins. A free lock with ``launching`` means
a half-launched cluster; with ``used``, that the last lessee was killed, or kept the cluster dirty on purpose.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import docker

from aftershock.errors import LeaseError
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.cluster import Cluster, attach
from aftershock.harness.cluster.launch import Images, images_for, launch
from aftershock.harness.cluster.restore import restore
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.heal import heal, undo_open
from aftershock.harness.safety.lease import Lock
from aftershock.results.evidence.files import write_whole

State = Literal["launching", "used", "clean"]
Log = Callable[[str], None]
DESCRIPTOR_FILE = "pool.json"


@dataclass(frozen=True)
class PoolDescriptor:
    """Identity of a pool: its `DESCRIPTOR_FILE`. Run ids of its clusters begin with ``pool-<id>-``.

    A closed pool grants no leases.
    """

    id: str
    owner: str
    closed: bool = False


@dataclass(frozen=True)
class Record:
    """The cluster in a slot.

    Attributes:
        state: see the module's docstring.
        cluster: the cluster's run id.
        spec: its specification, as `ClusterSpec.to_json` returns it.
        owner: the process of the last lessee, as `ownership.owner` returns it.
        run: the last lessee's run directory; None before its first run.
    """

    state: State
    cluster: str
    spec: Mapping[str, Any]
    owner: str
    run: str | None = None


class Slot:
    """A slot. Only the process that holds ``lock`` may write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(folder / "lease.lock")
        self._folder = folder
        self._file = folder / "lease.json"

    def record(self) -> Record | None:
        """Return the slot's cluster, None for an empty slot. Raises LeaseError if the file can't be read."""
        return read_document(self._file, Record)

    def write(self, record: Record) -> None:
        write_document(self._file, record)

    def record_run(self, run: Path) -> None:
        """Add a run's directory to the slot's record."""
        if record := self.record():
            self.write(replace(record, run=str(run.resolve())))

    def home(self, cluster: str) -> Path:
        return self._folder / cluster

    def forget(self) -> None:
        """Mark the slot as empty; the cluster's home stays."""
        self._file.unlink(missing_ok=True)

    def clear(self, cluster: str) -> None:
        """Mark the slot as empty and remove the home of its former cluster."""
        shutil.rmtree(self.home(cluster), ignore_errors=True)
        self.forget()


Document = TypeVar("Document", PoolDescriptor, Record)


def read_document(file: Path, kind: type[Document]) -> Document | None:
    """Read a descriptor or record; None without a file. Raises LeaseError if the file can't be read."""
    try:
        return kind(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LeaseError(
            f"can't read {file} ({error}); remove the pool's folder, and its clusters with: aftershock heal"
        ) from error


def write_document(file: Path, document: PoolDescriptor | Record) -> None:
    write_whole(file, json.dumps(asdict(document), indent=1) + "\n")


class Upkeep:
    """Operations on a pool's clusters. Connects to the Docker engine on first use.

    The pool's rules deal with processes and files only; their tests replace this class.
    """

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def images(self, spec: ClusterSpec, log: Log) -> Images:
        return images_for(self._client, spec, log)

    def launch(self, spec: ClusterSpec, run_id: str, home: Path, images: Images, owner: str, log: Log) -> Cluster:
        """Launch a cluster that belongs to ``owner``; after an error `destroy` removes its objects."""
        return launch(spec, run_id, home, images, log, owner=owner)

    def attach(self, home: Path) -> Cluster:
        return attach(self._client, home)

    def heal(self, cluster: Cluster, run: Path, log: Log) -> None:
        """Undo a dead run's faults that its journal lists as in force, and end its clients."""
        if run.is_dir():
            origin_ns = RunDir.open(run).facts.get("origin_ns", 0)
            asyncio.run(undo_open(run / "journal.jsonl", origin_ns, cluster, log, accepts_owner=lambda _: True))
        heal(self._client, run.name, log, explicit=False)

    def restore(self, cluster: Cluster, log: Log) -> None:
        restore(cluster, log)

    def destroy(self, run_id: str) -> None:
        ownership.remove_run(self._client, run_id)

    def list_clusters(self, owner: str) -> list[str]:
        """Return the run ids of the owner's clusters, without kept clusters."""
        clusters = ownership.list_clusters(self._client)
        return [cluster.run_id for cluster in clusters if cluster.owner == owner and not cluster.keep]
