"""A compose project of the user's for tests: three combined nodes, a web server, and a stranger's Kafka beside it.

No image registry and no Docker Compose is needed: the containers have the labels that Docker Compose gives them, and
our own broker image. They also have the test's labels, so that they are always removed.
"""

import io
import socket
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from confluent_kafka.admin import AdminClient, NewTopic
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.harness.attach.attached import describe_cluster
from aftershock.harness.attach.broker_containers import PROJECT, SERVICE
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.engine import run_to_end
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.workloads.load.security import SecuritySettings

BROKERS = (1, 2, 3)
_RUN = "/etc/kafka/docker/run"
_START_S = 90
_COMPOSE = """\
name: {project}
services:
  kafka-1: &kafka {{image: kafka}}
  kafka-2: *kafka
  kafka-3: *kafka
  web: {{image: web}}
"""


@dataclass(frozen=True)
class ComposeKafka:
    """Containers by service, the port of each broker on this host, its compose file, and a stranger's container."""

    client: docker.DockerClient
    file: Path
    project: str
    ports: dict[int, int]
    containers: dict[str, Container]
    stranger: Container
    tools: str

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.ports.values())

    def name(self, broker: int) -> str:
        return str(self.containers[f"kafka-{broker}"].name)

    def options(self, *brokers: int) -> list[str]:
        """Return the options that permit a plan to use the cluster, with these containers, by default all."""
        words = [f"--allow-attach={address}" for address in self.bootstrap.split(",")]
        return words + [f"--allow-container={self.name(broker)}" for broker in brokers or BROKERS]

    def fingerprint(self, container: Container) -> dict[str, Any]:
        """Return what a fault could change: when a container was started, its limits, and its network rules."""
        container.reload()
        state, host = container.attrs["State"], container.attrs["HostConfig"]
        return {
            "state": (state["Status"], state["StartedAt"], state["Pid"]),
            "limits": (host["CpuQuota"], host["Memory"], host["NanoCpus"]),
            "rules": self.rules(container),
        }

    def rules(self, container: Container) -> str:
        """Return the firewall of a container's network namespace."""
        script = "iptables-legacy -S; ethtool -k eth0 | grep segmentation"
        options = {"network_mode": f"container:{container.id}", "cap_add": ["NET_ADMIN"], "user": "0"}
        output = run_to_end(self.client, self.tools, ["-c", script], entrypoint="sh", **options)
        return output.decode()

    def helpers(self) -> list[str]:
        found = self.client.containers.list(all=True, filters={"label": "aftershock.packets"})
        return [str(container.name) for container in found]


def free_ports(count: int) -> list[int]:
    """Return ports of this host that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def compose_kafka(
    home: Path,
    ports: dict[int, int] | None = None,
    advertised: dict[int, int] | None = None,
    toxiproxy: dict[str, Any] | None = None,
) -> Iterator[ComposeKafka]:
    """Run the project until the block ends; brokers publish ``ports``, and advertise the same ports or ``advertised``.

    With ``toxiproxy``, a service of a compose file with its configuration under ``config``, that service publishes the
    ports in the place of the brokers.
    """
    client, run_id = engine.connect(), f"compose-{home.name}"[:40]
    project = "".join(letter for letter in run_id if letter.isalnum() or letter in "-_").lower()
    marks = ownership.labels_of(run_id, home, keep=False)
    tools, image = engine.tools_image(client, print).name, engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name
    ports = ports or dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
    file = home / "docker-compose.yml"
    file.write_text(_COMPOSE.format(project=project))
    try:
        network = client.networks.create(run_id, labels=marks).name

        def start(service: str, command: list[str], **options: Any) -> Container:
            aliases = {network: client.api.create_endpoint_config(aliases=[service])}
            labels = marks | options.pop("labels", {PROJECT: project, SERVICE: service})
            container = client.containers.create(
                image,
                command,
                name=f"{project}-{service}-1",
                labels=labels,
                network=network,
                networking_config=aliases,
                **options,
            )
            container.start()
            return container

        idle = {"entrypoint": "sleep", "command": ["infinity"]}
        containers = {}
        if toxiproxy:
            containers["toxiproxy"] = _toxiproxy(client, toxiproxy, network, marks)
        for broker in BROKERS:
            containers[f"kafka-{broker}"] = start(
                f"kafka-{broker}",
                [_RUN],
                environment=_environment(broker, (advertised or ports)[broker]),
                ports={} if toxiproxy else {"9092/tcp": ("127.0.0.1", ports[broker])},
                mem_limit="700m",
            )
        containers["web"] = start("web", **idle)
        stranger = start("kafka-9", **idle, labels={}, environment={"KAFKA_NODE_ID": "1"})
        kafka = ComposeKafka(client, file, project, ports, containers, stranger, tools)
        _await_brokers(kafka)
        yield kafka
    finally:
        ownership.remove_run(client, run_id)
        client.close()


def _toxiproxy(client: docker.DockerClient, service: dict[str, Any], network: str, marks: dict[str, str]) -> Container:
    """Start a service as Docker Compose would; the configuration is copied in, in the place of a mount."""
    published = {}
    for text in service["ports"]:
        address, outside, inside = text.split(":")
        published[f"{inside}/tcp"] = (address, int(outside))
    container = client.containers.create(
        service["image"], service["command"], labels=marks, network=network, ports=published
    )
    path = service["volumes"][0].split(":")[1]
    content, buffer = service["config"].encode(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size, member.mode = len(content), 0o644
        tar.addfile(member, io.BytesIO(content))
    container.put_archive("/", buffer.getvalue())
    container.start()
    return container


def _environment(broker: int, port: int) -> dict[str, str]:
    settings = {
        "node.id": broker,
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{id_}@kafka-{id_}:9093" for id_ in BROKERS),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INSIDE",
        "listeners": "CLIENTS://:9092,INSIDE://:9094,CONTROLLER://:9093",
        "advertised.listeners": f"CLIENTS://localhost:{port},INSIDE://kafka-{broker}:9094",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "/var/lib/kafka/data",
        "broker.rack": f"zone-{broker}",
        "offsets.topic.num.partitions": 1,
        "min.insync.replicas": 2,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 16777216,
    }
    return {f"KAFKA_{key.replace('.', '_').upper()}": str(value) for key, value in settings.items()} | {
        "CLUSTER_ID": "Y29tcG9zZS1rYWZrYS0xMQ",
        "KAFKA_HEAP_OPTS": "-Xms192m -Xmx256m",
        "KAFKA_JVM_PERFORMANCE_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def _await_brokers(kafka: ComposeKafka) -> None:
    def lacking() -> str:
        try:
            found = len(describe_cluster(kafka.bootstrap, SecuritySettings().resolved()).brokers)
        except ClusterError as error:
            return str(error)
        return "" if found == len(BROKERS) else f"{found} brokers are registered"

    missing = still_lacking(lacking, _START_S)
    assert not missing, missing


def create_topic(kafka: ComposeKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(20)
