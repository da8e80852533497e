"""Which broker led each partition when, as the story of a fault, of a record and the report's lanes need it.

The times are those of ``leaders.jsonl``: a leader counts from the moment by which it was known to be elected until the
next one was. Runs of older versions recorded no leaders; all functions then return nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.explain.events import Moment, listed

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class Reign:
    """Time in which one leader epoch of a partition lasted, in microseconds of the run; the last one has no end.

    ``leader`` is None if the partition had no leader, or if it is unknown (``isr`` is None then, too).
    """

    epoch: int
    leader: int | None
    isr: tuple[int, ...] | None
    start_us: float
    end_us: float

    def __str__(self) -> str:
        if self.leader is None:
            who = "the leader is unknown" if self.isr is None else "no leader"
            return f"{who} (epoch {self.epoch})"
        in_sync = "" if self.isr is None else f", in sync: {', '.join(map(str, self.isr))}"
        return f"broker {self.leader} leads (epoch {self.epoch}{in_sync})"


def reigns(evidence: Evidence) -> dict[Place, list[Reign]]:
    """Map each partition to its reigns in order of the epochs; Kafka's own topics (``__``) come last.

    Of a topic that was deleted and created again, the newer incarnation follows the older one.
    """
    lines: dict[Place, list[tuple[float, int, int | None, tuple[int, ...] | None]]] = {}
    for line in evidence.leaders or ():
        known_us = line.by_us if line.by_us is not None else line.after_us
        start_us = -inf if known_us is None else float(known_us)
        lines.setdefault((line.topic, line.partition), []).append((start_us, line.epoch, line.leader, line.isr))
    found: dict[Place, list[Reign]] = {}
    for place in sorted(lines, key=lambda place: (place[0].startswith("__"), place)):
        rows = sorted(lines[place], key=lambda row: row[:2])
        ends = [*(row[0] for row in rows[1:]), inf]
        found[place] = [
            Reign(epoch, leader, isr, start_us, end_us)
            for (start_us, epoch, leader, isr), end_us in zip(rows, ends, strict=True)
        ]
    return found


def leader_changes(reigns: Mapping[Place, Sequence[Reign]], start_us: int, end_us: int) -> Iterator[Moment]:
    """Yield the changes of leaders between two times; those from and to the same brokers are told together."""
    changes: dict[tuple[int | None, int | None], list[tuple[float, str]]] = {}
    for (topic, partition), of_place in reigns.items():
        for before, after in pairwise(of_place):
            if start_us <= after.start_us < end_us and before.leader != after.leader:
                place = f"{topic}/{partition} (epoch {after.epoch})"
                changes.setdefault((before.leader, after.leader), []).append((after.start_us, place))
    for (old, new), places in changes.items():
        names = listed([name for _, name in places])
        text = f"{names} without a known leader" if new is None else f"broker {new} leads {names}"
        since = ", after a time without a known leader" if old is None else f", after broker {old}"
        yield Moment(int(min(at_us for at_us, _ in places)), text + since)


def leaders_between(of_place: Sequence[Reign], start_us: int, end_us: float) -> str:
    """Describe who led a partition from one time to another, such as ``broker 2 leads (..); from 45.1 s broker 3 ..``.

    Empty if that is not recorded.
    """
    during = [reign for reign in of_place if reign.start_us <= end_us and start_us < reign.end_us]
    later = [f"from {reign.start_us / 1e6:.3f} s {reign}" for reign in during[1:]]
    return "; ".join([*map(str, during[:1]), *later])
