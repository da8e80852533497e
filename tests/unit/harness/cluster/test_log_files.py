"""Files of nodes, read by the same shell scripts from a folder in the place of a node's log directory."""

import subprocess
from functools import partial
from pathlib import Path

import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster.disks import read_checkpoints, read_metadata_log
from aftershock.harness.cluster.topology import LOG_DIR


def run(home: Path, script: str) -> str:
    """Run a node's script in this host's shell, with ``home`` in the place of the log directory."""
    command = ["sh", "-c", script.replace(LOG_DIR, str(home))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def checkpoint(home: Path, folder: str, content: str) -> None:
    (home / folder).mkdir(parents=True)
    (home / folder / "leader-epoch-checkpoint").write_text(content)


def test_the_segments_of_the_metadata_log_are_read_in_order(tmp_path: Path) -> None:
    """Byte by byte; indexes, snapshots and the logs of topics are left out."""
    parts = [bytes(range(256)) * 300, b"\n\0end\n", b""]
    (tmp_path / "__cluster_metadata-0").mkdir()
    for number, part in enumerate(parts):
        (tmp_path / "__cluster_metadata-0" / f"{7 * number:020}.log").write_bytes(part)
    (tmp_path / "__cluster_metadata-0" / "00000000000000000007-0000000001.checkpoint").write_bytes(b"snapshot")
    assert b"".join(parts) == read_metadata_log("k1", partial(run, tmp_path))


def test_the_checkpoints_of_all_log_directories(tmp_path: Path) -> None:
    """Of topics whose names contain dashes too; a replica that is being deleted has no partition number."""
    checkpoint(tmp_path, "data/orders-eu-11", "0\n2\n1 0\n5 10\n")
    checkpoint(tmp_path, "data/orders-0", "0\n0\n")
    checkpoint(tmp_path, "data/orders-3.0123456789abcdef-delete", "0\n1\n1 0\n")
    checkpoint(tmp_path, "disk/__consumer_offsets-4", "0\n1\n3 77\n")
    (tmp_path / "data" / "orders-1").mkdir()
    folders = (f"{tmp_path}/data", f"{tmp_path}/disk", f"{tmp_path}/missing")
    found = read_checkpoints("k1", partial(run, tmp_path), folders)
    assert {("orders-eu", 11): {1: 0, 5: 10}, ("orders", 0): {}, ("__consumer_offsets", 4): {3: 77}} == found


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    checkpoint(tmp_path, "data/orders-0", "0\n2\n1 0\n")
    with pytest.raises(ClusterError, match=r"checkpoint of k1 can't be read: .* says 2 entries and has 1"):
        read_checkpoints("k1", partial(run, tmp_path), (f"{tmp_path}/data",))


def test_output_that_docker_py_has_lost_is_an_error() -> None:
    for text in ("", "YWJj\n", "YWJjend\nYWJj\n"):
        with pytest.raises(ClusterError, match="in k1 is incomplete"):
            read_metadata_log("k1", lambda _, text=text: text)
    with pytest.raises(ClusterError, match="read only in part"):
        read_metadata_log("k1", lambda _: "YWJ\nend\n")
