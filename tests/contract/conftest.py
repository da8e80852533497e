"""One three-rack cluster for all contract tests that only look; tests that break things start their own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from aftershock.faults.plan import Cluster as ClusterPlan
from aftershock.harness import engine
from aftershock.harness.cluster import Cluster
from aftershock.harness.spec import ClusterSpec

Launch = Callable[[ClusterPlan, Path], AbstractContextManager[Cluster]]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Launches a plan's cluster under a run id of the folder's name; it is gone when the block is left, however."""
    client = engine.connect()
    images = engine.kafka_image(client, engine.DEFAULT_KAFKA, print), engine.toxiproxy_image(client, print)

    @contextmanager
    def launched(plan: ClusterPlan, home: Path) -> Iterator[Cluster]:
        cluster = Cluster(ClusterSpec.of(plan), f"test-{home.name.lower()}", home, keep=False)
        try:
            cluster.launch(images[0].name, images[1].name, print)
            yield cluster
        finally:
            cluster.remove()

    return launched


@pytest.fixture(scope="session")
def cluster(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three racks, one combined node each, the `fast` profile."""
    with launch(ClusterPlan(), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
