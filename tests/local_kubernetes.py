"""The Kubernetes cluster of ``ci/kubernetes``, for tests."""

import copy
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aftershock.faults.sections.document import load
from aftershock.harness.cluster.kubernetes.api import Api

CI = Path(__file__).parents[1] / "ci" / "kubernetes"


@contextmanager
def running(nodes: int = 1) -> Iterator[str]:
    """Run a cluster until the block ends, with its kubeconfig in the environment; one that ran before stays.

    Yields the path of the kubeconfig. One that ran before must have as many nodes if more than one is asked for.
    """
    was_up = subprocess.run([CI, "status"], capture_output=True, check=False).returncode == 0
    up = [CI, "up", *(("--nodes", str(nodes)) if nodes > 1 else ())]
    kubeconfig = subprocess.run(up, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = kubeconfig
    try:
        yield kubeconfig
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before
        if not was_up:
            subprocess.run([CI, "down"], check=True)


def objects(api: Api) -> list[tuple[str, str]]:
    """Return kind and name of each object of the kinds that Aftershock creates."""
    kinds = ("Namespace", "Pod", "Service", "ConfigMap", "PersistentVolumeClaim")
    return sorted((kind, item["metadata"]["name"]) for kind in kinds for item in api.objects(kind))


def as_user(
    api: Api, namespace: str, folder: Path, *, name: str = "aftershock-ci", role: Iterable[dict[str, Any]] = ()
) -> str:
    """Return a kubeconfig, in ``folder``, of a service account, which has the roles of ``role`` and no other.

    The account has the folder's name, and the kubeconfig's context is ``name``. Roles of the whole cluster stay.
    """
    user = folder.name.lower().replace("_", "-")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": user}}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api._json("POST", accounts, "create an account", {}, account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = api._json("POST", f"{accounts}/{user}/token", "get a token", {}, request)["status"]["token"]
    for manifest in role:
        kind = f"{manifest['kind'].lower()}s"
        manifest["metadata"]["name"] = user  # accounts of one namespace have roles of their own
        if "roleRef" in manifest:
            manifest["subjects"] = [{"kind": "ServiceAccount", "name": user, "namespace": namespace}]
            manifest["roleRef"]["name"] = user
        inside = "" if kind.startswith("cluster") else f"namespaces/{namespace}/"
        path = f"/apis/rbac.authorization.k8s.io/v1/{inside}{kind}"
        api._json("POST", path, "create it", {}, manifest)
    document = copy.deepcopy(load(Path(os.environ["KUBECONFIG"])).data)
    document["users"][0]["user"] = {"token": token}
    document["contexts"][0]["name"] = document["current-context"] = name
    path_of_user = folder / "kubeconfig"
    path_of_user.write_text(json.dumps(document))
    return str(path_of_user)
