"""Power cuts of nodes, as their disks see them: what was not yet flushed to the device is gone.

The kernel shuts the file system of a node down at once, without writing its journal or any dirty page (ioctl
``EXT4_IOC_SHUTDOWN`` with ``EXT4_GOING_FLAGS_NOLOGFLUSH``, the same number as XFS's ``XFS_IOC_GOINGDOWN``). The node's
processes are frozen before, so that no broker notices, and killed afterwards. A further container, ``<node>-cutter``,
mounts the volumes meanwhile: the engine unmounts a volume when its last container ends, and an unmount before the
shutdown would write everything. Once the cutter is removed, the next start of a node mounts its file system anew.
"""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from docker.errors import NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.harness.cluster.disks import DEVICE_ACCESS, mounted_volumes
from aftershock.harness.cluster.engine import docker_errors
from aftershock.harness.cluster.node import KafkaNode, node_name
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.safety.ownership import NODE

_LIFE_S = 120  # of a cutter whose creator has died
_EXIT_S = 10
_SHUT_DOWN = (
    'for (@ARGV) { open(my $directory, "<", $_) or die "$_: $!\\n"; my $flags = pack("L", 2); '
    'ioctl($directory, 0x8004587d, $flags) or die "$_: $!\\n" }'
)


def cut_power(nodes: Collection[KafkaNode]) -> list[KafkaNode]:
    """Cut the power of nodes at the same moment; return those whose file system is shut down, as the kernel reports.

    Raises ClusterError if a step fails; nodes may then be frozen, and `restore_power` starts them.
    """
    paths = {node: f"/cut/{node_name(node.container)}" for node in nodes}
    with _cutter(paths) as cutter, ThreadPoolExecutor(max_workers=len(paths)) as pool:
        list(pool.map(KafkaNode.pause, paths))
        _execute(cutter, "perl", "-e", _SHUT_DOWN, *paths.values())
        # device, mount point, type, options, ...
        mounts = [line.split() for line in _execute(cutter, "cat", "/proc/mounts").splitlines()]
        shut_down = {mount[1] for mount in mounts if "shutdown" in mount[3].split(",")}
        list(pool.map(_end, paths))
    return [node for node, path in paths.items() if path in shut_down]


def restore_power(nodes: Collection[KafkaNode]) -> None:
    """Start nodes on newly mounted file systems, also after an interrupted `cut_power`."""
    for node in nodes:
        _remove_cutter(node.container)
        if node.state() == "paused":
            _end(node)
    for node in nodes:
        node.restart()


def _end(node: KafkaNode) -> None:
    node.kill()
    with docker_errors(ClusterError, f"wait for the end of the node {node_name(node.container)}"):
        node.container.wait(timeout=_EXIT_S)


@contextmanager
def _cutter(paths: "dict[KafkaNode, str]") -> Iterator[Container]:
    containers = [node.container for node in paths]
    first = containers[0]
    tools = first.client.containers.get(f"{node_name(first)}-device").image.id
    _remove_cutter(first)
    with docker_errors(ClusterError, f"start a container that cuts the power of {node_name(first)}"):
        cutter = first.client.containers.run(
            tools,
            ["sleep", str(_LIFE_S)],
            name=_cutter_name(first),
            labels={key: value for key, value in first.labels.items() if key != NODE},
            volumes={
                mounted_volumes(node.container)[LOG_DIR]: {"bind": path, "mode": "rw"} for node, path in paths.items()
            },
            init=True,
            detach=True,
            **DEVICE_ACCESS,
        )
    try:
        yield cutter
    finally:
        _remove_cutter(first)


def _cutter_name(container: Container) -> str:
    return f"{node_name(container)}-cutter"


def _remove_cutter(container: Container) -> None:
    with docker_errors(ClusterError, f"remove {_cutter_name(container)}"), suppress(NotFound):
        container.client.containers.get(_cutter_name(container)).remove(force=True, v=True)


def _execute(cutter: Container, *command: str) -> str:
    with docker_errors(ClusterError, f"run a command in {cutter.name}"):
        code, output = cutter.exec_run(list(command))
    text = str(output.decode(errors="replace"))
    if code != 0:
        raise ClusterError(f"the power could not be cut in {cutter.name}: {text.strip()}")
    return text
