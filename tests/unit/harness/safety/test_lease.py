"""The host's lease between real processes: which processes hold it together, which wait, and what is logged."""

import os
import re
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest

from aftershock.errors import LeaseError
from aftershock.harness.safety import lease
from aftershock.harness.safety.lease import Kind, Lock, host_lease, lease_kind
from aftershock.tests.unit.harness.child import Child

LEASE = """
import os, sys
from pathlib import Path
from aftershock.harness.safety.lease import host_lease
kind, holder, folder, user = sys.argv[1:]
os.cpu_count = lambda: 2
os.seteuid(int(user or os.geteuid()))
with host_lease(kind, holder, print, Path(folder)):
    print("inside")
    input()
print("left")
"""

Enter = Callable[..., Child]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "aftershock-host"


@pytest.fixture
def enter(folder: Path) -> Iterator[Enter]:
    """Starts a process that wants a lease on a host of two cores."""
    with ExitStack() as children:
        yield lambda kind, holder, user="": children.enter_context(Child(LEASE, kind, holder, str(folder), user))


@pytest.mark.parametrize(
    ("slos", "kind"),
    [
        (["lost == 0", "order == 0"], "integrity"),
        (["lost == 0", "produce.latency p95 < 250ms in fault"], "latency"),
        (["recovery < 5s after kill-1"], "latency"),
        ([], "latency"),
    ],
)
def test_only_counts_of_records_share_the_host(slos: list[str], kind: Kind) -> None:
    """A run with an SLO about time, or without any SLO, must be alone."""
    assert kind == lease_kind(slos)


@pytest.mark.parametrize("newcomer", ["latency", "integrity"])
def test_a_latency_run_is_alone(enter: Enter, newcomer: Kind) -> None:
    """No process joins it; a waiting one logs the holder once, and gets the lease afterwards."""
    first = enter("latency", "run demo")
    assert "inside" == first.line()
    second = enter(newcomer, "other")
    said = second.line()
    assert said.startswith(f"waiting until other runs no longer use this host: run demo (pid {first.pid}) since ")
    first.tell()
    assert ["left", "inside"] == [first.line(), second.line()]


