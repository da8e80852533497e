"""Injection by hand on a cluster in memory: the fault runs to its end, is logged, and is healed whenever the process
is stopped.
"""

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
from aftershock.harness.safety.journal import open_faults, read_journal
from aftershock.harness.safety.rundir import RunDir
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
def test_an_action_without_duration_ends_at_once(terminal: Terminal, words: dict[str, Any]) -> None:
    """Exit 0, and the journal has no open fault."""
    assert 0 == terminal.inject(words, lasting=None).exit_code
    assert [] == open_faults(read_journal(terminal.home.path / "journal.jsonl"))


def test_a_failed_witness_exits_2(terminal: Terminal) -> None:
    """Another process resumes the paused node: exit 2, with the witness that failed."""
    pause = terminal.world.pause

    async def thawed(broker: BrokerId) -> None:
        await pause(broker)
        await terminal.world.resume(broker)

    terminal.world.pause = thawed  # type: ignore[method-assign]
    outcome = terminal.inject({"kind": "pause", "broker": "2"})
    assert 2 == outcome.exit_code
    assert "NOT witnessed (the container of node 2 is paused, as the engine reports: 0 of 1 reads)" in outcome.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_heals_the_fault_at_once(terminal: Terminal, number: signal.Signals) -> None:
    """SIGINT, SIGTERM or SIGHUP while the fault is in force: the fault is healed at once, long before its end; exit
    130.
    """
    terminal.when("probe_ms", lambda: signal.raise_signal(number))
    outcome = terminal.inject({"kind": "pause", "broker": "2"}, lasting="60s")
    assert 130 == outcome.exit_code
    assert "stopped" in outcome.text
    assert "healed" == terminal.states()[-1]
    assert terminal.world.healthy()
    assert terminal.clock.now_us() < 10_000_000


def test_a_second_interrupt_does_not_stop_the_heal(terminal: Terminal) -> None:
    terminal.when("probe_ms", lambda: signal.raise_signal(signal.SIGINT))
    terminal.when("resume", lambda: signal.raise_signal(signal.SIGINT))
    assert 130 == terminal.inject({"kind": "pause", "broker": "2"}, lasting="60s").exit_code
    assert terminal.world.healthy()


def test_signal_handlers_are_restored_after_an_injection(terminal: Terminal) -> None:
    terminal.inject({"kind": "pause", "broker": "2"})
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_failed_inject_is_an_error_and_changes_nothing(terminal: Terminal) -> None:
    """The engine refuses: the error has the engine's reason, and the cluster is unchanged."""
    terminal.world.broken["pause"] = FaultError("the engine refused to pause k2")
    with pytest.raises(FaultError, match="pause-1 failed: the engine refused to pause k2"):
        terminal.inject({"kind": "pause", "broker": "2"})
    assert terminal.world.healthy()


def test_a_target_that_another_fault_holds_down(terminal: Terminal) -> None:
    """The error names the fault that keeps the node down, its holder and its remaining time."""
    terminal.world.states[BrokerId(2)] = "paused"
    terminal.journal.record(Entry("kill-9", "pause", "intended", Targets(brokers=(2,)), Undo("resume", {"broker": 2})))
    terminal.journal.lines.clear()  # The line looks as if another process had written it.
    with pytest.raises(FaultError, match="node 2 is paused already") as caught:
        terminal.inject({"kind": "pause", "broker": "2"})
    assert "in force now: kill-9: pause on node 2; held by process" in str(caught.value)


def test_a_second_cut_of_a_link_is_refused(terminal: Terminal) -> None:
    """The error names the holder of the first cut, and no link gets another toxic."""
    terminal.journal.record(Entry("cut-9", "cut", "intended", Targets(links=("client_a-k1",)), Undo("nothing")))
    terminal.journal.lines.clear()
    with pytest.raises(FaultError, match="link client_a-k1 is taken by cut-9"):
        terminal.inject({"kind": "cut", "link": "client(a) -> broker"})
    assert [] == terminal.world.called("add_toxic")


def test_a_failed_undo_names_the_command_that_heals(terminal: Terminal) -> None:
    terminal.world.broken["resume"] = FaultError("the engine is gone")
    with pytest.raises(FaultError, match="pause-1 could not be healed: the engine is gone") as caught:
        terminal.inject({"kind": "pause", "broker": "2"})
    assert [f"heal the fault with: aftershock heal --run {terminal.home.run_id}"] == caught.value.__notes__


def test_topics_are_read_from_the_cluster() -> None:
    """Every topic with its partitions and replication factor, without Kafka's internal topics."""
    ids = tuple(map(BrokerId, (1, 2)))
    states = [PartitionState(name, p, ids[0], 0, ids, ids) for name, n in (("t", 3), ("__x", 5)) for p in range(n)]
    assert [("t", 3, 2)] == [(topic.name, topic.partitions, topic.replication) for topic in topics_of(states)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"kind": "kill", "broker": "1", "for": "5s"},
            "survival a quorum and enough in-sync replicas for acks=all",
        ),
        ({"kind": "cut", "link": "controller(*) <-> broker", "for": "5s"}, "survival the metadata quorum would have"),
    ],
)
def test_a_dry_run_predicts_quorum_and_isr(terminal: Terminal, words: dict[str, Any], said: str) -> None:
    """Losing one node of three keeps the quorum; controllers cut off from each other form none. Nothing is injected."""
    fault = KINDS[words["kind"]].model_validate({**words, "at": "0s", "id": "one"})
    told = asyncio.run(preview(fault, 7, terminal.world, terminal.journal, terminal.clock))

    assert said in told
    assert [] == terminal.journal.lines
