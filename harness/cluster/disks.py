"""Volumes of a cluster's nodes: one for each log directory, and short-lived containers that change a volume's content.

``LOG_DIR`` is a volume on the engine's own disk. Disks of a limited size are volumes in memory (tmpfs). The kernel
drops such a volume when no container mounts it, so Toxiproxy, which never restarts, mounts all disks too, and a disk
outlives its broker. Changes that need root or a stopped broker are made in a separate container of the broker's image.
"""

from collections.abc import Mapping

import docker
from docker.errors import APIError, ContainerError
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, Node


def volumes_of(spec: ClusterSpec, node: Node, container: str) -> dict[str, str]:
    """Map the names of a node's volumes to their mount paths."""
    disks = {f"{container}-{path.rpartition('/')[2]}": path for path in spec.log_dirs(node) if path != LOG_DIR}
    return {container: LOG_DIR, **disks}


def create_volumes(
    client: docker.DockerClient, spec: ClusterSpec, containers: Mapping[Node, str], labels: Mapping[str, str]
) -> None:
    """Create all volumes of a cluster. Raises EngineError if the engine refuses."""
    for node, container in containers.items():
        for name, path in volumes_of(spec, node, container).items():
            options = {}
            if path != LOG_DIR and spec.disks is not None:
                options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={spec.disks.size}"}
            try:
                client.volumes.create(name, labels=dict(labels), driver_opts=options)
            except APIError as error:
                raise EngineError(f"can't create volume {name}: {error.explanation or error}") from error


def run_on_volume(container: Container, path: str, script: str, *, root: bool) -> str:
    """Run a shell script in a new container with the volume that a node has at ``path``; return the output.

    The script runs as root, or with the user and privileges of the node. Raises ClusterError if the script failed.
    """
    mounts = {mount["Destination"]: mount["Name"] for mount in container.attrs["Mounts"] if mount["Type"] == "volume"}
    if path not in mounts:
        raise ClusterError(f"{container.name} has no volume at {path}")
    labels = {key: value for key, value in container.labels.items() if key != NODE}
    privileges = {"user": "0"} if root else {"cap_drop": ["DAC_OVERRIDE"]}
    try:
        output: bytes = container.client.containers.run(
            container.image.id,
            ["-c", script],
            entrypoint="sh",
            volumes={mounts[path]: {"bind": path, "mode": "rw"}},
            labels=labels,
            network_disabled=True,
            remove=True,
            **privileges,
        )
    except (APIError, ContainerError) as error:
        raise ClusterError(f"can't change {path} of {container.name}: {error}") from error
    return output.decode()
