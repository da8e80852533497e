"""SIGKILL of the injector at a random moment, kind by kind on kept clusters: after the heal no trace of the fault
remains.

Half of the faults are healed by ``aftershock heal``, half by the watchdog alone. The nightly runs every case of
every kind; by default the kind with the most undos runs.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from ruamel.yaml import YAML

from aftershock.harness.adhoc.kept import live_faults
from aftershock.harness.cluster.cluster import attach
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.world.world import ClusterWorld
from aftershock.tests.chaos.kinds.case import Case
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.tests.chaos.kinds.stand import CLUSTERS, Stand
from aftershock.tests.chaos.kinds.test_every_kind import CASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SEED = 6
BY_DEFAULT = "lose_rack"
HEALED_S = 90.0


def doomed() -> Iterator[Any]:
    number = 0
    for kind, cases in CASES.items():
        for place, case in enumerate(cases):
            by_default = kind == BY_DEFAULT and place == 0
            name = f"{kind}-{place}" if place else kind
            marks = [] if by_default else [pytest.mark.nightly]
            yield pytest.param(case.on, case, number, id=name, marks=marks)
            number += 1


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with keeping(request.param, tmp_path_factory.mktemp(f"kept-{request.param}")) as stand:
        yield stand


@contextmanager
def keeping(name: str, folder: Path) -> Iterator[Stand]:
    """Run a cluster kept by the command line until the block ends."""
    spec = folder / "spec.yaml"
    topic = {"name": TOPIC, "partitions": PARTITIONS, "replication": 3, "config": {"min.insync.replicas": "2"}}
    with spec.open("w") as file:
        YAML().dump({"cluster": CLUSTERS[name].model_dump(mode="json", exclude_none=True), "topics": [topic]}, file)
    aftershock("cluster", "up", str(spec), "--out", str(folder))
    (home,) = [each.parent for each in folder.glob("*/cluster.json")]
    client = docker.from_env()
    try:
        with closing(attach(client, home)) as cluster:
            clock = RunClock(json.loads((home / "run.json").read_text()).get("origin_ns", 0))
            yield Stand(cluster, ClusterWorld(cluster), clock, home)
    finally:
        ownership.remove_run(client, home.name)


@pytest.mark.parametrize(("kept", "case", "number"), [*doomed()], indirect=["kept"])
def test_no_trace_of_a_killed_injector_remains(kept: Stand, case: Case, number: int) -> None:
    """The injector dies at some moment of the fault; the cluster is as before, and no fault has a holder."""
    asyncio.run(kept.prepare(case))
    try:
        _killed_and_healed(kept, case, number)
    finally:
        asyncio.run(kept.clear_up(case))


def _killed_and_healed(kept: Stand, case: Case, number: int) -> None:
    before = asyncio.run(kept.broken())
    kill_injector(kept, case, number)
    if number % 2 == 0:
        aftershock("heal", "--run", kept.home.name)
    assert "" == still_lacking(
        lambda: ", ".join(each.id for each in live_faults(kept.home, kept.clock.now_us())), HEALED_S
    )
    kept.await_in_sync()
    assert before == asyncio.run(kept.broken())


def kill_injector(kept: Stand, case: Case, number: int) -> None:
    """Start `inject` and send SIGKILL between its first output and a while after the fault's end."""
    fault = case.fault()
    lasting = ["--for", f"{fault.for_}ms"] if fault.for_ else []
    pairs = [f"{key}={json.dumps(value)}" for key, value in fault.parameters().items()]
    command = [sys.executable, "-m", "aftershock.harness.cli", "inject", case.kind, *pairs, *lasting]
    draw = random.Random(SEED * 1000 + number)  # noqa: S311 -- reproducible, not secret
    moment_s = draw.uniform(0.3, (fault.for_ or 3_000) / 1000 + 1)
    with subprocess.Popen([*command, "--run", kept.home.name], stderr=subprocess.PIPE, text=True) as injecting:
        assert injecting.stderr
        first = injecting.stderr.readline()
        still_lacking(lambda: "it lives" if injecting.poll() is None else "", moment_s)
        injecting.kill()
        print(f"killed {moment_s:.1f} s after: {first}", injecting.stderr.read())


def aftershock(*arguments: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "aftershock.harness.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    print(told.stdout, told.stderr)
    assert 0 == told.returncode
