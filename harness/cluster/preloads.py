"""Libraries of ours in a node's processes, each with a file of integers by which it is controlled at run time.

A library and its file come from the image with tools, and are on a volume of the node, ``<node>-<name of the folder>``.
"""

from collections.abc import Mapping

import docker

from aftershock.errors import EngineError
from aftershock.harness.cluster.engine import docker_errors, run_to_end


def preload_volume(container: str, folder: str) -> str:
    """Return the name of the volume of a node's container that is mounted at ``folder``."""
    return f"{container}-{folder.rpartition('/')[2]}"


def create_preload(
    client: docker.DockerClient, container: str, folder: str, labels: Mapping[str, str], tools: str
) -> None:
    """Create the volume of a library; the engine fills a new volume from the image."""
    volume = preload_volume(container, folder)
    with docker_errors(EngineError, f"create the Docker volume {volume}"):
        client.volumes.create(volume, labels=dict(labels))
        mount = {volume: {"bind": folder, "mode": "rw"}}
        run_to_end(client, tools, ["true"], volumes=mount, labels=dict(labels), network_disabled=True)


def write_integer(file: str, index: int, value: int) -> str:
    """Return a shell command that writes the 64-bit integer at ``index`` of a file at once."""
    octal = "".join(f"\\{byte:03o}" for byte in value.to_bytes(8, "little", signed=True))
    return f"printf '{octal}' | dd of={file} bs=8 count=1 conv=notrunc seek={index} 2>/dev/null"
