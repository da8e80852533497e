"""Pods of a user's brokers: which pod is which broker, and what the scripts of an agent do to processes."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import AttachKubernetes
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.attach import broker_pods
from aftershock.harness.attach.broker_pods import BrokerPod, agents_of, broker_of, find
from aftershock.harness.cluster.kubernetes.api import Api, Executed, RefusedError
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.unit.harness.cluster.kubernetes.fake_api import RUNNING, ended

PLAN = AttachKubernetes(namespace="kafka", pods="strimzi.io/cluster=prod", agent=True)


def pod(name: str, container: str = "kafka", status: Mapping[str, Any] = RUNNING, **env: str) -> dict[str, Any]:
    variables = [{"name": key, "value": value} for key, value in env.items()]
    owners = [{"kind": "StatefulSet", "controller": True}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "ownerReferences": owners},
        "spec": {
            "nodeName": "n1",
            "volumes": volumes,
            "containers": [{"name": container, "image": "kafka:4", "env": variables}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": container, **status}]},
    }


class OnePodApi:
    """The API server of one namespace; ``word`` is what an agent says of a pod's processes."""

    context = "kind"

    def __init__(self, *pods: dict[str, Any], word: str = "S") -> None:
        self.pods = {item["metadata"]["name"]: item for item in pods}
        self.word, self.deleted = word, list[tuple[str, int | None]]()
        self.commands: list[Sequence[str]] = []
        self.ended: Mapping[str, str] = {}

    def objects(self, _kind: str, _namespace: str, selector: str = "") -> list[dict[str, Any]]:
        return [] if selector == "none=here" else [*self.pods.values()]

    def find(self, _kind: str, _namespace: str, name: str) -> dict[str, Any] | None:
        return {"status": {"phase": self.ended[name]}} if name in self.ended else self.pods.get(name)

    def delete_pod(self, _namespace: str, name: str, grace_s: int | None, *, evict: bool) -> None:
        assert not evict
        self.deleted.append((name, grace_s))

    def execute(self, _namespace: str, name: str, _container: str, command: Sequence[str]) -> Executed:
        self.commands.append(command)
        if name in self.ended:
            raise RefusedError("the container has ended", 0)
        return Executed(0, f"{self.word}\n")


def broker_pod(api: OnePodApi, *, agent: bool = True) -> BrokerPod:
    plan, client = PLAN.model_copy(update={"agent": agent}), cast("Api", api)
    agents = agents_of(plan, "run-1", client) if agent else None
    return BrokerPod(BrokerId(0), "prod-kafka-0", plan, client, agents)


@pytest.mark.parametrize(
    ("found", "broker"),
    [
        (pod("prod-kafka-0"), 0),
        (pod("prod-pool-a-12"), 12),
        (pod("kafka-0", KAFKA_NODE_ID="101"), 101),
        (pod("kafka-0", KAFKA_CFG_BROKER_ID="7", KAFKA_NODE_ID="${ORDINAL}"), 7),
        (pod("prod-entity-operator-6d4f8b-x2x9k"), None),
        (pod("prod-kafka-exporter-1", container="exporter"), None),
    ],
)
def test_the_broker_of_a_pod(found: dict[str, Any], broker: int | None) -> None:
    assert broker == broker_of(found, "kafka")


def test_pods_are_found_by_their_labels_or_names() -> None:
    api = cast("Api", OnePodApi(pod("prod-kafka-1"), pod("prod-kafka-0"), pod("prod-entity-operator-x")))
    assert {0: "prod-kafka-0", 1: "prod-kafka-1"} == find(api, PLAN)
    named = AttachKubernetes(namespace="kafka", brokers={4: "prod-kafka-1"})
    assert {4: "prod-kafka-1"} == find(api, named)


@pytest.mark.parametrize(
    ("pods", "plan", "problem"),
    [
        (
            [pod("a-0")],
            PLAN.model_copy(update={"pods": "none=here"}),
            r"no pod .* matches the selector none=here; its pods are a-0",
        ),
        ([pod("a-0"), pod("b-0")], PLAN, "the pods a-0 and b-0 both are broker 0"),
        (
            [pod("a-0", container="broker")],
            AttachKubernetes(namespace="kafka", brokers={0: "a-0"}),
            "the pod a-0 has no container kafka; its containers are broker: name the broker's as",
        ),
        ([pod("a-0", container="broker")], PLAN, r"none of the pods .*\(a-0\) is a broker's: .* a container kafka"),
        (
            [pod("a-0")],
            AttachKubernetes(namespace="kafka", brokers={0: "a-1"}),
            "has no pod a-1, which .* broker 0; its pods are a-0",
        ),
    ],
)
def test_pods_that_are_no_brokers_are_refused(pods: list[dict[str, Any]], plan: AttachKubernetes, problem: str) -> None:
    with pytest.raises(ClusterError, match=problem):
        find(cast("Api", OnePodApi(*pods)), plan)


