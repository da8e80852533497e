"""Shipped programs around client libraries pass every conformance check of ``docs/EXEC.md``, on one node."""

from collections.abc import Iterator
from itertools import chain

import pytest

from aftershock.harness.adhoc.conformance import LACKED_AS, LaunchedCluster, leased_cluster
from aftershock.harness.clients.build import Program
from aftershock.harness.clients.catalogue import CATALOGUE
from aftershock.tests.clients.build import CLIENTS, Client, Missing
from aftershock.workloads.adapters.conformance.bench import Bench
from aftershock.workloads.adapters.conformance.checks import CHECKS, examine
from aftershock.workloads.adapters.conformance.group import commits_what_it_has_reported

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

PATIENCE_S = 30.0
OLDEST = [Client(name, library.title, library.known[0]) for name, library in CATALOGUE.items()]
EVERY = [*chain.from_iterable(zip(OLDEST, CLIENTS, strict=True))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LaunchedCluster]:
    with leased_cluster(None, print) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Program:
    client: Client = request.param
    try:
        return client.program
    except Missing as reason:
        pytest.skip(f"{client.library}: {reason}")


@pytest.mark.parametrize("operation", CHECKS)
@pytest.mark.parametrize("program", EVERY, indirect=True, ids=[f"{client.name}-{client.version}" for client in EVERY])
def test_a_client_conforms(cluster: LaunchedCluster, program: Program, operation: str) -> None:
    if reason := program.lacks.get(LACKED_AS.get(operation, operation)):
        pytest.skip(reason)
    results = list(examine(Bench(program.command, cluster, PATIENCE_S), [operation]))
    assert [] == [(result.check, result.outcome, result.reason) for result in results if result.outcome == "failed"]
    # the report `committed` is optional; whatever else a program can't do, its `lacks` say
    skipped = {result.check for result in results if result.outcome == "skipped"}
    assert skipped <= {commits_what_it_has_reported.__name__}
