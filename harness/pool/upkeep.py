"""What a pool does to its clusters, apart from who may have which: launch, attach, heal, restore, destroy.

The pool's rules (`pool.py`) are about processes and files, and are tested with clusters that are nothing but files;
here are the real ones.
"""

import asyncio
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol

import docker

from aftershock.harness import engine, labels
from aftershock.harness.cluster import Cluster, attach
from aftershock.harness.heal import heal, undo_open
from aftershock.harness.launching import Images, images_for, launch
from aftershock.harness.pool.restore import restore
from aftershock.harness.rundir import RunDir
from aftershock.harness.spec import ClusterSpec

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
        labels.remove_run(self._client, run_id)

    def standing(self, owner: str) -> list[str]:
        """See `Upkeep`."""
        return [found.run_id for found in labels.standing(self._client) if found.owner == owner and not found.keep]
