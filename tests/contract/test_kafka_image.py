"""Properties of a Kafka image that the harness relies on, tested on the present image: the official one, or ours."""

import io
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ContainerError

from aftershock.harness.cluster import engine
from aftershock.harness.safety.ownership import labels_of, remove_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

RUN = "/etc/kafka/docker/run"
NODE = {
    "CLUSTER_ID": "QWZ0ZXJzaG9jay10ZXN0cw",
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENERS": "BROKER://:9092,CONTROLLER://:9093",
    "KAFKA_ADVERTISED_LISTENERS": "BROKER://localhost:9092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
    "KAFKA_HEAP_OPTS": "-Xms192m -Xmx256m",
    "KAFKA_JVM_PERFORMANCE_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
TOOLS = (
    *("broker-api-versions", "cluster", "configs", "console-consumer", "console-producer", "consumer-groups"),
    *("consumer-perf-test", "delete-records", "dump-log", "e2e-latency", "features", "get-offsets", "jmx"),
    *("leader-election", "metadata-quorum", "producer-perf-test", "reassign-partitions", "run-class", "server-start"),
    *("storage", "topics", "verifiable-consumer", "verifiable-producer"),
)
STARTED_WITHIN_S = 60.0
POLL = threading.Event()

Boot = Callable[..., Any]


@contextmanager
def containers(home: Path) -> Iterator[Boot]:
    client = engine.connect()
    image = engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name
    run_id = f"contract-{home.name}"
    labels = labels_of(run_id, home, keep=False)

    def create(environment: dict[str, str], command: list[str] | None = None, mounted: str | None = None) -> Any:
        container = client.containers.create(image, command, environment=environment, labels=labels)
        if mounted is not None:
            container.put_archive("/mnt/shared/config", tar_of("server.properties", mounted))
        container.start()
        return container

    try:
        yield create
    finally:
        remove_run(client, run_id)
        client.close()


def test_a_container_that_ran_to_its_end_leaves_no_volume(tmp_path: Path) -> None:
    """The image declares volumes, for which the engine makes anonymous volumes; these are dangling if they are left."""
    client = engine.connect()
    image = engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name
    options = {"entrypoint": "sh", "labels": labels_of(f"contract-{tmp_path.name}", tmp_path, keep=False)}

    def anonymous() -> set[str]:
        names = {volume.name for volume in client.volumes.list(filters={"dangling": True})}
        return {name for name in names if re.fullmatch("[0-9a-f]{64}", name)}

    before = anonymous()
    assert b"done\n" == engine.run_to_end(client, image, ["-c", "echo done"], **options)
    with pytest.raises(ContainerError, match="no such place"):
        engine.run_to_end(client, image, ["-c", "echo no such place >&2; exit 3"], **options)
    assert anonymous() <= before
    client.close()


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    with containers(tmp_path) as create:
        yield create


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One running node with configuration from every source."""
    told = {
        "KAFKA_LOG_RETENTION_MINUTES": "77",
        "KAFKA_NUM_IO_THREADS": "4",
        "KAFKA_AFTERSHOCK_SNAKE__CASE_DASHED___KEY": "kept",
        "KAFKA_OPTS": "-Daftershock.mark=here",
        "KAFKA_JMX_PORT": "9999",
        "KAFKA_JMX_HOSTNAME": "localhost",
        "KAFKA_LOG4J_LOGGERS": "kafka.server=INFO,kafka.cluster=ERROR",
    }
    mounted = "num.io.threads=3\nlog.cleaner.threads=2\n"
    with containers(tmp_path_factory.mktemp("kafka")) as create:
        container = create(NODE | told, [RUN, "KAFKA_NUM_NETWORK_THREADS=5"], mounted)
        wait_until_started(container)
        yield container


def tar_of(name: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(text), 0o644
        tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def wait_until_started(container: Any, times: int = 1) -> None:
    """Wait until the node has logged that many starts; a node that ends earlier is reported with its log."""
    deadline = time.monotonic() + STARTED_WITHIN_S
    while container.logs().count(b"Kafka Server started") < times:
        container.reload()
        if container.status != "running" or time.monotonic() > deadline:
            pytest.fail(f"the node has not started:\n{container.logs(tail=30).decode()}")
        POLL.wait(0.1)


def output(container: Any, *command: str) -> str:
    status, text = container.exec_run(list(command))
    assert status == 0, f"{' '.join(command)} ended with status {status}:\n{text.decode()}"
    return str(text.decode())


def tool(container: Any, name: str, *arguments: str) -> str:
    return output(container, f"/opt/kafka/bin/kafka-{name}.sh", "--bootstrap-server", "localhost:9092", *arguments)


@pytest.fixture(scope="module")
def described(node: Any) -> dict[str, str]:
    """Return the node's configuration from DescribeConfigs."""
    lines = tool(node, "configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1").splitlines()
    return dict(line.split()[0].split("=", 1) for line in lines if "=" in line and "sensitive=" in line)


@pytest.mark.parametrize(
    ("key", "expected", "source"),
    [
        ("log.retention.minutes", "77", "the environment"),
        ("log.cleaner.threads", "2", "the mounted file"),
        ("num.io.threads", "4", "the environment, over the mounted file"),
        ("num.network.threads", "5", "a KEY=VALUE argument"),
        ("log.dirs", "/var/lib/kafka/data", "the environment"),
    ],
)
def test_configuration_reaches_the_node(described: dict[str, str], key: str, expected: str, source: str) -> None:
    """From the environment, a mounted file or an argument to DescribeConfigs."""
    assert described[key] == expected, f"{key} should have come from {source}"


def test_names_are_mapped_and_jvm_settings_are_not_properties(node: Any) -> None:
    """`__` is an underscore, `___` a dash; variables for the JVM or the log don't become properties."""
    written = output(node, "cat", "/opt/kafka/config/server.properties")

    assert "aftershock.snake_case.dashed-key=kept" in written
    assert not [line for line in written.splitlines() if line.startswith(("heap.", "opts=", "jvm.", "log4j."))]


def test_the_jvm_is_process_1_with_the_flags_it_was_given(node: Any) -> None:
    """KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS and KAFKA_OPTS are applied, and signals reach the JVM itself."""
    words = output(node, "cat", "/proc/1/cmdline").split("\0")

    assert words[0].endswith("java")
    assert {"-Xms192m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Daftershock.mark=here"} <= {*words}


def test_log_levels_come_from_the_environment(node: Any) -> None:
    """KAFKA_LOG4J_LOGGERS sets the level of one logger, and of no other. (A *root* level set this way silences the
    node: Kafka's own setup drops the root logger's appenders with it, in 4.3.1. The harness never sets one.)
    """
    log = node.logs()

    assert b"(kafka.server." in log
    assert b"INFO" not in b"".join(line for line in log.splitlines() if b"(kafka.cluster." in line)
    assert "kafka.cluster" in output(node, "cat", "/opt/kafka/config/log4j2.yaml")


def test_the_user_is_not_root_and_can_write_its_directories(node: Any) -> None:
    """Every directory of the contract belongs to the user."""
    assert output(node, "id", "-u").strip() == "1000"
    for folder in ("/var/lib/kafka/data", "/etc/kafka/secrets", "/mnt/shared/config", "/opt/kafka/config"):
        output(node, "test", "-w", folder)


def test_the_tools_are_there_and_can_be_run(node: Any) -> None:
    """Each tool that the harness or its user may call has an executable script."""
    scripts = output(node, "ls", "/opt/kafka/bin").split()

    assert {f"kafka-{name}.sh" for name in TOOLS} <= set(scripts)
    for name in TOOLS:
        output(node, "test", "-x", f"/opt/kafka/bin/kafka-{name}.sh")


def test_the_scripts_of_our_table_find_their_classes(node: Any) -> None:
    """A tool that needs no broker prints its help: script, class path and class fit together."""
    for name in ("get-offsets", "reassign-partitions", "topics", "verifiable-producer", "share-groups"):
        _, text = node.exec_run([f"/opt/kafka/bin/kafka-{name}.sh", "--help"])
        assert b"--bootstrap-server" in text, text.decode()


def test_jmx_answers(node: Any) -> None:
    """With KAFKA_JMX_PORT set, Kafka's JMX tool reads an MBean from that port."""
    text = output(
        node,
        "/opt/kafka/bin/kafka-jmx.sh",
        "--jmx-url",
        "service:jmx:rmi:///jndi/rmi://localhost:9999/jmxrmi",
        "--object-name",
        "kafka.server:type=KafkaServer,name=BrokerState",
        "--one-time",
    )

    assert "BrokerState:Value" in text


def test_sigterm_is_a_controlled_shutdown_and_a_restart_keeps_the_data(boot: Boot) -> None:
    """SIGTERM stops the node in a controlled way; after a restart it has its formatted log and the topic."""
    container = boot(NODE)
    wait_until_started(container)
    tool(container, "topics", "--create", "--topic", "kept", "--partitions", "2")
    container.stop(timeout=60)

    assert container.wait()["StatusCode"] in {0, 143}
    assert b"ontrolled shutdown" in container.logs()

    container.start()
    wait_until_started(container, times=2)
    assert "kept" in tool(container, "topics", "--list").split()


def test_without_properties_it_is_a_combined_node(boot: Boot) -> None:
    """Without any KAFKA_ property the image's defaults make one combined node with the well-known cluster id."""
    container = boot({"KAFKA_HEAP_OPTS": "-Xmx256m"})
    wait_until_started(container)

    formatted = output(container, "sh", "-c", "cat /*/*/*/*/meta.properties /tmp/*/meta.properties 2>/dev/null || true")
    assert "cluster.id=5L6g3nShT-eMCtK--X86sw" in formatted


def test_a_contradiction_ends_the_container_with_a_message(boot: Boot) -> None:
    """A controller with advertised listeners is refused before the JVM starts, and the log has the reason."""
    container = boot(NODE | {"KAFKA_PROCESS_ROLES": "controller"})

    assert container.wait(timeout=60)["StatusCode"] != 0
    assert b"KAFKA_ADVERTISED_LISTENERS" in container.logs()
