"""Damaged segments: the node is killed, a file gets another checksum, and the node recovers by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import BrokerId, LogDamage
from aftershock.harness.cluster.disks import damage_script
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

CORRUPT = "{id: bad, at: 1s, for: 6s, kind: corrupt_segment, broker: leader of orders/0, topic: orders}"
TRUNCATE = CORRUPT.replace("corrupt", "truncate")


@pytest.mark.parametrize(("fault", "action"), [(CORRUPT, "corrupt"), (TRUNCATE, "truncate")])
async def test_a_file_of_a_killed_node_is_damaged(stage: Stage, fault: str, action: Any) -> None:
    await stage.play(fault)
    assert [(BrokerId(1), LogDamage("orders", 0, "segment", action, 16))] == stage.world.called("damage_log")
    assert ["kill", "damage_log", "start"] == [
        verb for _, verb, _ in stage.world.calls if verb in ("kill", "damage_log", "start")
    ]
    assert stage.all_ok("bad")
    assert {"files", "reads"} == {witness.unit for witness in stage.journal.witnesses("bad")}
    assert () == stage.line("bad", "intended").targets.topics
    assert stage.world.healthy()


async def test_the_same_checksum_fails_the_witness(stage: Stage) -> None:
    stage.world.sound_disks = True
    await stage.play(CORRUPT)
    assert ["files"] == [witness.unit for witness in stage.journal.witnesses("bad") if not witness.ok]


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(CORRUPT)
    assert not any(witness.ok for witness in stage.journal.witnesses("bad"))


async def test_damage_to_the_only_replica_in_sync_permits_losses(stage: Stage) -> None:
    for broker in (2, 3):
        stage.world._lose(BrokerId(broker), "exited")
    await stage.play(CORRUPT)
    targets = stage.line("bad", "intended").targets
    assert (("orders",), True) == (targets.topics, "lost" in targets.roles["permits"])
    assert targets.roles["exposed"] == {"orders": [0]}


def test_logs_in_memory_are_refused() -> None:
    frame = FRAME.replace("name: test\n", "name: test\ncluster: {disks: {count: 1}}\n")
    with pytest.raises(PlanError, match="the brokers' logs are in memory"):
        load_plan(f"{frame}  - {CORRUPT}\n")


@pytest.mark.parametrize("action", ["corrupt", "truncate"])
def test_the_script_changes_only_the_bytes_that_it_shall(tmp_path: Path, action: Any) -> None:
    """Of the newest segment; an older one stays as it is."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    content = bytes(range(256)) * 8
    for name in ("00000000000000000000.log", "00000000000000000777.log"):
        (folder / name).write_bytes(content)
    script = damage_script(str(tmp_path), LogDamage("orders", 0, "segment", action, 16))
    before, after = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert before != after
    assert content == (folder / "00000000000000000000.log").read_bytes()
    damaged, at = (folder / "00000000000000000777.log").read_bytes(), len(content) * 9 // 10 - 16
    flipped = content[:at] + bytes(byte ^ 255 for byte in content[at : at + 16]) + content[at + 16 :]
    assert {"corrupt": flipped, "truncate": content[:-16]}[action] == damaged


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "0.log").write_bytes(b"x" * 100)
    script = damage_script(str(tmp_path), LogDamage("orders", 0, "segment", "truncate", 16))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (1, True) == (done.returncode, "has only 100 bytes" in done.stderr)
