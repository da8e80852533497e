"""Faults on the containers of a user's compose project, which must hit these containers and nothing else.

A web server of the same project, and a stranger's container that says to be broker 1, are compared before and after:
when they were started, their limits, and the rules of their networks.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from aftershock.harness.attach.broker_containers import PROJECT, SERVICE
from aftershock.harness.attach.inserted_proxy import INSERTED
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.contract.compose_kafka import BROKERS, ComposeKafka, compose_kafka, create_topic, free_ports

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(400)]

PLAN = """
name: compose
cluster: {{attach: {{bootstrap: '{bootstrap}', {section}}}}}
topics: [{{name: orders, partitions: 3, replication: 3}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 60/s}}, consume: {{topic: orders, from: latest}}}}]
timing: {{warmup: {{min: 1s, max: 30s}}, steady: 2s, fault: 2s, recovery: 5s}}
faults: [{faults}]
slo: ["lost == 0"]
"""
CUT = "{kind: cut, broker: 1, at: 0s, for: 60s}"
EVERY = [
    "{kind: kill, broker: 1, at: 0s, for: 5s}",
    "{kind: pause, broker: leader of orders/0, at: 20s, for: 5s}",
    "{kind: restart, broker: 3, at: 36s}",
    "{kind: cut, broker: 2, at: 60s, for: 5s}",
    "{kind: cut, between: [[1], [2, 3]], at: 75s, for: 5s}",
    "{kind: packet_loss, link: 'client(a) <-> broker(leader of orders/0)', share: 10%, at: 90s, for: 6s}",
]


LATENCY = "{kind: latency, link: 'client(a) -> broker(2)', delay: 80ms, at: 0s, for: 4s}"
REFUSE = "{kind: refuse, link: 'client(a) -> broker(1)', at: 15s, for: 4s}"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeKafka]:
    with compose_kafka(tmp_path_factory.mktemp("compose")) as running:
        create_topic(running, "orders")
        yield running


def proven(words: list[str], home: Path) -> dict[str, str]:
    """Run a plan, of which only a busy host may be in doubt; return the status of its witness and exposure checks."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 2), said
    (run,) = (home / "runs").iterdir()
    checks = json.loads((run / "verdict.json").read_text())["checks"]
    assert {"PASS"} == {check["status"] for check in checks if check["kind"] != "harness"}, said
    return {check["id"]: check["status"] for check in checks if check["kind"] in ("witness", "exposure")}


def command(kafka: ComposeKafka, home: Path, faults: str, section: str = "") -> list[str]:
    """Return the command that runs a plan with these faults, without permissions."""
    section = section or f"compose: {kafka.file}"
    plan = home / "plan.yaml"
    plan.write_text(PLAN.format(bootstrap=kafka.bootstrap, section=section, faults=faults))
    return [sys.executable, "-P", "-m", "aftershock.harness.cli", "run", str(plan), "--out", str(home / "runs")]


def refused(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def neighbours(kafka: ComposeKafka) -> dict[str, object]:
    return {str(each.name): kafka.fingerprint(each) for each in (kafka.containers["web"], kafka.stranger)}


def test_faults_hit_the_named_containers_and_nothing_else(kafka: ComposeKafka, tmp_path: Path) -> None:
    """Killed, paused, restarted, cut off, and with lossy links: witnessed, exposed, healed; all else is as before."""
    before = neighbours(kafka)
    rules = {broker: kafka.rules(kafka.containers[f"kafka-{broker}"]) for broker in kafka.ports}
    checks = proven([*command(kafka, tmp_path, ", ".join(EVERY)), *kafka.options()], tmp_path)
    assert (2 * len(EVERY), {"PASS"}) == (len(checks), set(checks.values()))
    (run,) = (tmp_path / "runs").iterdir()
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert len(EVERY) == sum(line["state"] == "healed" for line in journal)
    assert before == neighbours(kafka)
    assert rules == {broker: kafka.rules(kafka.containers[f"kafka-{broker}"]) for broker in kafka.ports}
    assert [] == kafka.helpers()


def test_a_killed_runner_leaves_a_cut_that_heal_ends(kafka: ComposeKafka, tmp_path: Path) -> None:
    """The rules are in the network of the container until `heal`, which needs the permission, removes them."""
    container, before = kafka.containers["kafka-1"], neighbours(kafka)
    clean = kafka.rules(container)
    with (tmp_path / "said").open("wb") as said:
        words = [*command(kafka, tmp_path, CUT), *kafka.options()]
        runner = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
        open_ = still_lacking(lambda: "" if kafka.rules(container) != clean else "nothing is cut", 90)
        os.kill(runner.pid, signal.SIGSTOP)  # so that nothing heals before the end of the runner
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    assert not open_, (tmp_path / "said").read_text()
    (run,) = (tmp_path / "runs").iterdir()
    heal = [*words[:4], "heal", "--run", run.name, "--out", str(run.parent)]
    assert f"add --allow-container {kafka.name(1)} if you trust" in refused(heal)
    healed = subprocess.run([*heal, *kafka.options()], capture_output=True, text=True, timeout=120, check=False)
    assert 0 == healed.returncode, healed.stderr
    assert clean == kafka.rules(container)
    assert [] == kafka.helpers()
    assert before == neighbours(kafka)


def test_each_selected_container_needs_permission(kafka: ComposeKafka, tmp_path: Path) -> None:
    """The error has all missing options on one line; a container that is permitted is not repeated."""
    said = refused([*command(kafka, tmp_path, CUT), *kafka.options(2)])
    options = [f"--allow-container {kafka.name(broker)}" for broker in (1, 3)]
    assert f"all of them: {' '.join(options)}" in said.splitlines()
    assert kafka.name(2) not in said
    assert not (tmp_path / "runs").exists()


def test_labels_select_the_same_containers(kafka: ComposeKafka, tmp_path: Path) -> None:
    said = refused(command(kafka, tmp_path, CUT, f"labels: {{{PROJECT}: {kafka.project}}}"))
    assert [f"--allow-container {kafka.name(broker)}" in said for broker in kafka.ports] == [True, True, True]
    assert str(kafka.containers["web"].name) not in said
    assert str(kafka.stranger.name) not in said


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("labels: {{{service}: web}}", "no container with these labels is a broker's among those that run ({web})"),
        ("labels: {{{project}: nobodys}}", "compose projects that run here: {theirs}"),
        ("labels: {{aftershock.run: ''}}", "both are broker 1: name the container of each broker"),
        ("containers: {{1: {web}}}", "of broker 1, not {web}: correct `attach.containers`"),
        ("containers: {{1: {second}}}", "the container {second} runs broker 2 by its settings, not broker 1"),
        ("containers: {{1: {stranger}}}", "of broker 1, not {stranger}: correct `attach.containers`"),
    ],
)
def test_a_wrong_container_is_refused_with_the_reason(
    kafka: ComposeKafka, tmp_path: Path, section: str, message: str
) -> None:
    names = {"web": kafka.containers["web"].name, "second": kafka.name(2), "stranger": kafka.stranger.name}
    names |= {"service": SERVICE, "project": PROJECT, "theirs": kafka.project}
    before = neighbours(kafka)
    permitted = [f"--allow-container={name}" for name in (names["web"], names["stranger"])]
    words = [*command(kafka, tmp_path, CUT, section.format(**names)), *kafka.options(), *permitted]
    assert message.format(**names) in refused(words)
    assert before == neighbours(kafka)


