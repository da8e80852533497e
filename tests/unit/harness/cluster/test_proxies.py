"""The wire proxy of a cluster: start, attachment by descriptor, rules, probes, and errors after its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.wire_proxy.proxy import Route
from aftershock.faults.wire_proxy.rules import PROBED
from aftershock.harness.cluster.proxies import DESCRIPTOR_FILE, WireProxy
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.world.links import probe_rule
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.wire.connection import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DEADLINE_S = 20.0
LIMIT_MS = 5_000
SERVED = ("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "Heartbeat")


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as started:
        yield started


@pytest.fixture
def guard() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def proxy(broker: ScriptedBroker, guard: socket.socket, tmp_path: Path) -> Iterator[WireProxy]:
    ways = [Route("client_a-k1", "a", 1, broker.addresses[1])]
    started = WireProxy.start(ways, Address(*guard.getsockname()), tmp_path)
    yield started
    guard.close()
    assert not still_lacking(lambda: "it runs" if started.is_alive else "", DEADLINE_S)


def pid_of(proxy: WireProxy) -> int:
    return int(proxy._process.partition(":")[0])


def test_another_process_attaches_and_sets_rules(proxy: WireProxy, tmp_path: Path) -> None:
    """A process attaches by the descriptor; a duplicate rule is refused, and a removed rule is gone."""
    found = WireProxy.open(tmp_path)
    assert [] == found.held()
    found.add_rule({"name": "r", "do": "drop_request", "api": "Produce"})
    assert {"r": {"matched": 0, "hit": 0, "untouched": 0, "probed": 0}} == proxy.rules()
    with pytest.raises(FaultError, match="already"):
        proxy.add_rule({"name": "r", "do": "drop_request", "api": "Produce"})
    found.remove_rule("r")
    found.remove_rule("r")
    assert {} == proxy.rules()
    assert found.addresses == proxy.addresses


async def test_the_end_of_the_proxy_is_an_error_of_the_run(proxy: WireProxy) -> None:
    """The watcher learns it at once; adding a rule fails, and removing a rule is no error."""
    watching = asyncio.create_task(proxy.watch())
    await asyncio.sleep(0)
    os.kill(pid_of(proxy), signal.SIGKILL)
    with pytest.raises(ClusterError, match="without it no client can reach the cluster"):
        await asyncio.wait_for(watching, DEADLINE_S)
    with pytest.raises(FaultError, match="does not answer"):
        await asyncio.to_thread(proxy.rules)
    proxy.remove_rule("r")
    with pytest.raises(ClusterError, match="has ended"):
        await proxy.watch()


def test_a_missing_or_torn_descriptor_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="can't be read"):
        WireProxy.open(tmp_path)
    (tmp_path / DESCRIPTOR_FILE).write_text("{")
    with pytest.raises(ClusterError, match="can't be read"):
        WireProxy.open(tmp_path)


def test_a_proxy_that_does_not_start_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"wire_proxy\.log"):
        WireProxy.start([Route("no upstream", "a", 1, ())], Address("127.0.0.1", 1), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("api", SERVED)
async def test_a_probe_is_answered(proxy: WireProxy, broker: ScriptedBroker, api: str) -> None:
    """Each API's harmless request is answered unchanged without a rule, and with the rule's error with a rule."""
    addresses = proxy.addresses.values()
    plain = await probe_rule(addresses, "r", api, LIMIT_MS)
    assert "answered" == plain.outcome
    proxy.add_rule({"name": "r", "do": "answer_error", "api": api, "error": 74, "topic": "nobody's"})
    told = await probe_rule(addresses, "r", api, LIMIT_MS)
    assert 74 in told.errors - plain.errors
    assert 1 == proxy.rules()["r"]["probed"]
    assert api in PROBED
    del broker


async def test_a_probe_observes_the_effect_of_a_rule(proxy: WireProxy) -> None:
    """Closed, silent, late, and the offered versions."""
    addresses = proxy.addresses.values()
    seen = {}
    for name, rule in {
        "closed": {"do": "drop_response", "api": "Metadata"},
        "silent": {"do": "drop_response", "api": "Metadata", "connection": "silent"},
        "late": {"do": "delay_response", "api": "Metadata", "delay_ms": 200},
        "old": {"do": "cap_versions", "api": "ApiVersions", "versions": {"Fetch": 11}},
    }.items():
        proxy.add_rule({"name": name, **rule})
        limit_ms = 300 if name == "silent" else LIMIT_MS
        seen[name] = await probe_rule(addresses, name, str(rule["api"]), limit_ms)
    assert ["closed", "silent", "answered"] == [seen[name].outcome for name in ("closed", "silent", "late")]
    assert seen["late"].ms >= 200
    assert 11 == seen["old"].versions["Fetch"]


async def test_a_probe_without_broker_proves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = Address(*closed.getsockname())
    with pytest.raises(FaultError, match="no broker answers"):
        await probe_rule([address], "r", "Metadata", LIMIT_MS)
