"""What a plan may do only with the user's permission: connect to addresses and read environment variables."""

import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError, ImageError, PlanError
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.attach.attached import AttachmentDescriptor, Broker, ClusterDescription
from aftershock.harness.cluster import engine
from aftershock.harness.run import job
from aftershock.harness.run.job import Job, Permissions, normalise, prepare, read_project_file
from aftershock.harness.safety.rundir import RunDir
from aftershock.tests.unit.harness.cli.test_cli import aftershock
from aftershock.workloads.kafka.wire.connection import Address

PLAN = """\
name: strange
cluster:
  attach:
    bootstrap: {bootstrap}
    admin: {admin}
    toxiproxy: {admin}
    proxies: {{one: 1}}
    security: {{protocol: SASL_PLAINTEXT, mechanism: PLAIN, user: alice, password: "${{{name}}}"}}
topics: [{{name: orders, partitions: 3, replication: 1}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 10/s}}}}]
slo: ["lost == 0"]
"""
FAULT = "faults: [{kind: pause, broker: 2, at: 0s, for: 4s}]"
BOOTSTRAP, ADMIN = "Kafka-1:9093,kafka-2:9093", "kafka-3:9093"
ADDRESSES = ("kafka-1:9093", "kafka-2:9093", "kafka-3:9093")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Git repository as the working directory."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    return tmp_path


def prepared(addresses: tuple[str, ...] = (), secrets: tuple[str, ...] = (), name: str = "KAFKA_PASSWORD") -> Job:
    text = PLAN.format(bootstrap=BOOTSTRAP, admin=ADMIN, name=name)
    return prepare(text, (), 1, print, permissions=Permissions(addresses, secrets))


@pytest.mark.usefixtures("project")
def test_each_address_and_secret_is_refused_with_its_flag() -> None:
    """Position, address and the exact option; one problem for each address of a list."""
    with pytest.raises(PlanError) as refused:
        prepared()
    problems = refused.value.problems
    assert problems[0].startswith("plan.yaml:4:16: the plan would connect to Kafka-1:9093; add --allow-attach kafka-1:")
    assert [4, 4, 5, 6, 8] == [int(problem.split(":")[1]) for problem in problems[:-2]]
    assert "the environment variable KAFKA_PASSWORD" in problems[4]
    assert "add --secret KAFKA_PASSWORD" in problems[4]
    options = [f"--allow-attach kafka-{number}:9093" for number in (1, 2, 3)]
    assert f"all of them: {' '.join(options)} --secret KAFKA_PASSWORD" == problems[-2]
    assert "or list it in aftershock.toml" in problems[-1]


@pytest.mark.usefixtures("project")
def test_the_options_permit_it() -> None:
    assert prepared(ADDRESSES, ("KAFKA_PASSWORD",)).attach
    with pytest.raises(PlanError, match="--allow-attach kafka-3:9093"):
        prepared(ADDRESSES[:2], ("KAFKA_PASSWORD",))
    with pytest.raises(PlanError, match="--secret KAFKA_PASSWORD"):
        prepared(ADDRESSES, ("KAFKA_PASSWOR", "KAFKA_PASSWORD_"))


def test_each_container_is_refused_with_its_flag(project: Path) -> None:
    """By the option, or by the project file; another container's permission does not count."""
    text = PLAN.format(bootstrap=BOOTSTRAP, admin=ADMIN, name="KAFKA_PASSWORD")
    text = text.replace("    proxies:", "    containers: {1: kafka-1, 2: kafka-2}\n    proxies:")

    def permitted(*containers: str) -> Job:
        given = Permissions(ADDRESSES, ("KAFKA_PASSWORD",), containers)
        return prepare(text, (), 1, print, permissions=given)

    assert permitted("kafka-1", "kafka-2").attach
    with pytest.raises(PlanError) as refused:
        permitted("kafka-1", "kafka-22")
    assert refused.value.problems[0].endswith(
        "the container kafka-2; add --allow-container kafka-2 if you trust the plan"
    )
    assert len(refused.value.problems) == 2
    (project / "aftershock.toml").write_text('allow_containers = ["kafka-2"]\n')
    assert permitted("kafka-1").attach


