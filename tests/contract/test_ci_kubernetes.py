"""`ci/kubernetes`: a cluster that works, keeps its packets to itself, and leaves nothing."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.local_kubernetes import CI

POD = "stranger"
pytestmark = [pytest.mark.engine, pytest.mark.nightly]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CI, *arguments], capture_output=True, text=True, check=False)


def state_of_machine() -> dict[str, object]:
    """Return what a cluster changes on its machine; other programs may change the rest meanwhile."""

    def read(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    sysctls = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    return {
        "rules": re.findall(r".*(?:KUBE-|aftershock0).*", read("iptables-save") + read("ip6tables-save")),
        "devices": re.findall(r"aftershock0", read("ip", "-brief", "link")),
        "routes": re.findall(r"^10\.(?:96|244)\..*", read("ip", "route"), re.MULTILINE),
        "mounts": [line for line in mounts if "aftershock/kubernetes" in line],
        "groups": [str(path) for path in Path("/sys/fs/cgroup").glob("**/aftershock-kubernetes*")],
        "processes": [
            line
            for line in read("ps", "-eo", "args").splitlines()
            if "aftershock/kubernetes" in line and "pytest" not in line
        ],
        "folders": [path for path in ("/tmp/hostpath_pv", "/var/log/containers") if Path(path).exists()],  # noqa: S108
        "sysctls": [Path("/proc/sys", name).read_text(encoding="ascii") for name in sysctls],
    }


@pytest.fixture(scope="module")
def before() -> dict[str, object]:
    """Return the state of the machine without a cluster."""
    assert run("down").returncode == 0
    return state_of_machine()


@pytest.fixture(scope="module")
def api(before: dict[str, object]) -> Iterator[Api]:
    """Return a client of a new cluster of two nodes."""
    assert [] == before["processes"]
    result = run("up", "--nodes", "2")
    assert result.returncode == 0, result.stderr
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", result.stdout.strip())
        with closing(Api()) as api:
            yield api
    run("down")


@pytest.mark.timeout(1800)  # the first `up` builds Kubernetes
def test_nodes_are_ready_in_their_zones(api: Api) -> None:
    assert api.version().startswith("v1.34")
    zones = [node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in api.objects("Node")]
    assert ["zone-a", "zone-b"] == sorted(zones)


def test_a_second_up_changes_nothing(api: Api) -> None:
    uids = [node["metadata"]["uid"] for node in api.objects("Node")]
    assert run("up").stdout == run("status").stdout
    assert uids == [node["metadata"]["uid"] for node in api.objects("Node")]
    refused = run("up", "--nodes", "1")
    assert (refused.returncode, "the cluster that runs has 2 nodes" in refused.stderr) == (3, True)


def test_no_packet_of_a_pod_leaves_the_machine(api: Api) -> None:
    """A pod reaches the API server by its service, and its packets to the outside are dropped and counted."""
    (image, *_) = (
        name
        for node in api.objects("Node")
        for item in node["status"]["images"]
        for name in item["names"]
        if "aftershock/kafka:" in name
    )
    container = {"name": "kafka", "image": image, "command": ["sleep", "600"], "imagePullPolicy": "Never"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": "default"}}
    api.create({**pod, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}})
    phase = lambda: api.get("Pod", "default", POD)["status"]["phase"]  # noqa: E731
    assert not still_lacking(lambda: "" if phase() == "Running" else phase(), 60.0)

    def dial(address: str) -> int:
        command = ["timeout", "2", "bash", "-c", f": </dev/tcp/{address}"]
        return api.execute("default", POD, "kafka", command).code

    assert 0 == dial("kubernetes.default.svc.cluster.local/443")
    dropped = _dropped()
    assert 0 != dial("192.0.2.77/80")  # an address of documentation (RFC 5737)
    assert dropped < _dropped()
    assert api.delete("Pod", "default", POD)


def _dropped() -> int:
    command = ["iptables", "-t", "mangle", "-nvxL", "FORWARD"]
    rules = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (count,) = re.findall(r"^\s*(\d+)\s+\d+\s+DROP\s.*aftershock0\s+!aftershock0", rules, re.MULTILINE)
    return int(count)


def test_down_leaves_nothing(api: Api, before: dict[str, object]) -> None:
    assert api.objects("Node")
    assert run("down").returncode == 0
    assert before == state_of_machine()
    assert (run("down").returncode, run("status").returncode) == (0, 1)
