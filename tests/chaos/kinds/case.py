"""A case: one fault on the real cluster, and the effect that a client must observe."""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.runtime.record import Entry, Witness
from aftershock.faults.sections.document import load
from aftershock.tests.chaos.kinds.crew import Work
from aftershock.tests.chaos.kinds.probe import Ack

if TYPE_CHECKING:
    from aftershock.tests.chaos.kinds.stand import Stand


Phase = Literal["before", "during", "after"]
_AROUND_US = 2_000_000


@dataclass(frozen=True)
class Line:
    """A line of the journal with its time."""

    t_us: int
    entry: Entry


@dataclass(frozen=True)
class Observation:
    """Journal of one fault, and the outcomes of the probe's records meanwhile."""

    stand: "Stand"
    lines: Sequence[Line]
    acks: Sequence[Ack]
    work: Work = field(default_factory=Work)

    @property
    def states(self) -> list[str]:
        """Return the states in order, without repetitions."""
        states = [line.entry.state for line in self.lines]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]

    @property
    def witnesses(self) -> list[Witness]:
        """Return all witness measurements."""
        return [line.entry.witness for line in self.lines if line.entry.witness]

    @property
    def targets(self) -> Mapping[str, Any]:
        """Return the targets in the journal."""
        return self.lines[-1].entry.targets.as_json()

    def at_us(self, state: str) -> int:
        """Return the time of the last transition to a state."""
        return max(line.t_us for line in self.lines if line.entry.state == state)

    def records(self, phase: Phase) -> list[Ack]:
        """Return the probe's records sent in the 2 s before inject, from there until healed, or in the 2 s after."""
        begin, end = self.at_us("intended"), self.at_us("healed")
        spans = {"before": (begin - _AROUND_US, begin), "during": (begin, end), "after": (end, end + _AROUND_US)}
        from_us, to_us = spans[phase]
        return [ack for ack in self.acks if from_us <= ack.sent_us < to_us]

    def latencies_ms(self, phase: Phase) -> list[float]:
        """Return the sorted latencies of acknowledged records."""
        return sorted(ack.latency_ms for ack in self.records(phase) if ack.latency_ms is not None)

    def median_ms(self, phase: Phase) -> float:
        return statistics.median(self.latencies_ms(phase))

    def slowest_ms(self, phase: Phase) -> float:
        """Return the largest latency; infinite if a record was never acknowledged."""
        return max((float("inf") if ack.latency_ms is None else ack.latency_ms) for ack in self.records(phase))

    def failures(self, phase: Phase) -> list[str]:
        """Return the errors of failed records."""
        return [ack.error for ack in self.records(phase) if ack.error is not None]

    def longest_gap_ms(self, phase: Phase) -> float:
        """Return the longest time without acknowledgement of a record sent in the phase."""
        records = self.records(phase)
        done = sorted(ack.sent_us + ack.latency_ms * 1000 for ack in records if ack.latency_ms is not None)
        moments = [records[0].sent_us, *done] if records else []
        return max((later - earlier for earlier, later in pairwise(moments)), default=0) / 1000


def unharmed(seen: Observation) -> None:
    """Assert that no record failed during the fault."""
    assert seen.records("during")
    assert [] == seen.failures("during")


@dataclass(frozen=True)
class Case:
    """One fault as in a plan, without ``at`` and ``id``; ``effect`` asserts what a client must observe.

    ``on`` is the cluster. ``before`` prepares it; ``after`` reverts that. ``record_bytes`` is the size of the
    probe's records. ``crew`` lists the clients of a run that the case needs, an arm for each.
    """

    words: str
    effect: Callable[[Observation], None]
    on: Literal[
        "plain",
        "isolated",
        "older",
        "bounded",
        "doubled",
        "devices",
        "clocks",
        "packets",
        "hosts",
        "gc",
        "proxied",
        "pods",
    ] = "plain"
    before: "Callable[[Stand], Awaitable[None]] | None" = None
    after: "Callable[[Stand], Awaitable[None]] | None" = None
    record_bytes: int = 200
    crew: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return str(self._said["kind"])

    def fault(self) -> Fault:
        """Return the fault with ``at`` 0."""
        return KINDS[self.kind].model_validate({"at": "0s", "id": f"{self.kind.replace('_', '-')}-1", **self._said})

    @property
    def _said(self) -> dict[str, Any]:
        return dict(load(f"words: {self.words}").data["words"])
