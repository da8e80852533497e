"""Faults in force on a cluster: read from the journal, with time left and holder."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.faults.targets.values import Toxic
from aftershock.harness.adhoc.kept import foreign_changes, live_faults
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Journal, read_journal
from aftershock.harness.safety.rundir import RunClock

DEAD = "1:1"
PAUSED, SLOW, SHUT = (
    Undo("resume", {"broker": 2}),
    Undo("remove_toxics", {"toxics": [["client_a-k1", "slow:client_a-k1:upstream"]]}),
    Undo("enable_proxies", {"proxies": ["client_b-k2"]}),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three faults in force since 10 s: a planned fault, a fault by hand, and a fault without duration; a fourth is
    healed.
    """
    (tmp_path / "timeline.json").write_text(json.dumps({"steps": [{"id": "p", "for_ms": 8_000}]}))
    event = {
        "t_us": 1,
        "event": "injected_by_hand",
        "fault": {"id": "slow", "kind": "latency", "for": "20s"},
        "topics": [],
    }
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    with closing(Journal(tmp_path / "journal.jsonl", RunClock(0))) as journal:
        for fault, kind, state, undo, targets in (
            ("gone", "kill", "intended", PAUSED, Targets(brokers=(1,))),
            ("gone", "kill", "healed", PAUSED, Targets(brokers=(1,))),
            ("p", "pause", "intended", PAUSED, Targets(brokers=(2,))),
            ("slow", "latency", "intended", SLOW, Targets(links=("client_a-k1",))),
            ("shut", "refuse", "intended", SHUT, Targets(links=("client_b-k2",))),
        ):
            journal.record(Entry(fault, kind, state, targets, undo))  # type: ignore[arg-type]
    lines = [{**line, "t_us": 10_000_000} for line in read_journal(tmp_path / "journal.jsonl")]
    lines[-1]["owner"] = DEAD
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_open_faults_have_their_remaining_time(home: Path) -> None:
    """The duration of the plan, of the injection, and None; never negative; the healed fault is absent."""
    assert [("p", 3_000), ("slow", 15_000), ("shut", None)] == [
        (f.id, f.left_ms) for f in live_faults(home, 15_000_000)
    ]
    assert [0, 0, None] == [fault.left_ms for fault in live_faults(home, 99_000_000)]


def test_the_holder_of_a_fault(home: Path) -> None:
    """This process holds its own fault; a fault of a dead injector is orphaned."""
    paused, _, shut = live_faults(home, 15_000_000)
    pid = ownership.owner().partition(":")[0]
    assert f"p: pause on node 2; held by process {pid}, 3 s left" == paused.describe()
    assert "shut: refuse on client_b-k2; orphaned: its injector, process 1, is dead" == shut.describe()
    told = shut.to_json("r1")
    assert ({"pid": 1, "alive": False}, "aftershock heal --run r1") == (told["held_by"], told["heal"])


def test_foreign_toxics_and_disabled_proxies_are_reported(home: Path) -> None:
    """A toxic or disabled proxy that an open fault will undo is ours; any other is reported."""
    lines = [line for line in read_journal(home / "journal.jsonl") if line["fault"] != "gone"]
    mine = Toxic("slow:client_a-k1:upstream", "latency", "upstream")
    toxics = {"client_a-k1": (mine, Toxic("mystery", "timeout", "downstream")), "client_c-k3": (mine,)}
    assert [
        "not by Aftershock: toxic mystery (timeout, downstream) on proxy client_a-k1",
        "not by Aftershock: toxic slow:client_a-k1:upstream (latency, upstream) on proxy client_c-k3",
        "not by Aftershock: proxy client_c-k1 is disabled",
    ] == list(foreign_changes(lines, toxics, {"client_b-k2", "client_c-k1"}))


def test_a_home_without_journal_is_an_error(tmp_path: Path) -> None:
    """Each cluster has a journal from its launch on, so faults may be in force that nobody knows of."""
    with pytest.raises(EvidenceError, match=r"journal\.jsonl: the fault journal is missing"):
        live_faults(tmp_path, 0)
