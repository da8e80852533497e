"""The file by which an agent stops a JVM, and the JVM's log of its stops."""

import struct
import subprocess
from pathlib import Path

import pytest

from aftershock.faults.targets.values import GcPauses
from aftershock.harness.cluster import preloads

LINE = '[1.8s] Safepoint "{}", Time since last: 541 ns, Reaching safepoint: 4997 ns, At safepoint: {} ns, Total: 1 ns'
LOG = [LINE.format("Cleanup", 2464), LINE.format("GenCollectFull", 278435595), LINE.format("G1CollectFull", 450705491)]


def test_the_script_writes_the_four_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloads, "GC_DIR", str(tmp_path))
    fields = tmp_path / "fields"
    fields.write_bytes(struct.pack("<4q", 9, 9, 9, 9))
    subprocess.run(["sh", "-c", preloads.gc_script(GcPauses(2_000, 800, 1_200, 7))], check=True)
    assert (2_000_000_000, 800_000_000, 1_200_000_000, 7) == struct.unpack("<4q", fields.read_bytes())
    subprocess.run(["sh", "-c", preloads.gc_script(GcPauses())], check=True)
    assert 0 == struct.unpack("<4q", fields.read_bytes())[0]


def test_stops_are_read_from_the_log_of_safepoints(tmp_path: Path) -> None:
    """Other safepoints are no collections."""
    log = tmp_path / "log"
    log.write_text("\n".join(LOG), encoding="utf-8")
    command = preloads.READ_STOPS.replace(preloads.STOPS_LOG, str(log))
    output = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout
    assert [278.435595, 450.705491] == preloads.stops_ms(output)
    assert [] == preloads.stops_ms("end\n")
