"""The journal: on disk before the fault is injected, with all that another process needs to heal."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.faults.runtime.record import Entry, Targets, Undo, Witness
from aftershock.harness.safety.journal import Journal, framed, open_faults, read_journal
from aftershock.harness.safety.rundir import RunClock

START = Undo("start", {"broker": 2})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.jsonl", RunClock.starting_now())) as journal:
        yield journal


def test_a_line_is_synced_before_record_returns(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole line is written before fsync: a crash right after loses nothing."""
    path, seen, fsync = tmp_path / "journal.jsonl", list[str](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), seen.append(path.read_text())))
    journal.record(Entry("kill-1", "kill", "intended", Targets(brokers=(2,)), START))
    (line,) = map(json.loads, seen[0].splitlines())
    assert ("kill-1", "intended", [2]) == (line["fault"], line["state"], line["targets"]["brokers"])
    assert {"verb": "start", "args": {"broker": 2}} == line["undo"]


def test_witness_and_reason_are_kept_when_there_are_any(journal: Journal) -> None:
    """Optional fields without a value are absent, not null."""
    journal.record(Entry("p", "pause", "injected", Targets(), START))
    witness = Witness("container is paused", 1, 1, "state", 1, ok=True)
    journal.record(Entry("p", "pause", "witnessed", Targets(), START, witness))
    journal.record(Entry("p", "pause", "failed", Targets(), START, why="it is gone"))
    assert [{"witness"}, {"why"}] == [{"witness", "why"} & line.keys() for line in journal.lines[1:]]
    assert not {"witness", "why"} & journal.lines[0].keys()


def test_open_faults_are_those_not_yet_healed(journal: Journal) -> None:
    """The status line shows the faults in force."""
    told = [("a", "intended"), ("b", "intended"), ("a", "injected"), ("a", "healed")]
    # Fault c had no target; fault d could not be healed.
    told += [("c", "failed"), ("d", "intended"), ("d", "healing"), ("d", "failed")]
    for fault, state in told:
        journal.record(Entry(fault, "kill", state, Targets(), START))  # type: ignore[arg-type]  # each is a State
    assert ["b", "d"] == journal.open_faults()


STEPS = [("a", "intended"), ("b", "intended"), ("a", "injected"), ("a", "healing"), ("a", "healed"), ("c", "intended")]
LINES = [
    {"t_us": n, "fault": fault, "kind": "kill", "state": state, "targets": {}, "undo": START.as_json(), "owner": "1:1"}
    for n, (fault, state) in enumerate(STEPS)
]
FRAMED = b"".join(map(framed, LINES))
PLAIN = "".join(json.dumps(line) + "\n" for line in LINES).encode()


def in_force(path: Path, content: bytes) -> list[str] | None:
    """Return the faults in force by a journal with this content; None if it can't be read."""
    path.write_bytes(content)
    try:
        return [line["fault"] for line in open_faults(read_journal(path))]
    except EvidenceError:
        return None


@pytest.mark.parametrize("content", [FRAMED, PLAIN], ids=["framed", "0.1.0"])
def test_a_journal_torn_at_any_byte_lists_the_faults_of_its_whole_lines(tmp_path: Path, content: bytes) -> None:
    """A step is performed only after its line is on disk, so what was torn has not happened."""
    steps = [[line["fault"] for line in open_faults(LINES[:n])] for n in range(len(LINES) + 1)]
    for size in range(len(content)):
        torn = content[:size]
        whole = torn.count(b"\n") + (content[size : size + 1] == b"\n")
        assert steps[whole] == in_force(tmp_path / "journal.jsonl", torn)


def test_a_flipped_byte_is_never_an_empty_journal(tmp_path: Path) -> None:
    """Three bits of every byte: damage is an error with its line, or it changes no fault that is in force."""
    errors = 0
    for position in range(len(FRAMED)):
        for bit in (0, 2, 5):
            damaged = bytearray(FRAMED)
            damaged[position] ^= 1 << bit
            found = in_force(tmp_path / "journal.jsonl", bytes(damaged))
            assert found in (None, ["b", "c"])
            errors += found is None
    assert errors > 0.99 * 3 * len(FRAMED)


def test_a_flipped_byte_of_an_old_journal_loses_no_fault(tmp_path: Path) -> None:
    """Lines of 0.1.0 have no checksum: at least as many faults are in force, so a heal is never left out."""
    for position in range(len(PLAIN)):
        damaged = bytearray(PLAIN)
        damaged[position] ^= 4
        found = in_force(tmp_path / "journal.jsonl", bytes(damaged))
        assert found is None or len(found) >= 2


@pytest.mark.parametrize("content", [b"nonsense", b"\0" * 300, FRAMED + b"\0" * 300, FRAMED[:-9] + b"\0" * 9])
def test_a_tail_that_is_no_beginning_of_a_line_is_damage(tmp_path: Path, content: bytes) -> None:
    """For example zeros after a power failure: whole lines may have been lost."""
    assert in_force(tmp_path / "journal.jsonl", content) is None


def test_damage_names_file_line_and_command(tmp_path: Path) -> None:
    """In the middle of the journal, where a torn line can't be."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(FRAMED.replace(b'"fault": "b"', b'"fault": "B"'))
    with pytest.raises(EvidenceError, match=rf"journal\.jsonl:2: damaged line .* sed -i 2d {path}"):
        read_journal(path)


def test_an_unreadable_journal_is_an_error(tmp_path: Path) -> None:
    """A missing journal, and a folder in its place."""
    with pytest.raises(EvidenceError, match="the fault journal is missing"):
        read_journal(tmp_path / "journal.jsonl")
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(EvidenceError, match=r"the fault journal can't be read \(Is a directory\)"):
        read_journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize("content", [FRAMED, PLAIN], ids=["framed", "0.1.0"])
def test_the_next_writer_mends_a_torn_journal(tmp_path: Path, content: bytes) -> None:
    """Torn within the last line, or before its newline: the new line does not join the old one."""
    path = tmp_path / "journal.jsonl"
    for cut in (1, 2, 30):
        path.write_bytes(content[:-cut])
        with closing(Journal(path, RunClock.starting_now())) as journal:
            journal.record(Entry("d", "kill", "intended", Targets(), START))
        assert [*("abc" if cut == 1 else "ab"), "d"] == sorted({line["fault"] for line in read_journal(path)})
        assert path.read_bytes().endswith(b"\n")


def test_a_short_write_is_completed(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write a part of a line, for example at a disk quota."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    journal.record(Entry("a", "kill", "intended", Targets(), START))
    assert ["a"] == [line["fault"] for line in read_journal(tmp_path / "journal.jsonl")]


def test_a_full_disk_leaves_the_journal_as_it_was(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line, then ENOSPC: an error, and the next line is whole."""
    journal.record(Entry("a", "kill", "intended", Targets(), START))
    write, calls = os.write, list[int]()

    def fill(file: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(OSError, match="No space left"):
            journal.record(Entry("b", "kill", "intended", Targets(), START))
    assert ["a"] == journal.open_faults()
    journal.record(Entry("c", "kill", "intended", Targets(), START))
    assert ["a", "c"] == [line["fault"] for line in read_journal(tmp_path / "journal.jsonl")]
