"""Plans on a Kafka that the harness did not start, over each kind of security, without leaking secrets.

Everything foreign must be unchanged: other topics, earlier records, proxies, settings. Every byte that a run writes
or prints is searched for the secrets.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
from ruamel.yaml import YAML

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.attach.attached import AttachedCluster, AttachmentDescriptor, describe_cluster
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.world.links import LinkProbe
from aftershock.tests.contract.attached_kafka import KEY_PASSWORD, PASSWORD, USER, TheirKafka, their_kafka
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.load.logread import Topic, end_offsets
from aftershock.workloads.load.security import SecuritySettings

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

EVERY = [
    ("secure", "PLAIN"),
    ("secure", "SCRAM-SHA-256"),
    ("secure", "SCRAM-SHA-512"),
    ("open", "PLAIN"),
    ("open", "SCRAM-SHA-512"),
    ("mutual", ""),
]
SECRETS = {"KAFKA_PASSWORD": PASSWORD, "KEY_PASSWORD": KEY_PASSWORD}
EXEC = Path(__file__).parents[2] / "docs" / "examples" / "exec_client.py"
PLAN = """
name: attached
cluster: {{attach: {attach}}}
topics: [{{name: orders, partitions: 3, replication: 1}}{fresh}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 20/s, record_size: 200, deadline: 10s}}
    consume: {{topic: orders, group: readers, from: latest}}
    arms: {arms}
