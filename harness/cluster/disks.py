"""Docker volumes for the log directories of a cluster's nodes, and short-lived containers that change their content.

The log directory ``LOG_DIR`` of a node is a volume on the Docker engine's own disk. A log directory of limited size is
a volume in memory (tmpfs). The kernel drops a tmpfs volume that no container mounts; therefore the Toxiproxy container,
which never restarts, mounts all tmpfs volumes, and a broker's records survive a restart of the broker.

In a cluster with block devices, ``LOG_DIR`` is an ext4 file system on a loop device. The device's file is on a further
volume, ``<node>-image``. The container ``<node>-device`` holds the device open; once that container and the node are
removed, the kernel detaches the device.

A power cut loses what was not yet flushed to the device. The kernel shuts the file system of a node down at once,
without writing its journal or any dirty page (ioctl ``EXT4_IOC_SHUTDOWN`` with ``EXT4_GOING_FLAGS_NOLOGFLUSH``, the
same number as XFS's ``XFS_IOC_GOINGDOWN``). The node's processes are frozen before, so that no broker notices, and
killed afterwards. A further container, ``<node>-cutter``, mounts the volumes meanwhile: the engine unmounts a volume
when its last container ends, and an unmount before the shutdown would write everything. Once the cutter is removed, the
next start of a node mounts its file system anew.
"""

import base64
import json
import re
import time
from binascii import Error as Base64Error
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import docker
from docker.errors import APIError, ContainerError, NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.targets.values import DiskDefects, LogDamage, TopicPartition
from aftershock.harness.cluster.engine import docker_errors, run_to_end
from aftershock.harness.cluster.node import KafkaNode, node_name
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, Node
from aftershock.harness.kafka.leader_history import parse_checkpoint
from aftershock.harness.safety.ownership import NODE

_IMAGE_DIR = "/image"
_DEVICE = re.compile(r"^device (/dev/loop\d+)$", re.MULTILINE)
_POLL_S = 0.05
_ATTEMPTS_MAX = 5
_KAFKA_UID = 1000  # of Kafka's user, in the official image too
# `losetup --detach` of an open device takes effect when nobody has it open any more (loop(4), LO_FLAGS_AUTOCLEAR).
# Kafka refuses the folder `lost+found` in a log directory
_MAKE_DEVICE = f"""set -e
folder={_IMAGE_DIR}
truncate --size "$SIZE" $folder/disk
mke2fs -q -t ext4 -m 0 -E root_owner={_KAFKA_UID}:{_KAFKA_UID},lazy_itable_init=0,lazy_journal_init=0 $folder/disk
debugfs -w -R 'rmdir lost+found' $folder/disk
if [ -n "$LAYER" ]; then
  mkdir /layer
  slowfs $folder /layer &
  until [ -e /layer/disk ]; do kill -0 $!; sleep 0.05; done
  folder=/layer
fi
device=$(losetup --find --show $folder/disk)
exec 3<"$device"
losetup --detach "$device"
echo "device $device"
exec sleep infinity
"""
# block devices of major number 7 are loop devices; the character devices are /dev/loop-control and /dev/fuse
DEVICE_ACCESS: Mapping[str, Any] = {
    "user": "0",
    "cap_add": ["SYS_ADMIN"],
    "device_cgroup_rules": ["b 7:* rmw", "c 10:237 rmw", "c 10:229 rmw"],
    "network_mode": "none",
}


def volumes_of(spec: ClusterSpec, node: Node, container: str) -> dict[str, str]:
    """Map the name of each Docker volume of a node to the volume's mount path."""
    disks = {f"{container}-{path.rpartition('/')[2]}": path for path in spec.log_dirs(node) if path != LOG_DIR}
    return {container: LOG_DIR, **disks}


def create_volumes(
    client: docker.DockerClient,
    spec: ClusterSpec,
    node: Node,
    container: str,
    labels: Mapping[str, str],
    tools: str,
) -> None:
    """Create the Docker volumes of a node; raise EngineError if the Docker engine refuses a volume.

    ``tools`` is an image with the tools that make a block device.
    """
    for name, path in volumes_of(spec, node, container).items():
        options = {}
        if path != LOG_DIR and spec.disks is not None:
            options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={spec.disks.size}"}
        elif spec.block_device is not None:
            device = _make_device(client, spec.block_device, container, labels, tools)
            mount_options = "noatime,sync" if spec.block_device.sync else "noatime"
            options = {"type": "ext4", "device": device, "o": mount_options}
        with docker_errors(EngineError, f"create the Docker volume {name}"):
            client.volumes.create(name, labels=dict(labels), driver_opts=options)


