"""Clients of seven libraries pass every conformance check of ``docs/EXEC.md``, on a cluster of one node."""

from collections.abc import Iterator

import pytest

from aftershock.harness.adhoc.conformance import LaunchedCluster, leased_cluster
from aftershock.tests.clients.build import CLIENTS, Client, Missing
from aftershock.workloads.adapters.conformance.bench import Bench
from aftershock.workloads.adapters.conformance.checks import CHECKS, examine
from aftershock.workloads.adapters.conformance.group import commits_what_it_has_reported

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(300)]

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LaunchedCluster]:
    with leased_cluster(None, print) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def command(request: pytest.FixtureRequest) -> list[str]:
    client: Client = request.param
    try:
        return client.command
    except Missing as reason:
        pytest.skip(f"{client.library}: {reason}")


@pytest.mark.parametrize("operation", CHECKS)
@pytest.mark.parametrize("command", CLIENTS, indirect=True, ids=[client.folder for client in CLIENTS])
def test_a_client_conforms(cluster: LaunchedCluster, command: list[str], operation: str) -> None:
    results = list(examine(Bench(command, cluster, PATIENCE_S), [operation]))
    assert [] == [(result.check, result.outcome, result.reason) for result in results if result.outcome == "failed"]
    # the report `committed` is optional, and so are transactions
    skipped = {result.check for result in results if result.outcome == "skipped"}
    optional = {check.__name__ for check in (commits_what_it_has_reported, *CHECKS["transaction"])}
    assert skipped <= optional
    assert not (operation == "transaction" and skipped and "franz_go" in command[-1])
