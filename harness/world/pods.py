"""Operations for faults on the Kubernetes nodes of a cluster's pods, by `faults.targets.world.NodeControl`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.attach.broker_pods import BrokerPod
from aftershock.harness.cluster.kubernetes import cordons
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.node import PodNode
from aftershock.harness.world.threads import in_thread


class PodsWorld(ABC):
    """Operations on the Kubernetes nodes of pods, which a subclass knows with the client of their API server."""

    _cluster: Any

    @abstractmethod
    def _api(self) -> Api: ...

    @abstractmethod
    def _pods(self) -> Mapping[BrokerId, BrokerPod | PodNode]: ...

    @in_thread
    def machines(self) -> Mapping[BrokerId, str]:
        pods = {broker: node.pod() for broker, node in self._pods().items()}
        return {broker: name for broker, pod in pods.items() if pod and (name := pod["spec"].get("nodeName"))}

    @in_thread
    def cordon(self, machine: str, fault: str) -> None:
        cordons.cordon(self._api(), machine, self._cluster.run_id, fault)

    @in_thread
    def uncordon(self, machine: str, fault: str) -> None:
        cordons.uncordon(self._api(), machine, self._cluster.run_id, fault)

    @in_thread
    def cordoned(self, machine: str, fault: str) -> bool:
        return cordons.is_cordoned(self._api(), machine, self._cluster.run_id, fault)
