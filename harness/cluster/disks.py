"""Docker volumes for the log directories of a cluster's nodes, and short-lived containers that change their content.

The log directory ``LOG_DIR`` of a node is a volume on the Docker engine's own disk. A log directory of limited size is
a volume in memory (tmpfs). The kernel drops a tmpfs volume that no container mounts; therefore the Toxiproxy container,
which never restarts, mounts all tmpfs volumes, and a broker's records survive a restart of the broker.
"""

from collections.abc import Mapping

import docker
from docker.errors import APIError, ContainerError
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.harness.cluster.engine import docker_errors
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, Node


def volumes_of(spec: ClusterSpec, node: Node, container: str) -> dict[str, str]:
    """Map the name of each Docker volume of a node to the volume's mount path."""
    disks = {f"{container}-{path.rpartition('/')[2]}": path for path in spec.log_dirs(node) if path != LOG_DIR}
    return {container: LOG_DIR, **disks}


def create_volumes(
    client: docker.DockerClient, spec: ClusterSpec, containers: Mapping[Node, str], labels: Mapping[str, str]
) -> None:
    """Create the Docker volumes of all nodes; raise EngineError if the Docker engine refuses a volume."""
    for node, container in containers.items():
        for name, path in volumes_of(spec, node, container).items():
            options = {}
            if path != LOG_DIR and spec.disks is not None:
                options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={spec.disks.size}"}
            with docker_errors(EngineError, f"create the Docker volume {name}"):
                client.volumes.create(name, labels=dict(labels), driver_opts=options)


def run_on_volume(container: Container, path: str, script: str, *, root: bool) -> str:
    """Run a shell script in a new container with the node's image and its volume at ``path``; return the output.

    The script runs as ``root`` or as the user of the node's container, and also if the node is stopped. Raises
    ClusterError if the script's exit status is not 0.
    """
    mounts = {mount["Destination"]: mount["Name"] for mount in container.attrs["Mounts"] if mount["Type"] == "volume"}
    if path not in mounts:
        raise ClusterError(f"the container {container.name} has no Docker volume at {path}")
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
