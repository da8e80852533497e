"""Brokers that leave the cluster or return, and in-sync replicas, as seen in the polls of a run.

A broker that is cut off from the controllers answers with what it knew before. Therefore a state counts only when two
answers in a row, which come from two brokers if two are alive, agree on it. Its time is that of the first of them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aftershock.harness.kafka.leader_history import PartitionView

NAMES_MAX = 20
"""Partitions that an event names; it counts all."""
_BROKERS = ""


@dataclass(frozen=True)
class Change:
    """Event of the cluster, ``broker_left``, ``broker_returned``, ``isr_left`` or ``isr_joined``, with its fields."""

    t_us: int
    event: str
    fields: dict[str, Any]


@dataclass
class Membership:
    """State on which two answers in a row agreed, by partition (``orders/3``), and of the brokers."""

    _agreed: dict[str, frozenset[int]] = field(default_factory=dict)
    _latest: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)

    def answered(self, at_us: int, brokers: Collection[int], views: Sequence[PartitionView]) -> Iterator[Change]:
        """Yield the changes that an answer to a poll confirms; ``at_us`` is the time of the poll."""
        seen = {_BROKERS: frozenset(brokers)} | {f"{v.topic}/{v.partition}": frozenset(v.isr) for v in views}
        of_isr: dict[tuple[int, str, int], list[str]] = {}
        for place, state in seen.items():
            since_us, latest = self._latest.get(place, (at_us, state))
            if latest != state:
                self._latest[place] = at_us, state
                continue
            self._latest[place] = since_us, state
            before = self._agreed.setdefault(place, state)
            if before == state:
                continue
            self._agreed[place] = state
            for word, changed in (("left", before - state), ("joined", state - before)):
                for broker in sorted(changed):
                    if place == _BROKERS:
                        name = "broker_left" if word == "left" else "broker_returned"
                        yield Change(since_us, name, {"broker": broker})
                    else:
                        of_isr.setdefault((since_us, f"isr_{word}", broker), []).append(place)
        for (since_us, name, broker), places in sorted(of_isr.items()):
            yield Change(since_us, name, {"broker": broker, "n": len(places), "places": sorted(places)[:NAMES_MAX]})