@pytest.mark.parametrize(
    ("status", "word", "state"),
    [(RUNNING, "S", "running"), (RUNNING, "T", "paused"), (RUNNING, "down", "exited"), (ended(137), "S", "exited")],
)
def test_the_state_of_a_broker(status: Mapping[str, Any], word: str, state: str) -> None:
    assert state == broker_pod(OnePodApi(pod("prod-kafka-0", status=status), word=word)).state()


def test_without_an_agent_a_pod_is_deleted_and_its_process_is_not_stopped() -> None:
    api = OnePodApi(pod("prod-kafka-0"))
    one = broker_pod(api, agent=False)
    with pytest.raises(ClusterError, match="can't be stopped without an agent: write `agent: true`"):
        one.pause()
    one.delete_pod(3)
    assert [("prod-kafka-0", 3)] == api.deleted


def test_an_agent_that_has_ended_has_let_its_brokers_go_on() -> None:
    """As in a heal an hour after the machine died; an agent that runs and can't be asked proves nothing."""
    api = OnePodApi(pod("prod-kafka-0"), word="T")
    one = broker_pod(api)
    assert "paused" == one.state()
    agent = agents_of(PLAN, "run-1", cast("Api", api)).name("n1")
    api.ended = {agent: "Succeeded"}
    assert "running" == one.state()
    one.resume()
    one.restart()
    with pytest.raises(ClusterError, match=r"no agent .* runs beside the pod prod-kafka-0"):
        one.kill()
    api.ended = {agent: "Failed"}
    with pytest.raises(ClusterError, match="its agent was killed: delete the pod prod-kafka-0"):
        one.resume()
    api.ended = {agent: "Running"}
    with pytest.raises(ClusterError, match="can't be used: the container has ended"):
        one.state()


def test_a_pod_whose_deletion_was_refused_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a disruption budget: the broker that runs is the one that it was."""
    monkeypatch.setattr(broker_pods, "_STARTED_S", 0.0)
    api = OnePodApi(pod("prod-kafka-0"))
    one = broker_pod(api)

    def refuse(*_: object, **__: object) -> None:
        raise RefusedError("it would violate the pod's disruption budget", 429)

    monkeypatch.setattr(api, "delete_pod", refuse)
    with pytest.raises(RefusedError):
        one.delete_pod(None)
    one.restart()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metadata": {"ownerReferences": []}}, "nothing makes it again; run brokers in a stateful set"),
        ({"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}}, "one of another name"),
        ({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}, "would be deleted with it"),
    ],
)
def test_a_pod_that_would_be_lost_is_not_deleted(change: dict[str, dict[str, Any]], why: str) -> None:
    api = OnePodApi(pod("prod-kafka-0"))
    for part, values in change.items():
        api.pods["prod-kafka-0"][part] |= values
    with pytest.raises(ClusterError, match=why):
        broker_pod(api).delete_pod(None)
    assert [] == api.deleted


def test_a_successor_that_no_node_takes_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a pod is on no machine whose agent could let it go on."""
    monkeypatch.setattr(broker_pods, "_STARTED_S", 0.0)
    api = OnePodApi(pod("prod-kafka-0", status={"state": {"waiting": {"reason": "Pending"}}}))
    del api.pods["prod-kafka-0"]["spec"]["nodeName"]
    with pytest.raises(ClusterError, match="broker 0 does not start: the pod prod-kafka-0 waits"):
        broker_pod(api).restart()


