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
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from aftershock.errors import LeaseError
from aftershock.harness.flock import Lock
from aftershock.results.files import write_whole

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
