"""Runs by schedule inside a Kubernetes cluster: the objects of a CronJob, and the result of a run as a config map.

The job's pod has `aftershock` itself (the image ``runner``), and a service account with the role that a run in its
namespace needs. The run launches brokers in pods of the same namespace. Its exit code is that of the pod, so a job
whose plan did not pass has failed; its result replaces that of the run before in the config map ``<name>-result``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aftershock.errors import ClusterError
from aftershock.faults.plan.check import CheckedPlan
from aftershock.faults.sections.workloads import POD_CLIENTS
from aftershock.harness.cluster.kubernetes.api import Api, RefusedError
from aftershock.harness.cluster.kubernetes.manifests import MANAGED

RESULT_MAX = 900_000
"""Bytes of a result: a config map holds 1 MiB."""

# the pod ends with the run's exit code, whether or not its result could be kept
_SCRIPT = """\
python3 -P -m aftershock.harness.cli run /plan/plan.yaml --on kubernetes \\
  --set "cluster.kubernetes.namespace=$NAMESPACE" --allow-namespace "$NAMESPACE" --out /runs &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
while kill -0 "$run" 2>/dev/null; do code=0; wait "$run" || code=$?; done # a signal ends `wait` early
python3 -P -m aftershock.harness.cli kubernetes result --namespace "$NAMESPACE" --name "$NAME" --out /runs
exit $code
"""


def hindrances(checked: CheckedPlan) -> Iterator[str]:
    """Yield why a plan can't run in the pod of a job, each with its position in the plan."""
    position, cluster = checked.source_map.position, checked.plan.cluster
    for index, workload in enumerate(checked.plan.workloads):
        for name, arm in workload.arms.items():
            if arm.client not in POD_CLIENTS:
                where = position(("workloads", index, "arms", name))
                ours = " and ".join(POD_CLIENTS)
                yield f"{where}: the image of the runner has no client {arm.client} (arm `{name}`), only {ours}"
    if cluster.image:
        yield f"{position(('cluster', 'image'))}: a job has nobody who permits an image of your own: remove `image`"
    if cluster.kubernetes and cluster.kubernetes.context:
        where = position(("cluster", "kubernetes", "context"))
        yield f"{where}: a pod has no kubeconfig, and runs in its own cluster: remove `context`"
    if cluster.kubernetes and cluster.kubernetes.nodes:
        where = position(("cluster", "kubernetes", "nodes"))
        yield f"{where}: the role of a job is of one namespace, and permits nothing about nodes: remove `nodes`"


def cron_job(
    name: str, namespace: str, schedule: str, plan: str, image: str, role: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the manifests of a CronJob that runs a plan, given as text; ``role`` has its role and the binding."""
    labels = {"labels": {**MANAGED, "app.kubernetes.io/instance": name}}
    metadata = {"name": name, "namespace": namespace, **labels}
    account = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    own_role, binding = (document | {"metadata": metadata} for document in role)
    container = {
        "name": "aftershock",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", _SCRIPT],
        "env": [{"name": "NAMESPACE", "value": namespace}, {"name": "NAME", "value": name}],
        "resources": {"requests": {"cpu": "500m", "memory": str(1 << 30)}},
        "volumeMounts": [
            {"name": "plan", "mountPath": "/plan"},
            {"name": "runs", "mountPath": "/runs"},
            # what clients record; the runtime's own has 64 MiB
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 -- a mount, no file
        ],
    }
    pod = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 120,  # the run removes its pods first
        "containers": [container],
        "volumes": [
            {"name": "plan", "configMap": {"name": name}},
            {"name": "runs", "emptyDir": {}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    job = {"backoffLimit": 0, "template": {"spec": pod}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        own_role,
        binding | {"roleRef": {**binding["roleRef"], "name": name}, "subjects": account},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"plan.yaml": plan}},
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": metadata,
            # one after the other: each run is measured
            "spec": {"schedule": schedule, "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}},
        },
    ]


def keep_result(api: Api, namespace: str, name: str, texts: Mapping[str, str]) -> str:
    """Put the texts of a run's result into the config map ``<name>-result``; return its name.

    Texts that do not fit together with those before them are left out. Raises RefusedError if that is not permitted.
    """
    result, kept, size = f"{name}-result", dict[str, str](), 0
    for key, text in texts.items():
        if size + len(text.encode()) <= RESULT_MAX:
            kept[key] = text
            size += len(text.encode())
    if not kept:
        raise ClusterError(f"no part of the result fits into the config map {result} ({RESULT_MAX:,} bytes)")
    metadata = {"name": result, "namespace": namespace, "labels": dict(MANAGED)}
    with suppress(RefusedError):  # it exists, or the patch is refused as well
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    # a key of the run before that this one lacks must not stay
    before = (api.find("ConfigMap", namespace, result) or {}).get("data") or {}
    api.patch("ConfigMap", namespace, result, {"data": dict.fromkeys(before) | kept})
    return result
