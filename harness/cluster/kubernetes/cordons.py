"""Kubernetes nodes on which a run lets the scheduler place no pod (``kubectl cordon``), labelled with the run."""

from aftershock.errors import ClusterError
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.safety.ownership import RUN

NEEDS = tuple((verb, "", "nodes") for verb in ("get", "list", "patch"))
"""What cordons need of the API, outside of any namespace: verb, API group and resource."""


_FAULT = "aftershock.fault"


def cordon(api: Api, machine: str, run_id: str, fault: str) -> None:
    """Let no pod be placed on a Kubernetes node because of a fault; raise ClusterError if that is so already."""
    node = api.get("Node", None, machine)
    if node["spec"].get("unschedulable"):
        whose = node["metadata"].get("labels", {}).get(RUN)
        by = f"by the run {whose}" if whose else "by somebody else"
        raise ClusterError(f"the Kubernetes node {machine} is cordoned already, {by}: name a broker on another one")
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}  # nobody has changed it meanwhile
    marks = {"labels": {RUN: run_id}, "annotations": {_FAULT: fault}}
    change = {"metadata": {**marks, **version}, "spec": {"unschedulable": True}}
    api.patch("Node", None, machine, change)


def is_cordoned(api: Api, machine: str, run_id: str, fault: str) -> bool:
    """Return whether a Kubernetes node takes no pods because of this fault of this run."""
    node = api.find("Node", None, machine)
    if node is None or not node["spec"].get("unschedulable"):
        return False
    metadata = node["metadata"]
    return (metadata.get("labels", {}).get(RUN), (metadata.get("annotations") or {}).get(_FAULT)) == (run_id, fault)


def uncordon(api: Api, machine: str, run_id: str, fault: str | None = None) -> None:
    """Let pods be placed again on a Kubernetes node if this run has cordoned it, and because of the fault if given."""
    node = api.find("Node", None, machine)
    if node is None or node["metadata"].get("labels", {}).get(RUN) != run_id:
        return
    if fault in (None, (node["metadata"].get("annotations") or {}).get(_FAULT)):
        marks = {"labels": {RUN: None}, "annotations": {_FAULT: None}}
        api.patch("Node", None, machine, {"metadata": marks, "spec": {"unschedulable": None}})


def cordoned_by_runs(api: Api) -> dict[str, list[str]]:
    """Return the Kubernetes nodes that runs have cordoned, by run; raise RefusedError if they may not be listed."""
    found: dict[str, list[str]] = {}
    for node in api.objects("Node", selector=RUN):
        found.setdefault(node["metadata"]["labels"][RUN], []).append(node["metadata"]["name"])
    return found
