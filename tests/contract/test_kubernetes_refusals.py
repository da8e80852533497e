"""What a Kubernetes cluster lacks or refuses: exit code 3, a sentence that says what to do, and nothing left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.lifecycle.launch_kubernetes import role
from aftershock.tests.local_kubernetes import as_user, objects, running

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(300)]
NAMESPACE = "refusals"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[str]:
    with running() as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> Iterator[Api]:
    """Return an administrator's client, and a namespace in which a user may do nothing and a quota permits no pod."""
    assert kubeconfig
    with closing(Api()) as api:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "1"}},
        }
        api._json("POST", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas", "create a quota", {}, quota)
        yield api
        api.delete("Namespace", None, NAMESPACE)


@pytest.fixture
def left(api: Api) -> Iterator[None]:
    """Assert that a test leaves no object of ours."""
    before = objects(api)
    yield
    assert before == objects(api)


def refusal(tmp_path: Path, *options: str, kubeconfig: str = "") -> str:
    """Run the demo with these options; return its message, which must be an error."""
    environment = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})
    command = [
        sys.executable,
        "-m",
        "aftershock.harness.cli",
        "run",
        "demo",
        "--on",
        "kubernetes",
        "--out",
        str(tmp_path),
    ]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
    assert 3 == ended.returncode, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("kubernetes={context: nowhere}",), "the kubeconfig has no context nowhere; its contexts are aftershock-ci"),
        (("kubernetes={storage_class: fast}",), "has no storage class fast; its classes are: host-path"),
        (("kubernetes={node_selector: {disk: ssd}}",), "no node with the labels disk=ssd of the Kubernetes cluster"),
        (("kubernetes={zones: {a: zone-a, b: zone-b, c: zone-z}}",), "no node is in the zone"),
        (("image='nobody/kafka:9.9.9'",), "waits for its container: ErrImagePull"),
    ],
)
def test_what_the_cluster_lacks(tmp_path: Path, changes: tuple[str, ...], says: str) -> None:
    options = [word for change in changes for word in ("--set", f"cluster.{change}")]
    assert says in refusal(tmp_path, "--allow-exec", *options)


@pytest.mark.usefixtures("left")
def test_pods_that_no_node_takes(api: Api, tmp_path: Path) -> None:
    """The scheduler's own words."""
    api.patch("Node", None, "node-1", {"spec": {"taints": [{"key": "ours", "effect": "NoSchedule"}]}})
    try:
        said = refusal(tmp_path)
    finally:
        api.patch("Node", None, "node-1", {"spec": {"taints": None}})
    assert "no node takes the pod toxiproxy-" in said
    assert "1 node(s) had untolerated taint" in said


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "the plan would create and stop pods in the namespace refusals; add --allow-namespace refusals"),
        (("--allow-namespace", NAMESPACE), "exceeded quota: none"),
    ],
)
def test_a_named_namespace(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    """Needs permission; what is created there before the API server refuses a pod is removed."""
    assert says in refusal(tmp_path, "--set", f"cluster.kubernetes={{namespace: {NAMESPACE}}}", *options)


@pytest.mark.usefixtures("left")
def test_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    options = ("--set", "cluster.kubernetes={namespace: absent}", "--allow-namespace", "absent")
    assert "has no namespace absent; create it first: kubectl create namespace absent" in refusal(tmp_path, *options)


@pytest.mark.usefixtures("left")
def test_a_context_that_looks_like_production(api: Api, tmp_path: Path) -> None:
    user = as_user(api, NAMESPACE, tmp_path, name="eks-prod")
    assert "looks like a production cluster" in refusal(tmp_path, kubeconfig=user)


@pytest.mark.usefixtures("left")
def test_a_user_without_permissions(api: Api, tmp_path: Path) -> None:
    """Each missing verb is named, and the role that a command prints is enough."""
    user = as_user(api, NAMESPACE, tmp_path)
    said = refusal(tmp_path, kubeconfig=user)
    assert "lacks permissions in a new namespace: create namespaces" in said
    assert "aftershock kubernetes rbac" in said
    options = ("--set", f"cluster.kubernetes={{namespace: {NAMESPACE}}}", "--allow-namespace", NAMESPACE)
    said = refusal(tmp_path, *options, kubeconfig=user)
    assert "create pods, create services" in said
    assert f"aftershock kubernetes rbac --namespace {NAMESPACE}" in said
    permitted = tmp_path / "permitted"
    permitted.mkdir()
    user = as_user(api, NAMESPACE, permitted, role=role(NAMESPACE))
    assert "exceeded quota" in refusal(tmp_path, *options, kubeconfig=user)
