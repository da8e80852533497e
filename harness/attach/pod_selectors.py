"""Which pods of a Kubernetes cluster may be the brokers of a Kafka cluster, and the selector that names them.

The ids of the pods' brokers (``broker_pods.broker_of``) must be those of the cluster, each once. Two clusters of one
size have the same ids, so several selections may match, and which is right is the user's to say.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aftershock.harness.attach.broker_containers import id_in_environment
from aftershock.harness.attach.broker_pods import broker_of
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.node import Pod

_LABELS = (
    *("strimzi.io/cluster", "platform.confluent.io/type", "app.kubernetes.io/instance", "app.kubernetes.io/name"),
    *("app", "statefulset.kubernetes.io/pod-name"),
)
"""Labels of brokers' pods, of Strimzi, Confluent for Kubernetes, Helm charts and plain stateful sets, best first."""


@dataclass(frozen=True)
class PodSelector:
    """Pods that may be a cluster's brokers: namespace, selector and container, and the name of each broker's pod.

    ``whole`` is False if the selector also matches pods of others, such as isolated controllers.
    """

    namespace: str
    selector: str
    container: str
    names: Mapping[int, str]
    whole: bool = True

    def section(self) -> str:
        """Return the value of ``attach.kubernetes`` in a plan."""
        container = "" if self.container == "kafka" else f", container: {self.container}"
        brokers = ", ".join(f"{broker}: {name}" for broker, name in self.names.items())
        pods = f"pods: {self.selector}" if self.whole else f"brokers: {{{brokers}}}"
        return f"{{namespace: {self.namespace}, {pods}{container}, agent: true}}"


def selectors(api: Api, brokers: Collection[int], namespace: str | None) -> list[PodSelector]:
    """Return the selections of pods that are these brokers, each once, one for each namespace and pod.

    Looks in one namespace, or in all. Raises RefusedError if the user may not list the pods there.
    """
    groups: dict[tuple[str, str, str], dict[int, list[str]]] = {}
    for pod in api.objects("Pod", namespace):
        metadata = pod["metadata"]
        container = _container_of(pod)
        broker = broker_of(pod, container) if _is_there(pod) else None
        for label in _LABELS:
            value = (metadata.get("labels") or {}).get(label)
            if broker is not None and value is not None:
                key = metadata["namespace"], container, f"{label}={value}"
                groups.setdefault(key, {}).setdefault(broker, []).append(metadata["name"])
    fitting = []
    for (place, container, selector), names in groups.items():
        if names.keys() >= {*brokers} and all(len(names[broker]) == 1 for broker in brokers):
            of_brokers = {broker: names[broker][0] for broker in sorted(brokers)}
            fitting.append(PodSelector(place, selector, container, of_brokers, whole=names.keys() == {*brokers}))
    found: dict[tuple[str, str], PodSelector] = {}
    for one in sorted(fitting, key=lambda one: (not one.whole, _LABELS.index(one.selector.partition("=")[0]))):
        found.setdefault((one.namespace, one.names[min(one.names)]), one)
    return list(found.values())


def _container_of(pod: Pod) -> str:
    """Return the container of a pod that may be a broker's, before its sidecars: one with an id, or named `kafka`."""

    def is_sidecar(container: Mapping[str, Any]) -> tuple[bool, bool]:
        environment = {item["name"]: item.get("value") or "" for item in container.get("env") or ()}
        return not id_in_environment(environment), container["name"] != "kafka"

    return str(min(pod["spec"]["containers"], key=is_sidecar)["name"])


def _is_there(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
