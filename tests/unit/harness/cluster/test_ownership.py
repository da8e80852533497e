"""Owners of clusters: a process is identified by its id and its start time, so that a reused id is not mistaken for
the owner.
"""

import os
import subprocess
import sys
from pathlib import Path

from aftershock.harness.cluster import ownership


def test_this_process_lives() -> None:
    """The owner label of a running process names it."""
    assert ownership.is_alive(ownership.owner())


def test_a_reused_process_id_is_not_the_owner() -> None:
    """The same id with another start time belongs to another process."""
    assert not ownership.is_alive(f"{os.getpid()}:1")


def test_an_ended_process_is_dead() -> None:
    """Its id may be reused later."""
    code = "from aftershock.harness.cluster.ownership import owner; print(owner())"
    label = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert not ownership.is_alive(label)


def test_a_broken_label_has_no_owner() -> None:
    """Labels are untrusted strings: a malformed label means a dead owner, never an error."""
    assert not any(map(ownership.is_alive, ("", "x", ":", "12", "-1:2", "1:")))


def test_labels_name_run_owner_home_and_keep(tmp_path: Path) -> None:
    """All labels of the contract are set, and the host name, since a process id is valid on one host only."""
    made = ownership.labels_of("r1", tmp_path, keep=True)
    expected = {
        ownership.RUN: "r1",
        ownership.OWNER: ownership.owner(),
        ownership.HOME: str(tmp_path),
        ownership.KEEP: "true",
    }
    assert expected == {name: made[name] for name in expected}
    assert {ownership.HOST} == made.keys() - expected.keys()
