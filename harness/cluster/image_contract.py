"""Contract of the Docker images that can be nodes of a cluster, and its test on an image (``docs/KAFKA.md``).

The contract is what the harness uses: the environment of `ClusterSpec.environment`, the volume of the log directory,
the shell scripts that faults run in a node's container, and the signals of Docker. An image is tested in two
containers, which have the capabilities, the limits and the labels of a node: the first one sleeps, the second one is a
cluster of one node. If the test is killed, the next run removes what it left, as of any dead process.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container

from aftershock.errors import AdminError, EngineError, ImageError, Log
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.engine import Image, docker_errors, local_image
from aftershock.harness.cluster.node import SHUT_DOWN_S, host_ports, last_log_lines
from aftershock.harness.cluster.topology import ADMIN_PORT, FAST, LOG_DIR, ClusterSpec, cluster_id_of
from aftershock.harness.kafka.admin import BROKER, Admin
from aftershock.harness.safety import ownership
from aftershock.harness.safety.lease import cache_folder
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.kafka.wire.connection import Address

TOOLS = (
    *("base64", "bash", "chmod", "chown", "cksum", "dd", "find", "grep", "id", "ls", "od", "rm"),
    *("sleep", "sort", "stat", "sync", "tail", "timeout", "tr", "wc"),
)
_READY_S = 90.0
_KILLED = 128 + 9
_NODE = BrokerId(1)
_TOPIC = "contract"
_THREADS, _MARK = "5", "-Daftershock.contract=kept"
_SPEC = ClusterSpec("", {"a": 1}, 0, FAST, {"num.io.threads": _THREADS})


@dataclass(frozen=True)
class Line:
    """A line of the contract: what an image must do, how to make it do so, and its test.

    ``test`` returns the problem, "" for a kept line. A line can't be tested if the image breaks the line ``needs``.
    """

    name: str
    promise: str
    remedy: str
    test: "Callable[[Trial], str]"
    needs: str = ""


@dataclass(frozen=True)
class Result:
    """Result of the test of a line; ``problem`` is empty if the image keeps it."""

    line: Line
    problem: str

    def __str__(self) -> str:
        if not self.problem:
            return f"OK      {self.line.name}: {self.line.promise}"
        return f"BROKEN  {self.line.name}: {self.line.promise}; {self.line.remedy}. {self.problem}"


def checked_image(client: docker.DockerClient, name: str, log: Log) -> Image:
    """Return an image of the engine that keeps the contract; an image that did so before is not tested again.

    Raises ImageError if the image is missing, or with the first line of the contract that it breaks.
    """
    image = local_image(client, name)
    record = cache_folder() / "contracts" / f"{image.digest.rpartition(':')[2]}.json"
    promises = [line.promise for line in CONTRACT]
    if record.exists() and json.loads(record.read_text()) == promises:
        return image
    log(f"testing the image {name} against the contract of node images")
    for result in check_image(client, name):
        if result.problem:
            raise ImageError(f"the image {name} can't be a node: {result}. All lines: aftershock images --check {name}")
    record.parent.mkdir(parents=True, exist_ok=True)
    write_whole(record, json.dumps(promises))
    return image


def check_image(client: docker.DockerClient, name: str) -> Iterator[Result]:
    """Yield the result of each line of the contract for an image of the engine; raise EngineError if Docker refuses."""
    run_id, broken = f"contract-{secrets.token_hex(4)}", set[str]()
    trial = Trial(client, name, run_id, ownership.labels_of(run_id, Path.cwd(), keep=False))
    try:
        with docker_errors(EngineError, f"create the network {trial.network}"):
            client.networks.create(trial.network, labels=trial.labels)
        for line in CONTRACT:
            try:
                problem = f"It can't be tested without `{line.needs}`" if line.needs in broken else line.test(trial)
            except AdminError as error:
                problem = f"The node does not answer: {error}"
            if problem:
                broken.add(line.name)
            yield Result(line, problem)
    finally:
        ownership.remove_run(client, run_id)


class Trial:
    """The containers in which an image is tested; ``sleeper`` and ``node`` are started by the first test of each."""

    def __init__(self, client: docker.DockerClient, image: str, run_id: str, labels: dict[str, str]) -> None:
        self._client, self._image, self._run_id = client, image, run_id
        self.labels, self.network = labels, f"aftershock-{run_id}"
        self.sleeper: Container
        self.node: Container

    def start_sleeper(self) -> None:
        self.sleeper = self._start("sleeper", ["sleep", "infinity"])

    def start_node(self) -> None:
        (node,) = _SPEC.topology.nodes
        environment = _SPEC.environment(
            node, cluster_id_of(self._run_id), {"CLIENT_A": "localhost:1", "ADMIN": "localhost:2"}
        )
        environment["KAFKA_OPTS"] = _MARK
        self.node = self._start(
            "node", None, environment=environment, hostname=node.name, ports={f"{ADMIN_PORT}/tcp": ("127.0.0.1", None)}
        )

    @property
    def cluster_id(self) -> str:
        return cluster_id_of(self._run_id)

    def admin(self) -> Admin:
        """Return a client for the node, whose port on the host is another one after each start."""
        return Admin({_NODE: Address("127.0.0.1", host_ports(self.node).get(ADMIN_PORT, 1))})

    def await_ready(self) -> str:
        """Wait until the node is a broker in service; return "", or why it is not."""
        deadline_s = time.monotonic() + _READY_S
        while problem := self._not_ready():
            if self.node.status != "running" or time.monotonic() > deadline_s:
                end = last_log_lines(self.node).strip()
                wrote = f"its output ends with:\n{end}" if end else "it wrote nothing"
                return f"After its start {problem}, and {wrote}"
            time.sleep(0.2)
        return ""

    def _not_ready(self) -> str:
        self.node.reload()
        if self.node.status != "running":
            return f"the container is {self.node.status}"
        with closing(self.admin()) as admin:
            try:
                return "" if any(not member.fenced for member in admin.members()) else "the broker is not in service"
            except AdminError as error:
                return str(error)

    def _start(self, role: str, command: list[str] | None, **options: Any) -> Container:
        name = f"aftershock-{self._run_id}-{role}"
        with docker_errors(ImageError, f"start a container of {self._image}"):
            self._client.volumes.create(name, labels=self.labels)
            return self._client.containers.run(
                self._image,
                command,
                name=name,
                labels=self.labels,
                network=self.network,
                mem_limit=_SPEC.memory,
                cap_drop=["DAC_OVERRIDE"],
                volumes={name: {"bind": LOG_DIR, "mode": "rw"}},
                detach=True,
                **options,
            )


def _run(container: Container, script: str) -> tuple[int, str]:
    try:
        code, output = container.exec_run(["sh", "-c", script])
    except APIError as error:
        return 1, str(error.explanation or error)
    return code, output.decode(errors="replace").strip()


def _command(trial: Trial) -> str:
    try:
        trial.start_sleeper()
    except ImageError as error:
        return f"Docker says: {error}"
    code, output = _run(trial.sleeper, "tr '\\0' ' ' < /proc/1/cmdline")
    trial.sleeper.reload()
    if trial.sleeper.status != "running":
        return f"The container is {trial.sleeper.status}: {last_log_lines(trial.sleeper)}"
    return "" if code == 0 and output.startswith("sleep infinity") else f"Process 1 is `{output}`"


def _tools(trial: Trial) -> str:
    code, output = _run(
        trial.sleeper, f'for tool in {" ".join(TOOLS)}; do command -v "$tool" >/dev/null || echo "$tool"; done'
    )
    if code:
        return f"A script can't run: {output}"
    return f"Missing: {', '.join(output.split())}" if output else ""


def _data(trial: Trial) -> str:
    code, output = _run(trial.sleeper, f"id -u && echo test > {LOG_DIR}/contract && rm {LOG_DIR}/contract")
    return f"A file can't be written: {output}" if code else ""


def _boot(trial: Trial) -> str:
    try:
        trial.start_node()
    except ImageError as error:
        return f"Docker says: {error}"
    if problem := trial.await_ready():
        return problem
    with closing(trial.admin()) as admin:
        cluster_id = admin.cluster_id()
    return "" if cluster_id == trial.cluster_id else f"The cluster's id is {cluster_id}, not that of CLUSTER_ID"


def _properties(trial: Trial) -> str:
    expected = {"node.id": str(_NODE), "broker.rack": "a", "num.io.threads": _THREADS, "log.dirs": LOG_DIR}
    with closing(trial.admin()) as admin:
        actual = admin.configs(BROKER, str(_NODE))
    wrong = [
        f"{name} is {actual.get(name)}, not {value}" for name, value in expected.items() if actual.get(name) != value
    ]
    return f"Of the node {', '.join(wrong)}" if wrong else ""


def _jvm(trial: Trial) -> str:
    _, output = _run(trial.node, "for file in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $file; done 2>/dev/null")
    flags = {*output.split("\n")}
    expected = [*FAST.heap_flags.split(), *FAST.jvm_flags.split(), _MARK]
    missing = [flag for flag in expected if flag not in flags]
    return f"No process has {', '.join(missing)}" if missing else ""


def _output(trial: Trial) -> str:
    return "" if b"Kafka version: " in trial.node.logs() else "The output has no line `Kafka version: `"


def _signal(trial: Trial) -> str:
    with closing(trial.admin()) as admin:
        admin.create_topic(_TOPIC, 1, 1, {})
    with docker_errors(ImageError, "stop the node"):
        trial.node.stop(timeout=SHUT_DOWN_S)
        trial.node.reload()
    code = trial.node.attrs["State"]["ExitCode"]
    return f"Docker had to kill the node after {SHUT_DOWN_S} s" if code == _KILLED else ""


def _restart(trial: Trial) -> str:
    with docker_errors(ImageError, "start the node again"):
        trial.node.start()
    if problem := trial.await_ready():
        return problem
    with closing(trial.admin()) as admin:
        return "" if _TOPIC in admin.topics() else "A topic that was created before the restart is gone"


CONTRACT = (
    Line(
        "command",
        "a command replaces the image's own, so that `sleep infinity` runs",
        'leave out ENTRYPOINT, or let its script end with: exec "$@"',
        _command,
    ),
    Line(
        "tools", "faults find their tools on the PATH", "install bash, coreutils, findutils and grep", _tools, "command"
    ),
    Line(
        "data",
        f"the image's user may write to a new volume at {LOG_DIR}",
        f"make the folder {LOG_DIR} in the image, and give it to the user of the image (chown)",
        _data,
        "command",
    ),
    Line(
        "boot",
        "the image's own command formats the storage with CLUSTER_ID, and starts a KRaft node",
        "let CMD do so, as /etc/kafka/docker/run of Kafka's own image does",
        _boot,
    ),
    Line(
        "properties",
        "each variable KAFKA_* becomes a property of the node: `_` is a dot, `__` is `_`, and `___` is `-`",
        "write the variables to server.properties before the node starts",
        _properties,
        "boot",
    ),
    Line(
        "jvm",
        "KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS and KAFKA_OPTS are flags of the JVM",
        "start the node with Kafka's own scripts, or add the three variables to the command line of java",
        _jvm,
        "boot",
    ),
    Line(
        "output",
        "the node's log, from INFO on, goes to standard output",
        "configure a console appender for the root logger",
        _output,
        "boot",
    ),
    Line(
        "signal",
        f"SIGTERM to process 1 shuts the node down within {SHUT_DOWN_S} s",
        "start the node with `exec`, so that it is process 1",
        _signal,
        "boot",
    ),
    Line(
        "restart",
        "a container that is started again is the same node with the same data",
        "don't format a log directory that is formatted already",
        _restart,
        "boot",
    ),
)
