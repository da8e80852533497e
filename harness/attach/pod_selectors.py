"""Which pods of a Kubernetes cluster may be the brokers of a Kafka cluster, and the selector that names them.

The ids of the pods' brokers (``broker_pods.broker_of``) must be those of the cluster, each once. Two clusters of one
size have the same ids, so several selections may match, and which is right is the user's to say.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aftershock.harness.attach.broker_pods import broker_of
from aftershock.harness.cluster.kubernetes.api import Api

_LABELS = (
    *("strimzi.io/cluster", "platform.confluent.io/type", "app.kubernetes.io/instance", "app.kubernetes.io/name"),
    *("app", "statefulset.kubernetes.io/pod-name"),
)
"""Labels of brokers' pods, of Strimzi, Confluent for Kubernetes, Helm charts and plain stateful sets, best first."""


@dataclass(frozen=True)
class PodSelector:
    """Pods that may be a cluster's brokers: namespace, selector and container, and the name of each broker's pod."""

    namespace: str
    selector: str
    container: str
    names: Mapping[int, str]

    def section(self) -> str:
        """Return the value of ``attach.kubernetes`` in a plan."""
        container = "" if self.container == "kafka" else f", container: {self.container}"
        return f"{{namespace: {self.namespace}, pods: {self.selector}{container}, agent: true}}"


def selectors(api: Api, brokers: Collection[int], namespace: str | None) -> list[PodSelector]:
    """Return the selections of pods whose brokers have just these ids, one for each namespace and container.

    Looks in one namespace, or in all. Raises RefusedError if the user may not list the pods there.
    """
    groups: dict[tuple[str, str, str], dict[int, list[str]]] = {}
    for pod in api.objects("Pod", namespace):
        metadata = pod["metadata"]
        for container in pod["spec"]["containers"]:
            broker = broker_of(pod, container["name"])
            for label in _LABELS:
                value = (metadata.get("labels") or {}).get(label)
                if broker is not None and value is not None:
                    key = metadata["namespace"], container["name"], f"{label}={value}"
                    groups.setdefault(key, {}).setdefault(broker, []).append(metadata["name"])
    found: dict[tuple[str, str], PodSelector] = {}
    for (place, container_name, selector), names in sorted(groups.items(), key=lambda group: _rank(group[0][2])):
        if names.keys() == {*brokers} and all(len(pods) == 1 for pods in names.values()):
            of_brokers = {broker: pods[0] for broker, pods in sorted(names.items())}
            found.setdefault(
                (place, of_brokers[min(of_brokers)]), PodSelector(place, selector, container_name, of_brokers)
            )
    return list(found.values())


def _rank(selector: str) -> int:
    return _LABELS.index(selector.partition("=")[0])