timing: {{warmup: {{min: 2s, max: 40s}}, steady: 2s, fault: 2s, recovery: 3s}}
faults: {faults}
slo: ["lost == 0"]
"""
LATENCY = "{kind: latency, link: 'client(a) -> broker(1)', delay: 80ms, at: 500ms, for: 4s}"
CONFIG = "{kind: config, topic: orders, set: {max.message.bytes: 2000000}, at: 500ms, for: 3s}"
TWO_ARMS = "{theirs: {}, ours: {client: reference}}"
OWN = f"{{client: exec, command: [{sys.executable}, {EXEC}]}}"
FOUR_ARMS = f"{{theirs: {{}}, ours: {{client: reference}}, kafkas: {{client: java}}, own: {OWN}}}"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TheirKafka]:
    with their_kafka(tmp_path_factory.mktemp("theirs")) as kafka:
        kafka.create("orders")
        kafka.create("foreign", partitions=1)
        kafka.fill("orders", 50)
        kafka.fill("foreign", 20)
        yield kafka


def command(plan: Path, out: Path, *options: str) -> list[str]:
    attach = YAML(typ="safe").load(plan)["cluster"]["attach"]
    keys = [key] if (key := attach["security"].get("key")) else []
    addresses = {attach.get(key, attach["bootstrap"]) for key in ("bootstrap", "admin", "toxiproxy")}
    allowed = [word for address in sorted(addresses) for word in ("--allow-attach", address)]
    allowed += [word for name in (*SECRETS, *keys) for word in ("--secret", name)]
    return [sys.executable, "-P", "-m", "aftershock.harness.cli", *options, str(plan), "--out", str(out), *allowed]


def environment() -> dict[str, str]:
    return {**os.environ, **SECRETS}


def written(theirs: TheirKafka, home: Path, listener: str, mechanism: str = "SCRAM-SHA-512", **said: str) -> Path:
    """Write a plan file for one listener."""
    said = {"attach": theirs.attach(listener, theirs.security(listener, mechanism)), "fresh": ""} | said
    plan = home / "plan.yaml"
    plan.write_text(PLAN.format(**{"arms": TWO_ARMS, "faults": f"[{LATENCY}]"} | said))
    return plan


def performed(plan: Path, home: Path, *options: str, **variables: str) -> tuple[Path, str]:
    """Run the plan, which must PASS; return its run directory and all its output."""
    words = [*command(plan, home / "runs", "run"), *options]
    with_these = environment() | variables
    done = subprocess.run(words, env=with_these, capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert 0 == done.returncode, said
    (run,) = (home / "runs").iterdir()
    return run, said


def leaks(folder: Path, said: str) -> list[str]:
    """Return the places where a secret occurs."""
    texts = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    texts["what was printed"] = said.encode()
    return [
        f"{secret} in {name}" for name, text in texts.items() for secret in SECRETS if SECRETS[secret].encode() in text
    ]


def attach_of(theirs: TheirKafka, listener: str, mechanism: str) -> Attach:
    said = YAML(typ="safe").load(theirs.attach(listener, theirs.security(listener, mechanism)))
    return Attach.model_validate(said)


@pytest.mark.parametrize(("listener", "mechanism"), EVERY)
async def test_every_listener_by_every_client(
    theirs: TheirKafka, monkeypatch: pytest.MonkeyPatch, listener: str, mechanism: str
) -> None:
    """The blocking connection, the asyncio channel, a probe and librdkafka connect and read metadata."""
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    attach = attach_of(theirs, listener, mechanism)
    security = SecuritySettings.model_validate(attach.security.model_dump()).resolved()
    (broker,) = (await asyncio.to_thread(describe_cluster, attach.bootstrap, security)).brokers
    assert (1, "use1-az1", theirs.ports[listener]) == (broker.id, broker.rack, broker.address.port)
    channel = await Channel.open(broker.address, client_id="test", connect_timeout_ms=10_000, security=security)
    assert channel.versions.offered
    await channel.close()
    probe = await LinkProbe.dial(broker.address, security)
    assert "answered" == (await probe.ask(10_000, 10_000)).end
    await probe.hang_up()
    foreign = [Topic("foreign", "", 1)]
    assert {"foreign": {0: 20}} == await asyncio.to_thread(end_offsets, attach.bootstrap, foreign, 20, security)


@pytest.mark.parametrize(
    ("listener", "mechanism", "wrong", "why"),
    [
        ("secure", "PLAIN", {"KAFKA_PASSWORD": "not-it-0815"}, f"refuses user {USER} by PLAIN"),
        ("secure", "SCRAM-SHA-256", {"KAFKA_PASSWORD": "not-it-0815"}, f"refuses user {USER} by SCRAM-SHA-256"),
        ("mutual", "", {"KEY_PASSWORD": "not-it-0815"}, "certificates can't be used"),
        ("secure", "PLAIN", {"KAFKA_PASSWORD": ""}, "the environment variable KAFKA_PASSWORD"),
    ],
)
def test_the_error_of_a_wrong_secret_does_not_contain_it(
    theirs: TheirKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    mechanism: str,
    wrong: dict[str, str],
    why: str,
) -> None:
    """The error comes before any record is sent."""
    for name, secret in (SECRETS | wrong).items():
        monkeypatch.setenv(name, secret)
    card = AttachmentDescriptor("run", attach_of(theirs, listener, mechanism), ("orders",), ())
    with closing(AttachedCluster(card, tmp_path)) as cluster, pytest.raises(ClusterError, match=why) as refused:
        cluster.check()
    assert "not-it-0815" not in str(refused.value)


def test_a_failed_login_does_not_leak_the_secret(theirs: TheirKafka, tmp_path: Path) -> None:
    """Through the command line: an error, its reason in the run directory, and the wrong password nowhere."""
    plan = written(theirs, tmp_path, "secure")
    done = subprocess.run(
        command(plan, tmp_path / "runs", "run"),
        env=environment() | {"KAFKA_PASSWORD": PASSWORD + "4711"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 3 == done.returncode
    assert f"refuses user {USER} by SCRAM-SHA-512" in done.stderr
    assert [] == leaks(tmp_path / "runs", done.stdout + done.stderr)


def test_an_untrusted_certificate_gets_no_credentials(theirs: TheirKafka) -> None:
    """TLS with an unknown authority."""
    with pytest.raises(ClusterError, match="certificate verify failed"):
        describe_cluster(theirs.bootstrap("secure"), SecuritySettings(protocol="SSL").resolved())


def test_a_plan_leaves_a_foreign_cluster_unchanged(theirs: TheirKafka, tmp_path: Path) -> None:
    """Faults on their proxy and on a topic, over SASL_SSL: PASS, met, healed; no container engine is available."""
    before = theirs.state()
    fresh = ", {name: fresh, partitions: 2, replication: 1}"
    attach = theirs.attach("secure", theirs.security("secure"))[:-1] + ", create: [fresh], racks: {z: use1-az1}}"
    faults = f"[{LATENCY}, {CONFIG}]"
    plan = written(theirs, tmp_path, "secure", fresh=fresh, attach=attach, faults=faults)
    run, said = performed(plan, tmp_path, DOCKER_HOST="tcp://127.0.0.1:9")
    verdict = json.loads((run / "verdict.json").read_text())
    proven = {check["id"]: check["status"] for check in verdict["checks"] if check["kind"] in ("witness", "exposure")}
    assert {"PASS"} == set(proven.values())
    assert {"witness/latency-1", "exposure/latency-1", "witness/config-1", "exposure/config-1"} <= set(proven)
    assert [] == leaks(run, said)
    assert before == theirs.state()
    facts = json.loads((run / "run.json").read_text())
    assert [{"id": 1, "rack": "z", "dialled": theirs.bootstrap("secure")}] == facts["brokers"]
    assert "on an attached cluster" in (run / "report.html").read_text()


def contained(theirs: TheirKafka) -> str:
    attach = theirs.attach("open", theirs.security("open"))[:-1]
    return attach + f", containers: {{1: {theirs.container}}}}}"


@pytest.mark.nightly
def test_faults_on_a_container_of_theirs(theirs: TheirKafka, tmp_path: Path) -> None:
    """Kill, freeze, restart and limit the user's broker by permission: PASS, witnessed, and the container as before."""
    container = docker.from_env().containers.get(theirs.container)
    before = theirs.state()
    faults = [
        "{kind: kill, broker: 1, at: 500ms, for: 6s}",
        "{kind: pause, broker: leader of orders/0, at: 25s, for: 4s}",
        "{kind: restart, broker: 1, at: 40s}",
        "{kind: cpu_quota, broker: 1, cpus: 0.05, at: 70s, for: 6s}",
    ]
    plan = written(
        theirs, tmp_path, "open", attach=contained(theirs), faults=f"[{', '.join(faults)}]", arms="{ours: {}}"
    )
    run, said = performed(plan, tmp_path, "--allow-container", theirs.container)
    verdict = json.loads((run / "verdict.json").read_text())
    proven = {check["id"]: check["status"] for check in verdict["checks"] if check["kind"] in ("witness", "exposure")}
    kinds = ("kill-1", "pause-1", "restart-1", "cpu_quota-1")
    assert {f"witness/{kind}": "PASS" for kind in kinds}.items() <= proven.items()
    assert "unplanned" not in verdict
    assert [] == leaks(run, said)
    container.reload()
    assert ("running", True) == (container.status, container.attrs["HostConfig"]["CpuQuota"] <= 0)  # -1 is none, too
    assert before == theirs.state()