def test_a_namespace_of_pods_is_refused_with_its_flag(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are looked for only with all permissions; then their names take the place of the selector."""
    asked = list[str | None]()

    class Cluster:
        def __init__(self, context: str | None) -> None:
            asked.append(context)

        def close(self) -> None:
            pass

    monkeypatch.setattr(job, "Api", Cluster)
    monkeypatch.setattr(job.broker_pods, "find", lambda *_: {0: "prod-kafka-0"})
    text = PLAN.format(bootstrap=BOOTSTRAP, admin=ADMIN, name="KAFKA_PASSWORD")
    text = text.replace(
        "    proxies:", "    kubernetes: {namespace: kafka, pods: app=kafka, context: kind}\n    proxies:"
    )

    def permitted(*namespaces: str) -> Job:
        given = Permissions(ADDRESSES, ("KAFKA_PASSWORD",), (), namespaces)
        return prepare(text, (), 1, print, permissions=given)

    with pytest.raises(PlanError, match="pods in the namespace kafka; add --allow-namespace kafka if you trust"):
        permitted("kafk")
    assert [] == asked
    attach = permitted("kafka").attach
    assert attach
    assert attach.kubernetes
    assert ({0: "prod-kafka-0"}, None, ["kind"]) == (dict(attach.kubernetes.brokers), attach.kubernetes.pods, asked)
    (project / "aftershock.toml").write_text('allow_namespaces = ["kafka"]\n')
    assert permitted().attach


@pytest.mark.parametrize(
    ("selector", "line"), [("compose: shop.yml", 9), ("labels: {com.docker.compose.project: shop}", 9)]
)
@pytest.mark.usefixtures("project")
def test_selected_containers_take_the_place_of_what_selects_them(
    monkeypatch: pytest.MonkeyPatch, selector: str, line: int
) -> None:
    """Each needs its permission, where the plan selects it; brokers are asked only with all permissions."""
    asked = list[str]()

    def describe(bootstrap: str, _: object) -> ClusterDescription:
        asked.append(bootstrap)
        return ClusterDescription("c", (Broker(BrokerId(1), Address("kafka-1", 9093), None),))

    def found(_: object, attach: Attach, advertised: dict[int, Address]) -> dict[int, str]:
        assert bool(attach.compose) != bool(attach.labels)
        return {1: "shop-kafka-1", 2: "shop-kafka-2"} if advertised else {1: "shop-kafka-1"}

    monkeypatch.setattr(job, "describe_cluster", describe)
    monkeypatch.setattr(job, "find", found)
    monkeypatch.setattr(job.engine, "connect", lambda: None)
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    text = PLAN.format(bootstrap=BOOTSTRAP, admin=ADMIN, name="KAFKA_PASSWORD") + f"{FAULT}\n"
    text = text.replace("topics:", f"    {selector}\ntopics:", 1)

    def permitted(*containers: str, addresses: tuple[str, ...] = ADDRESSES) -> Job:
        return prepare(text, (), 1, print, permissions=Permissions(addresses, ("KAFKA_PASSWORD",), containers))

    with pytest.raises(PlanError) as refused:
        permitted(addresses=ADDRESSES[:2])
    assert [] == asked
    assert "all of them: --allow-attach kafka-3:9093 --allow-container shop-kafka-1" in refused.value.problems
    with pytest.raises(PlanError) as refused:
        permitted("shop-kafka-1")
    assert refused.value.problems[0].startswith(f"plan.yaml:{line}:")
    assert "cut off the container shop-kafka-2; add --allow-container shop-kafka-2" in refused.value.problems[0]
    attach = permitted("shop-kafka-1", "shop-kafka-2").attach
    assert attach is not None
    assert (attach.containers, attach.compose, attach.labels) == ({1: "shop-kafka-1", 2: "shop-kafka-2"}, None, {})
    text = text.replace("broker: 2", "broker: 3")
    with pytest.raises(
        PlanError, match=r"broker 3 has no container under `attach\.containers`, which has those of 1, 2"
    ):
        permitted("shop-kafka-1", "shop-kafka-2")


@pytest.mark.usefixtures("project")
def test_a_variable_with_the_prefix_needs_no_permission() -> None:
    assert prepared(ADDRESSES, name="AFTERSHOCK_SECRET_KAFKA").attach


def test_the_project_file_permits_it(project: Path) -> None:
    """The file is found from a folder below, and adds to the options."""
    (project / "aftershock.toml").write_text(f'allow_attach = {list(ADDRESSES[1:])}\nsecrets = ["KAFKA_PASSWORD"]\n')
    assert prepared(("kafka-1:09093",)).attach
    with pytest.raises(PlanError, match="--allow-attach kafka-1:9093") as refused:
        prepared()
    assert f"the project file {project / 'aftershock.toml'} doesn't allow this" in str(refused.value)


def test_the_search_ends_at_the_root_of_the_repository(project: Path) -> None:
    (project / "aftershock.toml").write_text("secrets = []\n")
    (project / "deep" / ".git").mkdir()
    assert read_project_file(project / "deep" / "er").path is None
    assert project / "aftershock.toml" == read_project_file(project).path


def test_outside_of_a_repository_only_the_working_directory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's file in a shared parent folder gives no permission; the home folder is the last one searched."""
    home = tmp_path / "home" / "me"
    (home / "work").mkdir(parents=True)
    (tmp_path / "home" / "aftershock.toml").write_text("secrets = []\n")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert read_project_file(home).path is None
    monkeypatch.setenv("HOME", str(home))
    assert read_project_file(home / "work").path is None
    (home / "aftershock.toml").write_text("secrets = []\n")
    assert home / "aftershock.toml" == read_project_file(home / "work").path


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ('\n\nalow_attach = ["a:1"]\n', ":3:", "unknown key `alow_attach`; did you mean `allow_attach`?"),
        ("secrets = []\n[other]\nx = 1\n", ":2:", "unknown key `other`"),
        ('# x\nallow_attach = "a:1"\n', ":2:", "`allow_attach` must be a list of texts"),
        ("secrets = [1]\n", ":1:", "`secrets` must be a list of texts"),
        ('allow_attach = ["a:1", "b"]\n', ":1:", "`b` can't stand in `allow_attach`"),
        ('secrets = ["${X}"]\n', ":1:", "`${X}` can't stand in `secrets`"),
        ("secrets = ]\n", ":1:11:", "not valid TOML"),
        ("secrets = []\nallow_attach = [\n", ":2:", "not valid TOML"),
    ],
)
def test_an_invalid_project_file_is_an_error_with_its_line(project: Path, text: str, where: str, why: str) -> None:
    (project / "aftershock.toml").write_text(text)
    with pytest.raises(AftershockError) as refused:
        read_project_file(project)
    assert f"aftershock.toml{where} " in str(refused.value)
    assert why in str(refused.value)


