"""Hypothesis: whatever a crash or a bad disk does to a run's journal, `aftershock heal` never takes a fault for healed.

Method: journals of real runs, as version 0.1.0 wrote them and with checksums, are truncated at every byte, and one bit
of every byte of the checksummed ones is flipped. The product reads the rest. It must list every fault that the lines
before the damage leave in force (by an independent count), or refuse the journal with a one-line error that names the
file. At three truncations of each line the product also appends the next line, and must list that fault as well.
"""

import json
import random
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

from aftershock.errors import EvidenceError
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.harness.safety.journal import Journal, framed, open_faults, read_journal
from aftershock.harness.safety.rundir import RunClock
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

Reader = Callable[[Path], set[str]]


def faults_in_force(path: Path) -> set[str]:
    """Return the faults that the product would heal."""
    return {line["fault"] for line in open_faults(read_journal(path))}


@cache
def journals() -> tuple[tuple[list[bytes], bool], ...]:
    """Return the lines of each journal, and whether they have checksums."""
    result = []
    for path in sorted((ROOT / "tests" / "data" / "evidence").glob("*/journal.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        result += [(lines, False), ([framed(json.loads(line)) for line in lines], True)]
    return tuple(result)


@cache
def cases() -> list[tuple[int, int]]:
    return [(number, line) for number, (lines, _) in enumerate(journals()) for line in range(len(lines))]


def expected(lines: list[bytes]) -> set[str]:
    """Return the faults in force after these lines."""
    in_force = set[str]()
    for line in map(json.loads, lines):
        if line["state"] == "intended":
            in_force.add(line["fault"])
        elif line["state"] == "healed":
            in_force.discard(line["fault"])
    return in_force


def survey(number: int, at: int, path: Path, source: random.Random, read: Reader = faults_in_force) -> Outcome:
    """Damage each byte of one line of a journal, and compare what the product lists with what is in force."""
    lines, checksummed = journals()[number]
    before, line = b"".join(lines[:at]), lines[at]
    bad, refused = list[str](), 0

    def compare(content: bytes, want: set[str], what: str) -> None:
        nonlocal refused
        path.write_bytes(content)
        try:
            missed = want - read(path)
        except EvidenceError as error:
            refused += 1
            missed = set() if str(path) in str(error) and "\n" not in str(error) else {"its name in the error"}
        if missed:
            bad.append(f"journal {number}, line {at + 1}, {what}: misses {', '.join(sorted(missed))}")

    for size in range(len(line)):
        # the last byte is the newline: without it, the line is whole
        want = expected(lines[: at + (size == len(line) - 1)])
        compare(before + line[:size], want, f"truncated at byte {size}")
        if checksummed:
            end = source.randint(at + 1, len(lines))  # most faults are healed in the whole journal
            damaged = bytearray(b"".join(lines[:end]))
            damaged[len(before) + size] ^= 1 << source.randrange(8)
            compare(bytes(damaged), expected(lines[:end]), f"bit of byte {size} flipped, {end} lines")
    for size in source.sample(range(len(line)), 3):
        path.write_bytes(before + line[:size])
        with closing(Journal(path, RunClock.starting_now())) as journal:
            journal.record(Entry("next", "kill", "intended", Targets(), Undo("start", {"broker": 2})))
        want = expected(lines[: at + (size == len(line) - 1)]) | {"next"}
        compare(path.read_bytes(), want, f"continued after a truncation at byte {size}")
    count = len(line) * (1 + checksummed) + 3
    return Outcome(bad, count, counts={"refused with a named error": refused})


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    number, at = cases()[seed % len(cases())]
    return survey(number, at, scratch / "journal.jsonl", source)


EXPERIMENT = Experiment(
    name="e4a_torn_journal",
    title="Journal truncated and damaged at every byte",
    figure="faults in force that the product would not heal, and errors without the file's name",
    aim="0",
    trials=len(cases()),
    trial=trial,
    batch=100,
    wall_s=120.0,
)
