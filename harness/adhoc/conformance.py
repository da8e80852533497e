"""Conformance run of a client program (``docs/EXEC.md``) on a single-node cluster of its own, and its output."""

import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, Log
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.heal import defer_interrupts
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.safety.lease import host_lease
from aftershock.harness.safety.ownership import owner
from aftershock.results.model.text import visible
from aftershock.workloads.adapters.conformance.bench import Bench, StandingCluster
from aftershock.workloads.adapters.conformance.checks import Result, examine

RACK = "a"
PATIENCE_S = 30.0
LACKED_AS = {"transaction": "transactions"}
"""Words of a shipped program's ``lacks`` for operations that have another name there."""

_WIDTH = 80
_INDENT = " " * 8


class LaunchedCluster(StandingCluster):
    """Launched cluster, whose outages close every link between clients and brokers in Toxiproxy."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.bootstrap(RACK))
        self._toxiproxy = cluster.toxiproxy
        self._links = [proxy.name for proxy in cluster.spec.topology.proxies() if proxy.channel == "client"]

    def down(self) -> None:
        for link in self._links:
            self._toxiproxy.enable(link, enabled=False)

    def up(self) -> None:
        for link in self._links:
            self._toxiproxy.enable(link, enabled=True)


@contextmanager
def leased_cluster(kafka: str | None, log: Log) -> Iterator[LaunchedCluster]:
    """Lease a single-node cluster of a pool for the ``with`` block; raises the errors of `Pool.lease`."""
    spec, holder = ClusterSpec.of(ClusterPlan(racks={RACK: 1}), kafka), "aftershock conformance"
    with (
        tempfile.TemporaryDirectory(prefix="aftershock-conformance-", ignore_cleanup_errors=True) as folder,
        host_lease("integrity", holder, log),
    ):
        pool = Pool(Path(folder), owner(), 1, keep_dirty=True)  # the cluster is leased only once
        try:
            with pool.lease(spec, holder, log) as leased:
                yield LaunchedCluster(leased.cluster)
        finally:
            with defer_interrupts(log):
                pool.close(log)


def refuse_nonconforming(name: str, arm: Mapping[str, Any], kafka: str | None, log: Log) -> None:
    """Raise AftershockError with the rule and the reason if an arm's program fails a check to produce or consume."""
    command = arm["command"]
    log(f"checking the conformance of {name}")
    by_hand = f"--client {arm['client']}@{arm['version']}" if "version" in arm else f"-- {shlex.join(command)}"
    with leased_cluster(kafka, log) as cluster:
        for result in examine(Bench(command, cluster, PATIENCE_S, arm.get("settings")), ["produce", "consume"]):
            if result.outcome == "failed":
                raise AftershockError(
                    f"{name} does not follow the protocol of `client: exec`: {result.rule}: "
                    f"{visible(result.reason.splitlines()[0])}; see: aftershock conformance {by_hand}"
                )


def text(result: Result) -> str:
    """Return a result as lines for the terminal; a failure has the reason and the broken rule of the protocol."""
    width = min(shutil.get_terminal_size((_WIDTH, 24)).columns, 120)
    requirement = result.requirement.replace("``", "`")
    paragraphs = [f"{result.operation}: {requirement}", *result.reason.splitlines()]
    paragraphs += [] if result.rule in result.reason else [result.rule]
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(visible(paragraph), width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    ]
    outcome = result.outcome.upper() if result.outcome == "failed" else result.outcome
    return "\n".join([f"{outcome:8}{lines[0].strip()}", *lines[1:]])


def table(results: Sequence[Result]) -> str:
    """Return the number of checks with each outcome, and the result, of each operation."""
    lines = [f"{'operation':12}{'passed':>8}{'failed':>8}{'skipped':>8}  result"]
    for operation, of_operation in _by_operation(results).items():
        outcomes = [result.outcome for result in of_operation]
        counts = "".join(f"{outcomes.count(outcome):8}" for outcome in ("passed", "failed", "skipped"))
        lines.append(f"{operation:12}{counts}  {_conclusion(of_operation)}")
    return "\n".join(lines)


def document(results: Sequence[Result], command: Sequence[str], bootstrap: str) -> dict[str, Any]:
    """Return the JSON document that ``aftershock conformance --json`` prints."""
    operations = {
        operation: {
            "result": _conclusion(of_operation),
            "checks": [
                {key: value for key, value in asdict(result).items() if key != "operation"} for result in of_operation
            ],
        }
        for operation, of_operation in _by_operation(results).items()
    }
    return {"command": [*command], "bootstrap": bootstrap, "operations": operations}


def _by_operation(results: Sequence[Result]) -> dict[str, list[Result]]:
    by_operation: dict[str, list[Result]] = {}
    for result in results:
        by_operation.setdefault(result.operation, []).append(result)
    return by_operation


def _conclusion(results: Sequence[Result]) -> str:
    return "fails" if any(result.outcome == "failed" for result in results) else "passes"
