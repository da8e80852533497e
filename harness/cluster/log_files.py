"""Files in the log directories of a launched cluster's nodes that are evidence about leaders, read after the load."""

import base64
import re
from binascii import Error as Base64Error
from collections import defaultdict

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import TopicPartition
from aftershock.harness.cluster.disks import run_in_node
from aftershock.harness.cluster.node import KafkaNode
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.kafka.leader_history import parse_checkpoint

_END = "end"  # docker-py can lose output (run_in_node), which then has no last line
_METADATA = f"cat {LOG_DIR}/__cluster_metadata-0/*.log | base64; echo {_END}"
# grep prints each line after the name of its file, for any number of files in one process
_CHECKPOINTS = f"find DIRS -mindepth 2 -maxdepth 2 -name leader-epoch-checkpoint -exec grep -H '' {{}} + ; echo {_END}"
_LINE = re.compile(r"/(?P<topic>[^/:]+)-(?P<partition>\d+)/leader-epoch-checkpoint:(?P<content>.*)")


def read_metadata_log(node: KafkaNode) -> bytes:
    """Return the segments of the controllers' log as the node has it, in order; raise ClusterError on failure."""
    text = _whole_output(node, _METADATA)
    try:
        return base64.b64decode(text)
    except Base64Error as error:
        raise ClusterError(f"the metadata log of {node.node.name} was read only in part ({error})") from error


def read_checkpoints(node: KafkaNode, log_dirs: tuple[str, ...]) -> dict[TopicPartition, dict[int, int]]:
    """Return the start offset of each leader epoch of each replica on a node; raise ClusterError on failure."""
    files: dict[TopicPartition, list[str]] = defaultdict(list)
    for line in _whole_output(node, _CHECKPOINTS.replace("DIRS", " ".join(log_dirs))).splitlines():
        if match := _LINE.search(line):
            files[match["topic"], int(match["partition"])].append(match["content"])
    try:
        return {where: parse_checkpoint(lines) for where, lines in files.items()}
    except ValueError as error:
        raise ClusterError(f"a leader epoch checkpoint of {node.node.name} can't be read: {error}") from error


def _whole_output(node: KafkaNode, script: str) -> str:
    text, end, rest = run_in_node(node, script, LOG_DIR).rpartition(f"{_END}\n")
    if not end or rest:
        raise ClusterError(f"the output of `{script}` in {node.node.name} is incomplete")
    return text