def _make_device(
    client: docker.DockerClient, block_device: BlockDevice, container: str, labels: Mapping[str, str], tools: str
) -> str:
    """Make an ext4 file system on a new loop device; return the device's path. Raises EngineError on failure."""
    volume, holder = f"{container}-image", f"{container}-device"
    with docker_errors(EngineError, f"make a block device for {container}"):
        client.volumes.create(volume, labels=dict(labels))
        started = client.containers.run(
            tools,
            ["-c", _MAKE_DEVICE],
            entrypoint="sh",
            name=holder,
            labels=dict(labels),
            environment={"SIZE": block_device.size, "LAYER": "yes" if block_device.layer else ""},
            volumes={volume: {"bind": _IMAGE_DIR, "mode": "rw"}, "/dev": {"bind": "/dev", "mode": "rw"}},
            detach=True,
            **DEVICE_ACCESS,
        )
        while True:
            started.reload()
            running = started.status == "running"  # read before the output, which is then complete
            output = started.logs().decode(errors="replace")
            if match := _DEVICE.search(output):
                return match[1]
            if not running:
                break
            time.sleep(_POLL_S)
    raise EngineError(
        f"can't make a block device for {container}: {output.strip() or 'no output'}; this needs loop devices "
        "(`modprobe loop`) and an engine that is not rootless"
    )


def block_device_of(container: Container) -> BlockDevice | None:
    """Return the block device of a node's log directory, as the engine knows it; None if the node has none."""
    try:
        volume = container.client.volumes.get(mounted_volumes(container)[LOG_DIR])
    except (KeyError, NotFound):
        return None
    options = volume.attrs.get("Options") or {}
    return BlockDevice(sync="sync" in options["o"].split(",")) if options.get("type") == "ext4" else None


def set_defects(container: Container, defects: DiskDefects) -> None:
    """Make the disk of a node slow or faulty, or sound again; the layer notices within 50 ms.

    Raises ClusterError if the node's disk has no layer.
    """
    text = json.dumps(
        {
            "delay_us": dict.fromkeys(defects.operations, defects.delay_ms * 1000),
            "jitter_us": dict.fromkeys(defects.operations, defects.jitter_ms * 1000),
            "error": dict.fromkeys(defects.operations, defects.error_share),
        }
    )
    # a read of the counters, which the layer writes later, shows that it runs
    script = f"printf %s '{text}' > {_IMAGE_DIR}/control.new && mv {_IMAGE_DIR}/control.new {_IMAGE_DIR}/control"
    _in_holder(container, f"{script} && cat {_IMAGE_DIR}/counters")


def damage_script(log_dir: str, damage: LogDamage) -> str:
    """Return a shell script that damages a file and prints its checksum before and after.

    The script ends with status 1 if the file has less bytes than are to be damaged.
    """
    extension = {"segment": "log", "index": "index"}[damage.file]
    actions = {
        "corrupt": (
            "at=$((size * 9 / 10 - BYTES)); last=$((at + BYTES)); while [ $at -lt $last ]; do "
            'byte=$(od -An -tu1 -j $at -N1 "$file" | tr -d " "); printf "\\\\$(printf %03o $((byte ^ 255)))" | '
            'dd of="$file" bs=1 seek=$at conv=notrunc 2>/dev/null; at=$((at + 1)); done'
        ),
        "truncate": 'dd if=/dev/null of="$file" bs=1 seek=$((size - BYTES)) 2>/dev/null',
    }
    return f"""set -e
file=$(ls {log_dir}/{damage.topic}-{damage.partition}/*.{extension} | sort | tail -n 1)
size=$(wc -c < "$file")
[ "$size" -ge {10 * damage.bytes} ] || {{ echo "$file has only $size bytes" >&2; exit 1; }}
cksum < "$file"
{actions[damage.action].replace("BYTES", str(damage.bytes))}
cksum < "$file"
"""


def disk_counts(container: Container) -> dict[str, dict[str, int]]:
    """Return the layer's counters (``operations``, ``delayed``, ``errors``) of each operation since the launch."""
    return dict(json.loads(_in_holder(container, f"cat {_IMAGE_DIR}/counters")))