def test_addresses_are_compared_without_spelling() -> None:
    assert "proxy:8474" == normalise("http://Proxy:08474/")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_nothing_is_dialled_without_permission(listener: socket.socket, tmp_path: Path) -> None:
    """`run` and `heal`, by the command line: exit 3, the flag to type, and no connection, not even on loopback."""
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    (tmp_path / "plan.yaml").write_text(PLAN.format(bootstrap=address, admin=address, name="PATH"))
    attach = prepare(
        tmp_path / "plan.yaml", (), 1, print, permissions=Permissions((address,), ("PATH",))
    ).checked.plan.cluster.attach
    assert attach
    home = RunDir.create(tmp_path / "runs", "strange", 1, "aftershock run")
    home.update(owner="")
    AttachmentDescriptor(home.run_id, attach, ("orders",), ()).write(home.path)
    for command in (["run", "plan.yaml"], ["heal", "--run", home.run_id]):
        ended = aftershock(*command, cwd=tmp_path)
        assert (3, "") == (ended.returncode, ended.stdout)
        assert f"add --allow-attach {address} if" in ended.stderr
        assert "add --secret PATH if" in ended.stderr
    assert not select.select([listener], [], [], 0)[0]
    assert 1 == len(list((tmp_path / "runs").iterdir()))
    permitted = aftershock("heal", "--run", home.run_id, "--allow-attach", address, "--secret", "PATH", cwd=tmp_path)
    assert "--allow-attach" not in permitted.stderr


def test_an_image_of_a_plan_is_a_program() -> None:
    """A stranger's plan starts no container of an image that it names."""
    text = """name: strange
cluster: {image: 'theirs/kafka:1'}
topics: [{name: orders, partitions: 3, replication: 1}]
workloads: [{name: orders, produce: {topic: orders, rate: 10/s}}]
"""
    says = r"plan\.yaml:2:18: the plan would start containers of the image theirs/kafka:1; add --allow-exec"
    with pytest.raises(PlanError, match=says):
        prepare(text, (), 1, print)
    assert "theirs/kafka:1" == prepare(text, (), 1, print, allow_exec=True).spec.image


def test_an_image_of_a_service_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the position of the first missing image; an image of several arms is looked up once."""
    text = """name: service
topics: [{name: orders, partitions: 3, replication: 1}, {name: billed, partitions: 3, replication: 1}]
workloads:
  - name: billing
    produce: {topic: orders, rate: 10/s}
    pipe: {from: orders, to: billed, group: biller}
    arms:
      one: {client: service, image: 'acme/billing:1'}
      two: {client: service, image: 'acme/billing:1'}
      new: {client: service, image: 'acme/billing:2'}
"""
    asked: list[str] = []

    def service_image(_client: None, name: str, _log: Any) -> engine.Image:
        asked.append(name)
        if len(asked) > 1:
            raise ImageError(f"the image {name} is not on the Docker engine")
        return engine.Image(name, "sha256:id", "here")

    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(engine, "service_image", service_image)
    prepared = prepare(text, (), 1, print, allow_exec=True)
    with pytest.raises(ImageError, match=r"plan\.yaml:10:37: the image acme/billing:2 is not on the Docker engine"):
        prepared.service_images(print)
    assert ["acme/billing:1", "acme/billing:2"] == asked


def test_a_strangers_image_of_clients_needs_permission() -> None:
    """A node would pull it, and run it beside the brokers."""
    text = (
        "name: miner\ncluster: {kubernetes: {}}\ntopics: [{name: orders, partitions: 3, replication: 1}]\nworkloads:\n"
    )
    pods = "{workers: 2, image: theirs/miner:1}"
    text += f"  - {{name: orders, produce: {{topic: orders, rate: 10/s}}, run_on: {{kubernetes: {pods}}}}}\n"
    says = r"plan.yaml:5:\d+: the plan would start containers of the image theirs/miner:1; add --allow-exec"
    with pytest.raises(PlanError, match=says):
        prepare(text, (), 1, print)
    assert not prepare(text, (), 1, print, allow_exec=True).has_worker_pods
