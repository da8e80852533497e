"""Kubernetes nodes on which a run lets the scheduler place no pod (``kubectl cordon``), labelled with the run."""

from aftershock.errors import ClusterError
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.safety.ownership import RUN

NEEDS = tuple((verb, "", "nodes") for verb in ("get", "list", "patch"))
"""What cordons need of the API, outside of any namespace: verb, API group and resource."""


def cordon(api: Api, machine: str, run_id: str) -> None:
    """Let no pod be placed on a Kubernetes node; raise ClusterError if that is so already."""
    node = api.get("Node", None, machine)
    if node["spec"].get("unschedulable"):
        whose = node["metadata"].get("labels", {}).get(RUN)
        by = f"by the run {whose}" if whose else "by somebody else"
        raise ClusterError(f"the Kubernetes node {machine} is cordoned already, {by}: name a broker on another one")
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}  # nobody has changed it meanwhile
    change = {"metadata": {"labels": {RUN: run_id}, **version}, "spec": {"unschedulable": True}}
    api.patch("Node", None, machine, change)


def is_cordoned(api: Api, machine: str, run_id: str) -> bool:
    """Return whether a Kubernetes node takes no pods because of this run."""
    node = api.find("Node", None, machine)
    return bool(node and node["spec"].get("unschedulable") and node["metadata"].get("labels", {}).get(RUN) == run_id)


def uncordon(api: Api, machine: str, run_id: str) -> None:
    """Let pods be placed again on a Kubernetes node if this run has cordoned it."""
    node = api.find("Node", None, machine)
    if node and node["metadata"].get("labels", {}).get(RUN) == run_id:
        change = {"metadata": {"labels": {RUN: None}}, "spec": {"unschedulable": None}}
        api.patch("Node", None, machine, change)


def cordoned_by_runs(api: Api) -> dict[str, list[str]]:
    """Return the Kubernetes nodes that runs have cordoned, by run; raise RefusedError if they may not be listed."""
    found: dict[str, list[str]] = {}
    for node in api.objects("Node", selector=RUN):
        found.setdefault(node["metadata"]["labels"][RUN], []).append(node["metadata"]["name"])
    return found
