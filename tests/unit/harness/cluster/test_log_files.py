"""Files of nodes, read by the same shell scripts from a folder in the place of a node's log directory."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster import disks
from aftershock.harness.cluster.disks import read_checkpoints, read_metadata_log
from aftershock.harness.cluster.topology import LOG_DIR

NODE = cast("Any", SimpleNamespace(node=SimpleNamespace(name="k1")))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the log directory of a node that runs scripts in this host's shell."""

    def run(_node: object, script: str, _path: str) -> str:
        command = ["sh", "-c", script.replace(LOG_DIR, str(tmp_path))]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    monkeypatch.setattr(disks, "run_in_node", run)
    return tmp_path


def checkpoint(home: Path, folder: str, content: str) -> None:
    (home / folder).mkdir(parents=True)
    (home / folder / "leader-epoch-checkpoint").write_text(content)


def test_the_segments_of_the_metadata_log_are_read_in_order(home: Path) -> None:
    """Byte by byte; indexes, snapshots and the logs of topics are left out."""
    parts = [bytes(range(256)) * 300, b"\n\0end\n", b""]
    (home / "__cluster_metadata-0").mkdir()
    for number, part in enumerate(parts):
        (home / "__cluster_metadata-0" / f"{7 * number:020}.log").write_bytes(part)
    (home / "__cluster_metadata-0" / "00000000000000000007-0000000001.checkpoint").write_bytes(b"snapshot")
    assert b"".join(parts) == read_metadata_log(NODE)


def test_the_checkpoints_of_all_log_directories(home: Path) -> None:
    """Of topics whose names contain dashes too; a replica that is being deleted has no partition number."""
    checkpoint(home, "data/orders-eu-11", "0\n2\n1 0\n5 10\n")
    checkpoint(home, "data/orders-0", "0\n0\n")
    checkpoint(home, "data/orders-3.0123456789abcdef-delete", "0\n1\n1 0\n")
    checkpoint(home, "disk/__consumer_offsets-4", "0\n1\n3 77\n")
    (home / "data" / "orders-1").mkdir()
    found = read_checkpoints(NODE, (f"{home}/data", f"{home}/disk", f"{home}/missing"))
    assert {("orders-eu", 11): {1: 0, 5: 10}, ("orders", 0): {}, ("__consumer_offsets", 4): {3: 77}} == found


def test_a_damaged_checkpoint_is_an_error(home: Path) -> None:
    checkpoint(home, "data/orders-0", "0\n2\n1 0\n")
    with pytest.raises(ClusterError, match=r"checkpoint of k1 can't be read: .* says 2 entries and has 1"):
        read_checkpoints(NODE, (f"{home}/data",))


def test_output_that_docker_py_has_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "YWJj\n", "YWJjend\nYWJj\n"):
        monkeypatch.setattr(disks, "run_in_node", lambda *_, text=text: text)
        with pytest.raises(ClusterError, match="in k1 is incomplete"):
            read_metadata_log(NODE)
    monkeypatch.setattr(disks, "run_in_node", lambda *_: "YWJ\nend\n")
    with pytest.raises(ClusterError, match="read only in part"):
        read_metadata_log(NODE)
