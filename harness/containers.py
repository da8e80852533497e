"""What a cluster is made of on the engine, launched with Testcontainers under names and labels of ours.

Testcontainers' own reaper is switched off: its image can't always be pulled, it would reap kept clusters, and the sweep
by label and dead owner (`labels.py`) does its work.
"""

import os

# Testcontainers reads its settings when it is imported
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import APIError
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import EngineError
from aftershock.harness.labels import NODE
from aftershock.harness.racks import Node
from aftershock.harness.spec import LOG_DIR

_MEMORY = "1g"


class RackNetwork(Network):
    """A rack's network, under a name and labels of ours."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(docker_network_kw={"driver": "bridge", "labels": dict(labels)})
        self.name = name

    def create(self) -> "RackNetwork":
        """Create it.

        Raises:
            EngineError: the engine refused, for want of free address ranges say.
        """
        try:
            super().create()
        except APIError as error:
            raise EngineError(f"can't create network {self.name}: {error.explanation or error}") from error
        return self


class Container(DockerContainer):
    """A container with our name and labels, whose published ports are on loopback only."""

    def __init__(self, image: str, name: str, labels: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(image, name=name, labels=dict(labels), **kwargs)

    def publish_on_loopback(self, ports: list[int]) -> None:
        """Publish ``ports``, each on a loopback port that the engine chooses."""
        self.ports |= {f"{port}/tcp": ("127.0.0.1",) for port in ports}  # type: ignore[misc]  # Docker's (address,) form

    def start(self) -> "Container":
        """Create and start it.

        Raises:
            EngineError: the engine refused.
        """
        try:
            super().start()
        except APIError as error:
            raise EngineError(f"can't start {self._name}: {error.explanation or error}") from error
        return self


class KafkaContainer(Container):
    """The container of one Kafka node, its log on a volume of its own, so that it survives a kill as a disk would."""

    def __init__(
        self, node: Node, image: str, name: str, labels: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._volume, self._volume_labels = name, dict(labels)
        labels = {**labels, NODE: str(node.id), "aftershock.rack": node.rack}
        super().__init__(image, name, labels, env=dict(environment), hostname=node.name, mem_limit=_MEMORY)
        self.with_volume_mapping(name, LOG_DIR, "rw")

    def start(self) -> "KafkaContainer":
        """Create its volume and it, and start it; EngineError when the engine refused."""
        # created first: a volume that the container creates would not carry our labels
        client: docker.DockerClient = self.get_docker_client().client
        client.volumes.create(self._volume, labels=self._volume_labels)
        super().start()
        return self