def test_a_proxy_is_inserted_before_brokers_that_advertise_free_ports(tmp_path: Path) -> None:
    """Latency and refused connections, by a Toxiproxy of ours that is gone afterwards."""
    advertised = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
    with compose_kafka(tmp_path, advertised=advertised) as kafka:
        words = command(kafka, tmp_path, f"{LATENCY}, {REFUSE}", "proxy: insert, create: [orders]")
        checks = proven([*words, *kafka.options()], tmp_path)
        assert (4, {"PASS"}) == (len(checks), set(checks.values()))
        assert [] == kafka.client.containers.list(all=True, filters={"label": INSERTED})


def test_no_proxy_is_inserted_where_a_broker_listens_itself(kafka: ComposeKafka, tmp_path: Path) -> None:
    words = [*command(kafka, tmp_path, LATENCY, "proxy: insert"), *kafka.options()]
    assert f"it listens itself at localhost:{kafka.ports[1]}, which it advertises" in refused(words)
    assert [] == kafka.client.containers.list(all=True, filters={"label": INSERTED})


def test_the_printed_lines_put_a_toxiproxy_before_the_brokers(tmp_path: Path) -> None:
    """Of the brokers of a compose file, which then no longer publish what they advertise."""
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    with compose_kafka(folders[0]) as kafka:
        cli = command(kafka, folders[0], LATENCY)[:4]
        lines = printed([*cli, "attach", "--compose", str(kafka.file), "--insert-proxy"])
    service = lines["compose"]["services"]["toxiproxy"] | {"config": json.dumps(lines["config"])}
    with compose_kafka(folders[1], ports=kafka.ports, toxiproxy=service) as kafka:
        create_topic(kafka, "orders")
        attach = lines["plan"]["cluster"]["attach"]
        section = f"toxiproxy: '{attach['toxiproxy']}', proxies: {json.dumps(attach['proxies'])}"
        words = command(kafka, folders[1], LATENCY, section)
        checks = proven([*words, *kafka.options(), f"--allow-attach={attach['toxiproxy']}"], folders[1])
        assert {"witness/latency-1": "PASS", "exposure/latency-1": "PASS"} == checks


def printed(words: list[str]) -> dict[str, Any]:
    """Return what `attach --insert-proxy` prints: Toxiproxy's configuration, lines of a compose file and of a plan."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    parts, name = dict[str, list[str]](), ""
    titles = {"write toxiproxy.json": "config", "in your compose file": "compose", "for your plan": "plan"}
    for line in done.stdout.splitlines():
        title = next((part for begin, part in titles.items() if line.startswith(begin)), None)
        name = title or name
        if title is None and line.startswith("  "):
            parts.setdefault(name, []).append(line.removeprefix("  "))
    return {part: YAML(typ="safe").load("\n".join(lines)) for part, lines in parts.items()}


def test_the_survey_tells_what_is_possible(kafka: ComposeKafka, tmp_path: Path) -> None:
    """Containers and packets are; a proxy can't be inserted, and why."""
    words = [*command(kafka, tmp_path, LATENCY)[:4], "attach", "--compose", str(kafka.file)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    possible, _, impossible = said.partition("not possible:")
    assert "packet_loss" in possible.partition("possible:")[2]
    assert "kill" in possible
    assert "it listens itself at" in impossible
    assert "a container has the clock of its host" in impossible
    assert f"compose: {kafka.file}" in impossible
