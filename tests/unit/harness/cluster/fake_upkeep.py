"""Clusters that consist of files, so that the pool's rules are tested between real processes without Docker.

``engine`` plays Docker: it holds a file for each running cluster, with the cluster's owner; ``log`` lists the
operations in order. Two kinds of files make an operation misbehave: ``fail-<operation>`` makes it fail,
``hang-<operation>`` makes it report that it started and never return.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster.topology import ClusterSpec

ONE = ClusterSpec.of(ClusterPlan(racks={"a": 1}))
TWO = ClusterSpec.of(ClusterPlan(racks={"a": 1, "b": 1}))
SPECS = {"one": ONE, "two": TWO}


@dataclass
class FakeCluster:
    run_id: str

    def close(self) -> None: ...


class FakeUpkeep:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engine = folder / "engine"
        self._engine.mkdir(exist_ok=True)

    def log(self) -> list[str]:
        file = self._folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def images(self, *_: Any) -> Any:
        self._did("images", "")

    def launch(self, _spec: Any, run_id: str, home: Path, _images: Any, owner: str, _log: Any) -> Any:
        (self._engine / run_id).write_text(owner)
        self._did("launch", run_id)
        (home / "cluster.json").write_text(run_id)
        return FakeCluster(run_id)

    def attach(self, home: Path) -> Any:
        if not (self._engine / home.name).exists():
            raise ClusterError(f"the cluster {home.name} is gone")
        return FakeCluster((home / "cluster.json").read_text())

    def heal(self, cluster: Any, run: Path, _log: Any) -> None:
        self._did("heal", f"{cluster.run_id} after {run.name}")

    def restore(self, cluster: Any, _log: Any) -> None:
        self._did("restore", cluster.run_id)

    def destroy(self, run_id: str) -> None:
        (self._engine / run_id).unlink(missing_ok=True)
        self._did("destroy", run_id)

    def list_clusters(self, owner: str) -> list[str]:
        self._did("list_clusters", "")
        names = [path.name for path in self._engine.iterdir() if path.read_text() == owner]
        return [name for name in names if not list(self._folder.glob(f"pool/*/{name}/keep"))]

    def _did(self, operation: str, cluster: str) -> None:
        if operation not in {"images", "list_clusters"}:
            with (self._folder / "log").open("a") as log:
                log.write(f"{operation} {cluster}\n")
        if (self._folder / f"fail-{operation}").exists():
            raise ClusterError(f"{operation} went wrong")
        if (self._folder / f"hang-{operation}").exists():
            print(f"hanging in {operation}", flush=True)
            signal.pause()
