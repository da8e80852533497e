"""What a cluster is made of on the engine, launched with Testcontainers under names and labels of ours.

Testcontainers' own reaper is switched off: its image can't always be pulled, it would reap kept clusters, and the sweep
by label and dead owner (`labels.py`) does its work.
"""

import os

# Testcontainers reads its settings when it is imported
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from collections.abc import Mapping
from typing import Any

from docker.errors import APIError
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import EngineError
from aftershock.harness.labels import NODE
from aftershock.harness.racks import Node

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
    """The container of one Kafka node, its logs on volumes, so that they survive a kill as a disk would.

    ``volumes``: where each is mounted, by name; they must be there, as one that the container creates lacks our labels.
    """

    def __init__(
        self,
        node: Node,
        image: str,
        name: str,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        volumes: Mapping[str, str],
    ) -> None:
        labels = {**labels, NODE: str(node.id), "aftershock.rack": node.rack}
        # root without the right to write everywhere: a log directory that is made unwritable is so for every user
        rights = {"cap_drop": ["DAC_OVERRIDE"]}
        super().__init__(image, name, labels, env=dict(environment), hostname=node.name, mem_limit=_MEMORY, **rights)
        for volume, path in volumes.items():
            self.with_volume_mapping(volume, path, "rw")
