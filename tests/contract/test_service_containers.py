"""Services in containers: faults hit the container, and no end of its worker leaves it behind."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from aftershock.errors import WorkloadError
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import RunContext, service_command
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN, labels_of, remove_run, remove_services
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.workloads.adapters.service import CLOSE_S
from aftershock.workloads.load.assignment import PipeAssignment
from aftershock.workloads.load.fleet import Fleet

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

PATIENCE_S = 30.0
START_S = 60.0
WORKER = "billing-app-pipe"
PROGRAM = "trap 'exit 0' TERM; echo started; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; echo started; while :; do sleep 0.1; done"


class Service:
    """One service in a container, with a worker as in a run."""

    def __init__(self, client: docker.DockerClient, home: Path) -> None:
        self.client, self.home = client, home
        self.run_id = f"contract-{home.name.lower().replace('_', '-')}"
        (home / "spool").mkdir()
        self.faults = ClientProcesses(self.run_id, home / "spool")

    def fleet(self, program: str) -> Fleet:
        image = engine.kafka_image(self.client, engine.DEFAULT_KAFKA, print).name
        context = RunContext(self.run_id, 0, self.home / "spool", self.home / "events.jsonl", {}, {})
        context = RunContext(**vars(context) | {"labels": labels_of(self.run_id, self.home, keep=False)})
        arm = {"arm": "app", "client": "service", "image": image, "command": ["sh", "-c", program]}
        command = service_command(arm, WORKER, context)
        own = {"run_id": self.run_id, "origin_ns": time.monotonic_ns(), "worker": WORKER, "workload": "billing"}
        own |= {"arm": "app", "client": "service", "topic": "orders", "topic_id": "i", "partitions": 2, "to": "billed"}
        own |= {"rack": "a", "bootstrap": "b:9", "spool": context.spool, "events": context.events}
        own |= {"command": command, "in_container": True, "ready": {"log": "started"}}
        return Fleet([PipeAssignment.model_validate(own)], self.home / "logs")

    def containers(self) -> dict[str, str]:
        """Return the state of each container of the run by its id."""
        found = self.client.containers.list(all=True, filters={"label": f"{RUN}={self.run_id}"}, ignore_removed=True)
        return {container.id: container.status for container in found}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    client = engine.connect()
    service = Service(client, tmp_path)
    yield service
    remove_run(client, service.run_id)
    client.close()


def await_containers(service: Service, *states: str) -> None:
    def lacking() -> str:
        found = [*service.containers().values()]
        return "" if [*states] == found else f"the containers are {found}"

    assert not still_lacking(lacking, PATIENCE_S)


def await_start(service: Service, times: int) -> None:
    """Wait until the service has told so many times that it has started."""

    def lacking() -> str:
        lines = (service.home / "logs" / f"{WORKER}.log").read_text().splitlines()
        return "" if lines.count("started") == times else f"its output is {lines}"

    assert not still_lacking(lacking, PATIENCE_S)


async def test_faults_hit_the_container(service: Service) -> None:
    """A pause freezes it, a kill ends it, and the process that comes after the fault is in a container of its own."""
    async with service.fleet(PROGRAM) as fleet:
        await fleet.start(START_S)
        first = [*service.containers()]
        assert ["running"] == [*service.containers().values()]
        await asyncio.to_thread(service.faults.pause, WORKER)
        assert ["paused"] == [*service.containers().values()]
        assert ["paused"] == [client.state for client in service.faults.members()]
        await asyncio.to_thread(service.faults.resume, WORKER)
        assert ["running"] == [*service.containers().values()]
        await asyncio.to_thread(service.faults.kill, WORKER)
        await asyncio.to_thread(await_containers, service)
        service.faults.release(WORKER)
        await asyncio.to_thread(await_start, service, 2)
        assert ["running"] == [*service.containers().values()]
        assert first != [*service.containers()]
        await fleet._workers[0]._up.wait()
        await fleet.quit()
        await asyncio.to_thread(await_containers, service)


async def test_a_service_that_ignores_sigterm_leaves_no_container(service: Service) -> None:
    """Its `docker run` is killed, and the container, which would write on, is killed with it."""
    async with service.fleet(DEAF) as fleet:
        await fleet.start(START_S)
        await fleet.quit(CLOSE_S + START_S)
        await asyncio.to_thread(await_containers, service)


async def test_what_a_killed_worker_leaves_is_removed(service: Service) -> None:
    """The worker's SIGKILL takes its `docker run` along, and not the container: the run removes it at its end."""
    async with service.fleet(PROGRAM) as fleet:
        await fleet.start(START_S)
        os.kill(fleet.pids()[WORKER], signal.SIGKILL)
        with pytest.raises(WorkloadError):
            await fleet.watch()
    assert ["running"] == [*service.containers().values()]
    remove_services(service.client, service.run_id)
    assert {} == service.containers()