def test_a_start_waits_for_the_successor_of_a_deleted_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server lists a deleted pod, which still runs, until the kubelet has ended it."""
    monkeypatch.setattr(broker_pods, "_STARTED_S", 0.0)
    api = OnePodApi(pod("prod-kafka-0"))
    one = broker_pod(api)
    one.delete_pod(0)
    with pytest.raises(ClusterError, match="its controller has not made the pod prod-kafka-0 again"):
        one.restart()
    api.pods["prod-kafka-0"]["metadata"]["uid"] = "another"
    one.restart()


# --- the scripts, on processes of this test ---------------------------------------------------------------------------


class Machine:
    """A folder as /proc of a machine with processes named java, and another as the agent's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.own = folder / "proc", folder / "own"
        self.folder.mkdir()
        self.own.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, uid: str, cgroup: str = "/kubepods.slice/kubepods-pod{}.slice/c") -> "subprocess.Popen[bytes]":
        """Start a process that ignores SIGTERM, which Linux and this folder know, in the cgroup of a pod."""
        program = "import signal, time; signal.signal(15, lambda *_: None); print(flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        home = self.folder / str(process.pid)
        home.mkdir()
        (home / "comm").write_text("java\n")
        (home / "cgroup").write_text(f"0::{cgroup.format(uid.replace('-', '_'))}\n")
        (home / "stat").symlink_to(f"/proc/{process.pid}/stat")
        return process

    def script(self, text: str) -> str:
        return text.replace("/proc", str(self.folder)).replace("/run/aftershock", str(self.own))

    def run(self, text: str, uid: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", self.script(text), uid], capture_output=True, text=True, check=False)

    def state(self, uid: str) -> str:
        return self.run(broker_pods.STATE, uid).stdout.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


@pytest.fixture
def agent(machine: Machine) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(["sh", "-c", machine.script(broker_pods.MAIN)])
    yield process
    process.terminate()
    process.wait()


def kernel_state(process: "subprocess.Popen[bytes]") -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(process: "subprocess.Popen[bytes]", state: str) -> str:
    return still_lacking(lambda: "" if kernel_state(process) == state else kernel_state(process), 5.0)


UID, OTHER = "3f0c-11", "3f0c-22"


def test_a_pause_stops_the_processes_of_one_pod_alone(machine: Machine) -> None:
    mine, other = machine.start(UID), machine.start(OTHER)
    assert 0 == machine.run(broker_pods.PAUSE, UID).returncode
    assert ("", "T", "S") == (becomes(mine, "T"), machine.state(UID), machine.state(OTHER))
    assert "S" == kernel_state(other)
    machine.run(broker_pods.GO_ON, UID)
    assert ("", "S") == (becomes(mine, "S"), machine.state(UID))


def test_one_stopped_process_of_several_is_a_pause(machine: Machine) -> None:
    """As when a probe starts a JVM of its own in the pod."""
    broker = machine.start(UID)
    machine.run(broker_pods.PAUSE, UID)
    assert "" == becomes(broker, "T")
    machine.start(UID)
    machine.start(UID)
    assert "T" == machine.state(UID)


def test_a_process_that_is_stopped_while_it_is_let_go_goes_on(
    machine: Machine, agent: "subprocess.Popen[bytes]"
) -> None:
    """However the agent's scan and the heal interleave."""
    one = machine.start(UID)
    for _ in range(3):
        (machine.own / f"held-{UID}").write_text("\n")
        assert "" == becomes(one, "T")
        machine.run(broker_pods.GO_ON, UID)
        time.sleep(2 * broker_pods.TICK_S)
        assert "S" == kernel_state(one)
    assert agent.poll() is None


def test_a_pod_without_a_jvm_is_told(machine: Machine) -> None:
    assert 3 == machine.run(broker_pods.KILL, UID).returncode
    assert "none" == machine.state(UID)


def test_a_killed_broker_stays_down_until_it_may_go_on(machine: Machine, agent: "subprocess.Popen[bytes]") -> None:
    """The next process of the pod, which the kubelet starts, is stopped before it does anything."""
    killed = machine.start(UID)
    assert agent.poll() is None
    with subprocess.Popen(["sh", "-c", machine.script(broker_pods.KILL), UID]) as command:
        assert -signal.SIGKILL == killed.wait(5)  # the kill waits until its parent knows
        assert 0 == command.wait(5)
    successor = machine.start(UID)
    assert "down" == machine.state(UID)
    assert "" == becomes(successor, "T")
    machine.run(broker_pods.GO_ON, UID)
    assert ("", "S") == (becomes(successor, "S"), machine.state(UID))
    time.sleep(3 * broker_pods.TICK_S)
    assert "S" == kernel_state(successor)


def test_a_broker_that_shuts_down_is_not_stopped_meanwhile(machine: Machine, agent: "subprocess.Popen[bytes]") -> None:
    """SIGTERM starts a shut-down of seconds, during which the process is neither down nor held."""
    ending = machine.start(UID, f"/kubepods/pod{UID}/c")
    assert 0 == machine.run(broker_pods.TERMINATE, UID).returncode
    time.sleep(3 * broker_pods.TICK_S)
    assert ("S", "S") == (kernel_state(ending), machine.state(UID))
    ending.kill()
    ending.wait()
    assert "down" == machine.state(UID)
    assert agent.poll() is None


@pytest.mark.parametrize("end", ["terminated", "forgotten"])
def test_an_agent_that_ends_lets_all_processes_go_on(machine: Machine, end: str) -> None:
    paused, held = machine.start(UID), machine.start(OTHER)
    text = broker_pods.MAIN.replace("-lt 125", "-lt 10") if end == "forgotten" else broker_pods.MAIN
    assert (end == "forgotten") == (text != broker_pods.MAIN)
    process = subprocess.Popen(["sh", "-c", machine.script(text)])
    machine.run(broker_pods.PAUSE, UID)
    (machine.own / f"held-{OTHER}").write_text("\n")
    (machine.own / f"seen-{OTHER}").touch()
    assert ("", "") == (becomes(paused, "T"), becomes(held, "T"))
    if end == "terminated":
        process.terminate()
    assert 0 == process.wait(10)
    assert ("", "") == (becomes(paused, "S"), becomes(held, "S"))
    assert {f"seen-{UID}", f"seen-{OTHER}"} == {path.name for path in machine.own.iterdir()}
