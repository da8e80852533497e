"""Injection by hand on a cluster in memory: run to its end, logged, and healed whenever it is stopped."""

import asyncio
import io
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aftershock.errors import FaultError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.adhoc.inject import Outcome, SharedJournal, carry_out, preview, topics_of
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.journal import open_faults, read_journal
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock

LASTING: list[dict[str, Any]] = [
    {"kind": "latency", "link": "client(a) <-> broker", "delay": "50ms"},
    {"kind": "cut", "rack": "b"},
    {"kind": "refuse", "link": "client(a) -> broker"},
    {"kind": "kill", "broker": "leader of orders/0"},
    {"kind": "stop", "broker": "any broker except controller"},
    {"kind": "pause", "broker": "2"},
    {"kind": "reassign", "topic": "orders", "rotate": 1},
]
AT_ONCE: list[dict[str, Any]] = [
    {"kind": "restart", "broker": "1"},
    {"kind": "reassign", "topic": "orders", "rotate": 1},
]


def kind_of(words: dict[str, Any]) -> str:
    return str(words["kind"])


@dataclass
class Terminal:
    """A kept cluster in memory, its run directory on disk, and the output on the terminal."""

    home: RunDir
    clock: JumpingClock = field(default_factory=JumpingClock)
    said: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.world = FakeWorld(self.clock)
        self.journal = SharedJournal(self.home, self.clock, self.progress.log)  # type: ignore[arg-type]

    @property
    def progress(self) -> Progress:
        return Progress(Console(file=self.said, width=200))

    def inject(self, words: dict[str, Any], lasting: str | None = "6s") -> Outcome:
        lasts = {} if lasting is None else {"for": lasting}
        fault = KINDS[words["kind"]].model_validate({"id": f"{words['kind']}-1", "at": "0s", **lasts, **words})
        return carry_out(fault, 7, self.world, self.journal, self.clock, self.progress)

    def when(self, verb: str, then: Callable[[], None]) -> None:
        """Call ``then`` when the cluster is next asked for this."""
        asked = getattr(self.world, verb)

        async def first(*args: Any) -> Any:
            setattr(self.world, verb, asked)
            then()
            return await asked(*args)

        setattr(self.world, verb, first)

    def states(self) -> list[str]:
        states = [line["state"] for line in read_journal(self.home.path / "journal.jsonl")]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(RunDir.create(tmp_path, "cluster", 0, ""))
    with closing(terminal.journal):
        yield terminal


@pytest.mark.parametrize("words", LASTING, ids=kind_of)
def test_every_kind_is_witnessed_and_healed(terminal: Terminal, words: dict[str, Any]) -> None:
    """Exit 0, all states in the journal on disk, the cluster restored, the witness logged."""
    outcome = terminal.inject(words)
    assert 0 == outcome.exit_code
    assert outcome.text.endswith("s: witnessed, healed")
    assert ["intended", "injected", "witnessed", "healing", "healed"] == terminal.states()
    assert terminal.world.healthy()
    assert f"{words['kind']}-1: seen: " in terminal.said.getvalue()


@pytest.mark.parametrize("words", AT_ONCE, ids=kind_of)
def test_an_action_without_for(terminal: Terminal, words: dict[str, Any]) -> None:
    """Done when it is done: exit 0, and nothing open."""
    assert 0 == terminal.inject(words, lasting=None).exit_code
    assert [] == open_faults(read_journal(terminal.home.path / "journal.jsonl"))