def test_a_waiting_process_logs_the_holder_once(enter: Enter, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for four retries."""
    first = enter("latency", "first")
    looks: list[int] = []
    said: list[str] = []
    assert "inside" == first.line()

    def wait(_period_s: float) -> None:
        looks.append(len(said))
        if len(looks) == 4:
            first.tell()
            assert "left" == first.line()

    monkeypatch.setattr(
        lease, "time", SimpleNamespace(**{**vars(time), "sleep": wait})
    )  # Other threads may sleep as well.
    with host_lease("latency", "second", said.append, folder):
        assert [0, 1, 1, 1] == looks


def test_integrity_runs_share_by_cores(enter: Enter) -> None:
    """Two cores, two runs; the third waits for either, and a latency run for both."""
    first = enter("integrity", "one")
    assert "inside" == first.line()
    second = enter("integrity", "two")
    assert "inside" == second.line()
    third = enter("integrity", "three")
    said = third.line()
    assert "one (pid" in said
    assert "two (pid" in said
    second.tell()
    assert ["left", "inside"] == [second.line(), third.line()]


def test_a_waiting_latency_run_is_next(enter: Enter) -> None:
    """A core is free, yet an integrity run that comes later waits: else a stream of them would starve it."""
    inside = enter("integrity", "inside already")
    assert "inside" == inside.line()
    waiting = enter("latency", "waits")
    assert "host: inside already" in waiting.line()
    later = enter("integrity", "comes later")
    assert "host: inside already" in later.line()
    inside.tell()
    assert "inside" == waiting.line()
    assert later.silent()
    waiting.tell()
    assert "inside" == later.line()


@pytest.mark.parametrize("kind", ["latency", "integrity"])
def test_a_killed_holder_releases_the_lease(enter: Enter, kind: Kind) -> None:
    """SIGKILL leaves the holder's note behind, but no lock."""
    with enter(kind, "victim") as victim:
        assert "inside" == victim.line()
        victim.kill()
    assert "inside" == enter("latency", "heir").line()


def test_an_interrupt_ends_the_wait(enter: Enter) -> None:
    """The interrupted process blocks no other."""
    first = enter("latency", "first")
    assert "inside" == first.line()
    second = enter("latency", "second")
    assert "waiting" in second.line()
    assert -signal.SIGINT == second.interrupt()
    first.tell()
    assert "left" == first.line()
    assert "inside" == enter("latency", "third").line()


def test_the_lease_folder_is_writable_for_every_user(folder: Path) -> None:
    """Whatever the first user's umask: the folder has the permissions of /tmp, and all users can write its files."""
    before = os.umask(0o077)
    try:
        with host_lease("integrity", "first", print, folder):
            assert 0o1777 == stat.S_IMODE(folder.stat().st_mode)
            assert {0o666} == {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_waits_and_gets_the_lease(folder: Path, enter: Enter) -> None:
    """The lease of one user blocks another user, who gets it afterwards."""
    # Other users can't enter pytest's folders, but they can enter the temporary directory above.
    for parent in takewhile(lambda path: path != Path(tempfile.gettempdir()), folder.parents):
        parent.chmod(0o755)
    first = enter("latency", "root's")
    assert "inside" == first.line()
    second = enter("latency", "nobody's", "65534")
    assert "host: root's" in second.line()
    first.tell()
    assert "inside" == second.line()


def test_a_stale_or_unreadable_note_is_ignored(folder: Path, enter: Enter) -> None:
    """The note of a dead holder is not shown; a holder without a readable note still blocks."""
    folder.mkdir()
    (folder / "core-0").write_text('{"holder": "long dead", "pid": 1, "since_s": 0}')
    first = enter("latency", "alive")
    assert "inside" == first.line()
    (folder / "timing").write_text('{"holder": [')
    assert "waiting until other runs no longer use this host: an unknown process" == enter("latency", "2").line()


def test_escape_sequences_in_a_note_are_removed(folder: Path) -> None:
    """Any user can write a holder's name."""
    folder.mkdir()
    lock = Lock(folder / "timing")
    assert lock.take("\x1b[2Jgone\nnew line")
    assert lock.held_by().startswith("?[2Jgone?new line (pid ")


def plant_link(folder: Path) -> None:
    folder.mkdir()
    (folder / "turnstile").symlink_to(folder.parent / "victim")


def plant_hard_link(folder: Path) -> None:
    folder.mkdir()
    (folder / "turnstile").hardlink_to(folder.parent / "victim")


def plant_pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "turnstile")


def plant_linked_folder(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def plant_file(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize("plant", [plant_link, plant_hard_link, plant_pipe, plant_linked_folder, plant_file])
def test_a_planted_link_or_pipe_is_not_used(folder: Path, plant: Callable[[Path], None]) -> None:
    """A planted link would redirect the write: the message names the file, the target is unchanged, and the user's own
    folder serves.
    """
    victim = folder.parent / "victim"
    victim.write_text("precious")
    plant(folder)
    said: list[str] = []
    with host_lease("latency", "run", said.append, folder):
        own = folder.with_name(f"{folder.name}-{os.geteuid()}")
        assert "run" in Lock(own / "timing").held_by()
    assert 1 == len(said)
    assert re.search(f"can't use .*{folder}.*; remove ", said[0])
    assert "precious" == victim.read_text()
    assert [] == list(folder.parent.glob("elsewhere/*"))


def test_a_folder_of_the_user_that_is_planted_too_is_refused(folder: Path) -> None:
    own = folder.with_name(f"{folder.name}-{os.geteuid()}")
    for planted in (folder, own):
        planted.touch()
    with pytest.raises(LeaseError, match=f"can't use {own} .*; remove "), host_lease("latency", "run", print, folder):
        pass


def test_a_deleted_lock_file_is_created_again(folder: Path) -> None:
    """Cleaners of the temporary directory delete old files: the next try uses a new file, and the holder is
    unaffected.
    """
    with host_lease("integrity", "first", print, folder):
        for file in folder.iterdir():
            file.unlink()
        with host_lease("latency", "second", print, folder):
            assert (folder / "timing").exists()