def _in_holder(container: Container, script: str) -> str:
    holder = f"{node_name(container)}-device"
    with docker_errors(ClusterError, f"use the disk layer of {holder}"):
        try:
            code, output = container.client.containers.get(holder).exec_run(["sh", "-c", script])
        except NotFound:
            code, output = 1, b"the node has no block device"
    if code != 0:
        reason = output.decode(errors="replace").strip()
        raise ClusterError(
            f"the disk of {node_name(container)} can't be made slow or faulty: {reason}; launch the cluster with "
            "`cluster: {block_device: {layer: true}}`"
        )
    return str(output.decode())


def mounted_volumes(container: Container) -> dict[str, str]:
    """Map each mount path of a container to the Docker volume that is mounted there."""
    return {mount["Destination"]: mount["Name"] for mount in container.attrs["Mounts"] if mount["Type"] == "volume"}


def run_on_volume(container: Container, path: str, script: str, *, root: bool) -> str:
    """Run a shell script in a new container with the node's image and its volume at ``path``; return the output.

    The script runs as ``root`` or as the user of the node's container, and also if the node is stopped. Raises
    ClusterError if the script's exit status is not 0.
    """
    mounts = mounted_volumes(container)
    if path not in mounts:
        raise ClusterError(f"the container {container.name} has no Docker volume at {path}")
    labels = {key: value for key, value in container.labels.items() if key != NODE}
    privileges = {"user": "0"} if root else {"cap_drop": ["DAC_OVERRIDE"]}
    try:
        output = run_to_end(
            container.client,
            container.image.id,
            ["-c", script],
            entrypoint="sh",
            volumes={mounts[path]: {"bind": path, "mode": "rw"}},
            labels=labels,
            network_disabled=True,
            **privileges,
        )
    except (APIError, ContainerError) as error:
        raise ClusterError(f"can't change {path} of {container.name}: {error}") from error
    return output.decode()


def run_in_node(node: KafkaNode, script: str, path: str) -> str:
    """Run a script in the node's container, or in a new container with its volume at ``path`` if the node is stopped.

    Returns its output. A script without output runs again, because docker-py can lose output (docker-py issues 2042 and
    3332). Raises ClusterError if the script failed.
    """
    problem = ""
    for _ in range(_ATTEMPTS_MAX):
        if node.state() != "running":
            return run_on_volume(node.container, path, script, root=False)
        try:
            code, output = node.container.exec_run(["sh", "-c", script])
        except APIError as error:
            problem = f"can't run `{script}` in {node.container.name}: {error.explanation or error}"
            continue  # the node may just have ended
        if output and not code:
            return str(output.decode())
        problem = f"`{script}` ended in {node.container.name} with status {code}: {output.decode().strip()}"
    raise ClusterError(problem)


Run = Callable[[str], str]
"""Function that runs a shell script beside a node's log directories, and returns its output."""

_END = "end"  # docker-py can lose output (run_in_node), which then has no last line
_METADATA = f"cat {LOG_DIR}/__cluster_metadata-0/*.log | base64; echo {_END}"
# grep prints each line after the name of its file, for any number of files in one process
_CHECKPOINTS = f"find DIRS -mindepth 2 -maxdepth 2 -name leader-epoch-checkpoint -exec grep -H '' {{}} + ; echo {_END}"
_LINE = re.compile(r"/(?P<topic>[^/:]+)-(?P<partition>\d+)/leader-epoch-checkpoint:(?P<content>.*)")


def read_metadata_log(node: str, run: Run) -> bytes:
    """Return the segments of the controllers' log as a node has it, in order; raise ClusterError on failure."""
    text = _whole_output(node, run, _METADATA)
    try:
        return base64.b64decode(text)
    except Base64Error as error:
        raise ClusterError(f"the metadata log of {node} was read only in part ({error})") from error


def read_checkpoints(node: str, run: Run, log_dirs: tuple[str, ...]) -> dict[TopicPartition, dict[int, int]]:
    """Return the start offset of each leader epoch of each replica on a node; raise ClusterError on failure."""
    files: dict[TopicPartition, list[str]] = defaultdict(list)
    for line in _whole_output(node, run, _CHECKPOINTS.replace("DIRS", " ".join(log_dirs))).splitlines():
        if match := _LINE.search(line):
            files[match["topic"], int(match["partition"])].append(match["content"])
    try:
        return {where: parse_checkpoint(lines) for where, lines in files.items()}
    except ValueError as error:
        raise ClusterError(f"a leader epoch checkpoint of {node} can't be read: {error}") from error


def _whole_output(node: str, run: Run, script: str) -> str:
    text, end, rest = run(script).rpartition(f"{_END}\n")
    if not end or rest:
        raise ClusterError(f"the output of `{script}` in {node} is incomplete")
    return text


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
