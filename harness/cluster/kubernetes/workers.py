"""Pods in which clients of a run are (``run_on`` in a plan), and the way to them.

Each pod waits, and the process that hosts its clients (`workloads.load.host`) is started in it through the API server,
which carries its standard input and output. This module is the program at the near end of that way
(``python -m aftershock.harness.cluster.kubernetes.workers CONTEXT NAMESPACE POD RUN NAME ROOT``).
"""

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aftershock.errors import AftershockError, ClusterError
from aftershock.harness.cluster.kubernetes.api import IN_CLUSTER, Api
from aftershock.harness.cluster.kubernetes.manifests import MANAGED, Place, spread_over_machines
from aftershock.harness.cluster.kubernetes.node import hindrance
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN

FOLDER = "/run/aftershock"
"""Folder in a worker's pod for what its clients record, in memory, as on the runner's host."""
_CONTAINER = "worker"
_HOST = ("python3", "-P", "-m", "aftershock.workloads.load.host")
_STARTED_S = 120.0  # an image may have to be pulled
_CHUNK = 65_536
_END_S = 10.0


@contextmanager
def worker_pods(
    api: Api, place: Place, hosts: Mapping[str, Mapping[str, Any]], image: str
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Run a pod for each host until the block ends; yield the commands that start the hosts, by name.

    ``hosts`` has the section ``run_on.kubernetes`` of each host's workload, ``image`` is used where it names none.
    Raises ClusterError if a pod does not run in time, with the words of the scheduler or the kubelet.
    """
    owner = api.get("ConfigMap", place.namespace, place.root)["metadata"]["uid"]
    pods = {host: f"{place.prefix}worker-{number}" for number, host in enumerate(hosts, 1)}
    try:
        for host, plan in hosts.items():
            api.create(_manifest(place, pods[host], plan, image, owner))

        def waiting() -> str:
            found = (api.find("Pod", place.namespace, pod) for pod in pods.values())
            return next((why for pod in found if (why := hindrance(pod, _CONTAINER)[0] if pod else "no pod")), "")

        if problem := still_lacking(waiting, _STARTED_S):
            raise ClusterError(f"the pods of the clients do not start: {problem}")
        way = (sys.executable, "-P", "-m", __name__, place.context, place.namespace)
        yield {host: (*way, pod) for host, pod in pods.items()}
    finally:
        for pod in pods.values():
            api.delete("Pod", place.namespace, pod, grace_s=0)


def _manifest(place: Place, name: str, plan: Mapping[str, Any], image: str, owner: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": {**MANAGED, RUN: place.run_id, "app.kubernetes.io/name": "aftershock-worker"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": place.root, "uid": owner}],
        },
        "spec": {
            "nodeSelector": dict(plan.get("node_selector") or {}),
            "topologySpreadConstraints": [spread_over_machines(place.run_id)],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": plan.get("image") or image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "resources": {"requests": {"cpu": "100m", "memory": str(256 << 20)}},
                    "volumeMounts": [{"name": "rows", "mountPath": FOLDER}],
                }
            ],
            "volumes": [{"name": "rows", "emptyDir": {"medium": "Memory"}}],
        },
    }


def carry(api: Api, namespace: str, pod: str, arguments: Sequence[str]) -> int:
    """Start a host in its pod, and carry standard input and output until it ends; return its exit status.

    One thread reads and writes, because a TLS connection must not be used by two at once.
    """
    with api.session(namespace, pod, _CONTAINER, [*_HOST, *arguments], stdin=True) as session:
        inputs, give_up_s = [sys.stdin.fileno()], float("inf")
        while session.is_open() and time.monotonic() < give_up_s:
            # what TLS has decrypted already makes no socket readable
            pending = getattr(session.sock.sock, "pending", int)()
            ready, _, _ = select.select([*inputs, session.sock.sock], [], [], 0.0 if pending else 1.0)
            if sys.stdin.fileno() in ready:
                if data := os.read(sys.stdin.fileno(), _CHUNK):
                    session.write_stdin(data.decode())
                else:
                    session.close_channel(0)  # a server without this part of the protocol ends it with the connection
                    inputs, give_up_s = [], time.monotonic() + _END_S
            session.update(timeout=0)
            for descriptor, text in ((1, session.read_stdout(timeout=0)), (2, session.read_stderr(timeout=0))):
                rest = text.encode()
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            session._all = type(session._all)()  # noqa: SLF001 -- a copy of all output, without end
        return int(session.returncode or 0) if not session.is_open() else 0


if __name__ == "__main__":
    context, namespace, pod, *words = sys.argv[1:]
    try:
        sys.exit(carry(Api(None if context == IN_CLUSTER else context), namespace, pod, words))
    except AftershockError as error:
        sys.exit(str(error))
