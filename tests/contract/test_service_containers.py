"""A service in a container: faults on its process hit the container, and no container outlives its service."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from aftershock.harness.cluster import engine
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN, WORKER
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.workloads.load.assignment import PipeAssignment
from aftershock.workloads.load.fleet import Fleet

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

LIMIT_S = 60.0
SCRIPT = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.1; done"


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    connected = engine.connect()
    yield connected
    connected.close()


async def until(state: str, client: docker.DockerClient, run_id: str) -> None:
    """Wait until the run's containers are in these states."""

    def others() -> str:
        found = client.containers.list(all=True, filters={"label": f"{RUN}={run_id}"}, ignore_removed=True)
        seen = " ".join(sorted(container.status for container in found))
        return "" if seen == state else f"they are {seen or 'gone'}"

    assert "" == await asyncio.to_thread(still_lacking, others, LIMIT_S)


async def test_faults_hit_the_container(client: docker.DockerClient, tmp_path: Path) -> None:
    run_id, worker, spool = f"test-{uuid4()}", "w-a-pipe", tmp_path / "spool"
    spool.mkdir()
    image = engine.tools_image(client, print).name
    labels = (word for name, value in {RUN: run_id, WORKER: worker}.items() for word in ("--label", f"{name}={value}"))
    command = ("docker", "run", "--rm", "--log-driver", "local", "--pull", "never", *labels, "--entrypoint", "sh")
    own = {"run_id": run_id, "origin_ns": time.monotonic_ns(), "worker": worker, "workload": "w", "arm": "a"}
    own |= {"client": "service", "topic": "orders", "topic_id": "i", "partitions": 2, "to": "billed", "rack": "a"}
    own |= {"bootstrap": "b:9", "spool": spool, "events": tmp_path / "events.jsonl", "container": True}
    own |= {"command": (*command, image, "-c", SCRIPT), "ready": {"log": "up"}}
    processes = ClientProcesses(run_id, spool)
    async with Fleet([PipeAssignment.model_validate(own)], tmp_path / "logs") as fleet:
        watching = asyncio.create_task(fleet.watch())
        await fleet.start(LIMIT_S)
        await until("running", client, run_id)
        await asyncio.to_thread(processes.pause, worker)
        await until("paused", client, run_id)
        assert ["paused"] == [process.state for process in processes.members()]
        await asyncio.to_thread(processes.resume, worker)
        await until("running", client, run_id)
        await asyncio.to_thread(processes.kill, worker)
        await until("", client, run_id)
        processes.release(worker)
        await until("running", client, run_id)
        await asyncio.to_thread(processes.leave, worker)
        await until("", client, run_id)
        assert "bye" in (tmp_path / "logs" / f"{worker}.log").read_text()
        processes.release(worker)
        await until("running", client, run_id)
        watching.cancel()
    await until("", client, run_id)
