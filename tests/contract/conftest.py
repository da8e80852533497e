"""One three-rack cluster for all contract tests that only read; tests that break a cluster start their own."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for
from aftershock.harness.lifecycle.launch import launch as launch_cluster
from aftershock.harness.safety import ownership

Launch = Callable[[ClusterPlan, Path], AbstractContextManager[Cluster]]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Return a context manager that runs a plan's cluster under a run id with the folder's name."""
    client = engine.connect()

    @contextmanager
    def launched(plan: ClusterPlan, home: Path) -> Iterator[Cluster]:
        spec, run_id = ClusterSpec.of(plan), f"test-{home.name.lower()}-{os.getpid()}"
        try:
            with closing(launch_cluster(spec, run_id, home, images_for(client, spec, print), print)) as cluster:
                yield cluster
        finally:
            ownership.remove_run(client, run_id)

    return launched


@pytest.fixture(scope="session")
def cluster(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three racks, one combined node each, the `fast` profile."""
    with launch(ClusterPlan(), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