@pytest.mark.nightly
def test_a_container_of_theirs_is_started_again_from_outside(theirs: TheirKafka, tmp_path: Path) -> None:
    """The runner is killed while their broker is down; `heal` starts it, with the permission, and not without."""
    kill = "[{kind: kill, broker: 1, at: 0s, for: 60s}]"
    plan = written(theirs, tmp_path, "open", attach=contained(theirs), faults=kill, arms="{ours: {}}")
    allowed = ["--allow-container", theirs.container]
    container = docker.from_env().containers.get(theirs.container)

    def state() -> str:
        container.reload()
        return str(container.status)

    with (tmp_path / "said").open("wb") as said:
        words = [*command(plan, tmp_path / "runs", "run"), *allowed]
        runner = subprocess.Popen(words, env=environment(), stdout=said, stderr=said, start_new_session=True)
        down = still_lacking(lambda: "" if state() == "exited" else "it runs", 200)  # other runs may use the host
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    assert not down, (tmp_path / "said").read_text()
    (run,) = (tmp_path / "runs").iterdir()
    words = [word for word in command(plan, run.parent, "heal", "--run", run.name) if word != str(plan)]
    refused = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=90, check=False)
    assert (3, True) == (refused.returncode, f"add {' '.join(allowed)} if you trust" in refused.stderr)
    healed = subprocess.run(
        [*words, *allowed], env=environment(), capture_output=True, text=True, timeout=90, check=False
    )
    assert 0 == healed.returncode, healed.stderr
    assert state() == "running"


def test_a_container_needs_permission(theirs: TheirKafka, tmp_path: Path) -> None:
    plan = written(theirs, tmp_path, "open", attach=contained(theirs), faults="[{kind: restart, broker: 1, at: 0s}]")
    words = command(plan, tmp_path / "runs", "run")
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert 3 == done.returncode
    assert f"would stop, limit and cut off the container {theirs.container}; add --allow-container" in done.stderr
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("by", ["heal", pytest.param("watchdog", marks=pytest.mark.nightly)])
def test_a_killed_runner_is_healed_from_outside(theirs: TheirKafka, tmp_path: Path, by: str) -> None:
    """SIGKILL while their proxy is disabled, the only path to their broker: it is enabled, our topic deleted."""
    before = theirs.state()
    fresh = ", {name: fresh, partitions: 1, replication: 1}"
    attach = theirs.attach("open", theirs.security("open"))[:-1] + ", create: [fresh]}"
    refuse = "[{kind: refuse, link: 'client(a) -> broker(1)', at: 0s, for: 60s}]"
    plan = written(theirs, tmp_path, "open", fresh=fresh, attach=attach, faults=refuse)
    with (tmp_path / "said").open("wb") as said:
        runner = subprocess.Popen(
            command(plan, tmp_path / "runs", "run"), env=environment(), stdout=said, stderr=said, start_new_session=True
        )
        shut = still_lacking(lambda: "" if theirs.toxiproxy.disabled() else "nothing is shut", 60)
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    assert not shut, (tmp_path / "said").read_text()
    (run,) = (tmp_path / "runs").iterdir()
    if by == "watchdog":
        left = still_lacking(lambda: "" if before == theirs.state() else "something is left", 60)
        assert not left, (run / "logs" / "watchdog.log").read_text()
    words = [word for word in command(plan, run.parent, "heal", "--run", run.name) if word != str(plan)]
    healed = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert 0 == healed.returncode, healed.stderr
    assert before == theirs.state()
    assert [] == leaks(run, healed.stdout + healed.stderr + (tmp_path / "said").read_text())


@pytest.mark.nightly
@pytest.mark.parametrize(("listener", "mechanism"), EVERY)
def test_a_plan_runs_over_every_kind_of_security(
    theirs: TheirKafka, tmp_path: Path, listener: str, mechanism: str
) -> None:
    """The same plan over each, with every client: PASS, and no leaked secret."""
    before = theirs.state()
    run, said = performed(written(theirs, tmp_path, listener, mechanism, arms=FOUR_ARMS), tmp_path, "--allow-exec")
    assert [] == leaks(run, said)
    assert before == theirs.state()
