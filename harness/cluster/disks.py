"""Where nodes keep their logs: a volume for each log directory, and small containers that change what is in one.

Rules. ``LOG_DIR`` is a volume on the engine's own disk. Disks of a bounded size are volumes in memory (tmpfs), which
the kernel drops when nobody has them mounted: Toxiproxy, which never restarts, mounts them too, so that they outlive a
broker. What must be done to a volume as root, or while its broker is down, a container of the broker's own image does.
"""

from collections.abc import Iterator, Mapping

import docker
from docker.errors import APIError, ContainerError
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, Node


def volumes_of(spec: ClusterSpec, node: Node, container: str) -> dict[str, str]:
    """Where each volume of a node is mounted in it, by the volume's name."""
    dirs = dict.fromkeys((LOG_DIR, *spec.log_dirs(node)))
    return {_volume(container, path): path for path in dirs}


def held_by_toxiproxy(spec: ClusterSpec, containers: Mapping[Node, str]) -> Iterator[str]:
    """The volumes that must be mounted for as long as the cluster stands."""
    for node, container in containers.items():
        yield from (name for name, path in volumes_of(spec, node, container).items() if path != LOG_DIR)


def create_volumes(
    client: docker.DockerClient, spec: ClusterSpec, containers: Mapping[Node, str], labels: Mapping[str, str]
) -> None:
    """All the volumes of a cluster. EngineError when the engine refused."""
    for node, container in containers.items():
        for name, path in volumes_of(spec, node, container).items():
            try:
                client.volumes.create(name, labels=dict(labels), driver_opts=_options(spec, path))
            except APIError as error:
                raise EngineError(f"can't create volume {name}: {error.explanation or error}") from error


def run_beside(container: Container, path: str, script: str, *, root: bool) -> str:
    """What a shell script prints that is run on the volume which a node has at ``path``, whether the node runs or not.

    As root, or as the user that the node runs as, without more rights than it has. ClusterError if it failed.
    """
    mounts = {mount["Destination"]: mount["Name"] for mount in container.attrs["Mounts"] if mount["Type"] == "volume"}
    if path not in mounts:
        raise ClusterError(f"{container.name} has no volume at {path}")
    labels = {key: value for key, value in container.labels.items() if key != NODE}
    rights = {"user": "0"} if root else {"cap_drop": ["DAC_OVERRIDE"]}
    try:
        output: bytes = container.client.containers.run(
            container.image.id,
            ["-c", script],
            entrypoint="sh",
            volumes={mounts[path]: {"bind": path, "mode": "rw"}},
            labels=labels,
            network_disabled=True,
            remove=True,
            **rights,
        )
    except (APIError, ContainerError) as error:
        raise ClusterError(f"can't change {path} of {container.name}: {error}") from error
    return output.decode()


def _volume(container: str, path: str) -> str:
    return container if path == LOG_DIR else f"{container}-{path.rpartition('/')[2]}"


def _options(spec: ClusterSpec, path: str) -> dict[str, str]:
    if path == LOG_DIR or spec.disks is None:
        return {}
    return {"type": "tmpfs", "device": "tmpfs", "o": f"size={spec.disks.size}"}
