"""What a case is: one fault on the real cluster, and what a client must see of it."""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.document import load
from aftershock.faults.runtime.record import Entry, Witness
from aftershock.tests.chaos.kinds.crew import Work
from aftershock.tests.chaos.kinds.probe import Ack

if TYPE_CHECKING:
    from aftershock.tests.chaos.kinds.stand import Stand


Phase = Literal["before", "during", "after"]
_AROUND_US = 2_000_000


@dataclass(frozen=True)
class Line:
    """A line of the journal, and when it was written."""

    t_us: int
    entry: Entry


@dataclass(frozen=True)
class Seen:
    """What was seen of one fault: its journal, and what the probe's records went through meanwhile."""

    stand: "Stand"
    lines: Sequence[Line]
    acks: Sequence[Ack]
    work: Work = field(default_factory=Work)

    @property
    def states(self) -> list[str]:
        """The states in order, repeated ones once."""
        states = [line.entry.state for line in self.lines]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]

    @property
    def witnesses(self) -> list[Witness]:
        """All that was witnessed."""
        return [line.entry.witness for line in self.lines if line.entry.witness]

    @property
    def targets(self) -> Mapping[str, Any]:
        """Who was hit, as the journal has it."""
        return self.lines[-1].entry.targets.as_json()

    def at_us(self, state: str) -> int:
        """When the fault last came to a state."""
        return max(line.t_us for line in self.lines if line.entry.state == state)

    def records(self, phase: Phase) -> list[Ack]:
        """The probe's records sent in the 2 s before inject, from there until healed, or in the 2 s after."""
        begin, end = self.at_us("intended"), self.at_us("healed")
        spans = {"before": (begin - _AROUND_US, begin), "during": (begin, end), "after": (end, end + _AROUND_US)}
        from_us, to_us = spans[phase]
        return [ack for ack in self.acks if from_us <= ack.sent_us < to_us]

    def latencies_ms(self, phase: Phase) -> list[float]:
        """Of those that were acknowledged, sorted."""
        return sorted(ack.latency_ms for ack in self.records(phase) if ack.latency_ms is not None)

    def median_ms(self, phase: Phase) -> float:
        """Their median."""
        return statistics.median(self.latencies_ms(phase))

    def slowest_ms(self, phase: Phase) -> float:
        """The slowest; infinite if one was never acknowledged."""
        return max((float("inf") if ack.latency_ms is None else ack.latency_ms) for ack in self.records(phase))

    def failures(self, phase: Phase) -> list[str]:
        """The errors of those that failed."""
        return [ack.error for ack in self.records(phase) if ack.error is not None]

    def longest_gap_ms(self, phase: Phase) -> float:
        """The longest time in which nothing that was sent in the phase was acknowledged."""
        records = self.records(phase)
        done = sorted(ack.sent_us + ack.latency_ms * 1000 for ack in records if ack.latency_ms is not None)
        moments = [records[0].sent_us, *done] if records else []
        return max((later - earlier for earlier, later in pairwise(moments)), default=0) / 1000


@dataclass(frozen=True)
class Case:
    """One fault as a plan says it, without ``at`` and ``id``; what a client must see of it (``effect`` asserts).

    ``on``: the cluster it is shown on. ``before``: what it needs there first; ``after``: what ends that.
    ``record_bytes``: how large the probe's records are. ``crew``: the clients of a run that it needs, an arm for each.
    """

    words: str
    effect: Callable[[Seen], None]
    on: Literal["plain", "isolated", "older", "bounded", "doubled", "proxied"] = "plain"
    before: "Callable[[Stand], Awaitable[None]] | None" = None
    after: "Callable[[Stand], Awaitable[None]] | None" = None
    record_bytes: int = 200
    crew: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The word for its kind."""
        return str(self._said["kind"])

    def fault(self) -> Fault:
        """The fault, at once."""
        return KINDS[self.kind].model_validate({"at": "0s", "id": f"{self.kind.replace('_', '-')}-1", **self._said})

    @property
    def _said(self) -> dict[str, Any]:
        return dict(load(f"words: {self.words}").data["words"])
