"""A pool on disk: whose it is, and a folder for each slot, which any process may lease.

::

    pool/pool.json                            whose pool it is
         slot-0/lease.lock                    held by whoever leases the slot; the kernel lets go of it when that dies
                lease.json                    what stands in the slot; no file: nothing does
                pool-3fa91c-0-7e2d/           the home of the cluster that stands there

    lease.json:  launching ─▶ used ─▶ clean
                               ▲        │
                               └────────┘

With the lock free, ``launching`` is half a cluster, and ``used`` is one as its last lessee left it: killed, or told not
to restore it. A state is on disk before what it announces is begun: whoever finds the lock free knows what to do.

What a pool does to its clusters, apart from who may have which: launch, attach, heal, restore, destroy.

The pool's rules (`pool.py`) are about processes and files, and are tested with clusters that are nothing but files;
here are the real ones.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

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
_CARD = "pool.json"


@dataclass(frozen=True)
class Card:
    """Whose pool it is. The run ids of its clusters begin with ``pool-<id>-``; a closed one leases no more."""

    id: str
    owner: str
    closed: bool = False

    @classmethod
    def read(cls, pool: Path) -> "Card | None":
        """The card in a pool's folder, None if there is none yet. LeaseError if it can't be read."""
        return _read(pool / _CARD, cls)

    def write(self, pool: Path) -> None:
        """Put it into the pool's folder."""
        _write(pool / _CARD, self)


@dataclass(frozen=True)
class Record:
    """What stands in a slot.

    Attributes:
        state: see the module.
        cluster: the cluster's run id.
        spec: its specification, as `ClusterSpec.to_json` gives it.
        owner: the process of the last lessee, as `labels.owner` gives it.
        run: the run directory that the last lessee drove; None if it drove none yet.
    """

    state: State
    cluster: str
    spec: Mapping[str, Any]
    owner: str
    run: str | None = None


class Slot:
    """One slot; only who holds ``lock`` writes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(folder / "lease.lock")
        self._folder = folder
        self._file = folder / "lease.json"

    def record(self) -> Record | None:
        """What stands here, None for nothing. LeaseError if that can't be read."""
        return _read(self._file, Record)

    def write(self, record: Record) -> None:
        """Say what stands here."""
        _write(self._file, record)

    def home(self, cluster: str) -> Path:
        """The home of a cluster that stands here."""
        return self._folder / cluster

    def forget(self) -> None:
        """Nothing stands here that is the pool's; the home stays."""
        self._file.unlink(missing_ok=True)

    def clear(self, cluster: str) -> None:
        """The cluster that stood here was removed; so is its home."""
        shutil.rmtree(self.home(cluster), ignore_errors=True)
        self.forget()


_Document = TypeVar("_Document", Card, Record)


def _read(file: Path, kind: type[_Document]) -> _Document | None:
    try:
        return kind(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        what = f"can't read {file} ({error})"
        raise LeaseError(f"{what}; remove the pool's folder, and its clusters with: aftershock heal") from error


def _write(file: Path, document: Card | Record) -> None:
    """Write it so that a reader never sees half of it."""
    write_whole(file, json.dumps(asdict(document), indent=1) + "\n")


Say = Callable[[str], None]


class Upkeep(Protocol):
    """What can be done to a cluster by any process. Raises an AftershockError for what could not be done."""

    def images(self, spec: ClusterSpec, say: Say) -> Images:
        """The images of such a cluster, found, pulled or built."""

    def launch(self, spec: ClusterSpec, run_id: str, home: Path, images: Images, owner: str, say: Say) -> Cluster:
        """Bring a cluster up that belongs to ``owner``; on an error, what was begun is left to `destroy`."""

    def attach(self, home: Path) -> Cluster:
        """The cluster that was launched in ``home``."""

    def heal(self, cluster: Cluster, run: Path, say: Say) -> None:
        """Undo what a run's journal says is in force, and clear up after its clients; nobody drives it any more."""

    def restore(self, cluster: Cluster, say: Say) -> None:
        """Make a cluster as new, and prove it."""

    def destroy(self, run_id: str) -> None:
        """Remove a cluster, or what there is of it."""

    def standing(self, owner: str) -> list[str]:
        """The run ids of what belongs to ``owner``, kept clusters left out."""


class DockerUpkeep:
    """The real one; it connects to the engine when it is first needed."""

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def images(self, spec: ClusterSpec, say: Say) -> Images:
        """See `Upkeep`."""
        return images_for(self._client, spec, say)

    def launch(self, spec: ClusterSpec, run_id: str, home: Path, images: Images, owner: str, say: Say) -> Cluster:
        """See `Upkeep`."""
        return launch(spec, run_id, home, images, say, owner=owner)

    def attach(self, home: Path) -> Cluster:
        """See `Upkeep`."""
        return attach(self._client, home)

    def heal(self, cluster: Cluster, run: Path, say: Say) -> None:
        """See `Upkeep`."""
        if run.is_dir():
            origin_ns = RunDir.open(run).facts.get("origin_ns", 0)
            asyncio.run(undo_open(run / "journal.jsonl", origin_ns, cluster, say, whose=lambda _: True))
        heal(self._client, run.name, say, asked=False)

    def restore(self, cluster: Cluster, say: Say) -> None:
        """See `Upkeep`."""
        restore(cluster, say)

    def destroy(self, run_id: str) -> None:
        """See `Upkeep`."""
        ownership.remove_run(self._client, run_id)

    def standing(self, owner: str) -> list[str]:
        """See `Upkeep`."""
        return [found.run_id for found in ownership.standing(self._client) if found.owner == owner and not found.keep]
