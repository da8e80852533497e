"""A version of a client: built from its package registry into an empty cache, and conforming on a real cluster."""

from pathlib import Path

import pytest

from aftershock.harness.adhoc.conformance import leased_cluster
from aftershock.harness.clients.build import built, find
from aftershock.workloads.adapters.conformance.bench import Bench
from aftershock.workloads.adapters.conformance.checks import examine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CLIENT, VERSION = "kafka-python", "3.0.6"


def test_a_version_is_built_and_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest of the clients, whose other versions and neighbours the nightly examines."""
    with monkeypatch.context() as changed:
        changed.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert find(CLIENT, VERSION) is None
        program = built(CLIENT, VERSION, print)
        assert find(CLIENT, VERSION) == program
    assert program.folder.is_relative_to(tmp_path)
    with leased_cluster(None, print) as cluster:
        results = list(examine(Bench(program.command, cluster, 30.0), ["produce", "consume"]))
    assert [] == [(result.check, result.reason) for result in results if result.outcome != "passed"]