def test_not_witnessed(terminal: Terminal) -> None:
    """Another process resumes the node: exit 2, with the witness that failed."""
    pause = terminal.world.pause

    async def thawed(broker: BrokerId) -> None:
        await pause(broker)
        await terminal.world.resume(broker)

    terminal.world.pause = thawed  # type: ignore[method-assign]
    outcome = terminal.inject({"kind": "pause", "broker": "2"})
    assert 2 == outcome.exit_code
    assert "NOT witnessed (node 2's container, read back, is paused: 0 of 1 reads)" in outcome.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped(terminal: Terminal, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM or a closed terminal while it is in force: healed at once, exit 130, long before its time."""
    terminal.when("probe_ms", lambda: signal.raise_signal(number))
    outcome = terminal.inject({"kind": "pause", "broker": "2"}, lasting="60s")
    assert 130 == outcome.exit_code
    assert "stopped" in outcome.text
    assert "healed" == terminal.states()[-1]
    assert terminal.world.healthy()
    assert terminal.clock.now_us() < 10_000_000


def test_stopped_again_while_it_heals(terminal: Terminal) -> None:
    """An impatient second Ctrl-C does not stop the heal."""
    terminal.when("probe_ms", lambda: signal.raise_signal(signal.SIGINT))
    terminal.when("resume", lambda: signal.raise_signal(signal.SIGINT))
    assert 130 == terminal.inject({"kind": "pause", "broker": "2"}, lasting="60s").exit_code
    assert terminal.world.healthy()


def test_the_signals_are_given_back(terminal: Terminal) -> None:
    """After an injection Ctrl-C is Ctrl-C again."""
    terminal.inject({"kind": "pause", "broker": "2"})
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_it_can_not_be_injected(terminal: Terminal) -> None:
    """The engine refuses: an error with its reason, and everything as it was."""
    terminal.world.broken["pause"] = FaultError("the engine refused to pause k2")
    with pytest.raises(FaultError, match="pause-1 failed: the engine refused to pause k2"):
        terminal.inject({"kind": "pause", "broker": "2"})
    assert terminal.world.healthy()


def test_nobody_to_hit(terminal: Terminal) -> None:
    """A node that another fault has down: the error names that fault, its holder and its time left."""
    terminal.world.states[BrokerId(2)] = "paused"
    terminal.journal.record(Entry("kill-9", "pause", "intended", Targets(brokers=(2,)), Undo("resume", {"broker": 2})))
    terminal.journal.lines.clear()  # as if another process had written it
    with pytest.raises(FaultError, match="node 2 is paused already") as caught:
        terminal.inject({"kind": "pause", "broker": "2"})
    assert "in force now: kill-9: pause on node 2; held by process" in str(caught.value)


def test_a_link_that_is_taken(terminal: Terminal) -> None:
    """A cut where a cut is in force is refused with its holder, and nothing is put on any link."""
    terminal.journal.record(Entry("cut-9", "cut", "intended", Targets(links=("client_a-k1",)), Undo("nothing")))
    terminal.journal.lines.clear()
    with pytest.raises(FaultError, match="link client_a-k1 is taken by cut-9"):
        terminal.inject({"kind": "cut", "link": "client(a) -> broker"})
    assert [] == terminal.world.called("add_toxic")


def test_it_can_not_be_healed(terminal: Terminal) -> None:
    """The undo fails: an error with the command that heals the fault."""
    terminal.world.broken["resume"] = FaultError("the engine is gone")
    with pytest.raises(FaultError, match="pause-1 could not be healed: the engine is gone") as caught:
        terminal.inject({"kind": "pause", "broker": "2"})
    assert [f"heal it with: aftershock heal --run {terminal.home.run_id}"] == caught.value.__notes__


def test_topics_are_read_from_the_cluster() -> None:
    """Every topic with its partitions and replication, Kafka's internal ones left out."""
    ids = tuple(map(BrokerId, (1, 2)))
    states = [PartitionState(name, p, ids[0], 0, ids, ids) for name, n in (("t", 3), ("__x", 5)) for p in range(n)]
    assert [("t", 3, 2)] == [(topic.name, topic.partitions, topic.replication) for topic in topics_of(states)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"kind": "kill", "broker": "1", "for": "5s"}, "survival quorum and min.insync.replicas survive"),
        ({"kind": "cut", "link": "controller(*) <-> broker", "for": "5s"}, "survival the metadata quorum would have"),
    ],
)
def test_a_dry_run_says_whether_quorum_and_isr_would_survive(
    terminal: Terminal, words: dict[str, Any], said: str
) -> None:
    """One node of three may go; controllers cut off from each other form no quorum. Nothing is touched."""
    fault = KINDS[words["kind"]].model_validate({**words, "at": "0s", "id": "one"})
    told = asyncio.run(preview(fault, 7, terminal.world, terminal.journal, terminal.clock))

    assert said in told
    assert [] == terminal.journal.lines
