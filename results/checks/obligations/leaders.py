"""Who led each partition when, from the optional document ``leaders.jsonl`` of the evidence.

A reign is the time of one leader epoch. The moment of an election is known within bounds, ``after_us`` (the last
reading without the epoch) and ``by_us`` (the first with it), so at some moments two brokers may lead::

    reign of k1 (epoch 4)  |---------------------|
    reign of k2 (epoch 5)               |---------------------
                                  after_us   by_us
    possible leaders        k1           k1, k2   k2

Runs of older versions have no such document; then any available replica may lead.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.leadership import Leadership

_EVER = 1 << 62


@dataclass(frozen=True)
class Reign:
    """Leadership of a broker, elected between ``after_us`` and ``by_us``.

    ``leader`` is None if the partition had no leader, ``UNKNOWN`` if the evidence does not say who led.
    """

    leader: int | None
    after_us: int
    by_us: int


UNKNOWN = -1
Leaders: TypeAlias = Mapping[tuple[str, int], tuple[Reign, ...]]
"""The reigns of each partition (topic and number), in the order of their epochs."""


def leaders_of(evidence: Evidence) -> Leaders:
    """Return the recorded reigns by partition; empty for evidence without leaders."""
    by_partition: defaultdict[tuple[str, int], list[Leadership]] = defaultdict(list)
    for leadership in evidence.leaders or ():
        by_partition[leadership.topic, leadership.partition].append(leadership)
    return {place: _reigns(history) for place, history in by_partition.items()}


def _reigns(history: Iterable[Leadership]) -> tuple[Reign, ...]:
    """Order the epochs of a partition; a recreated topic has a second series of epochs, after the first in time.

    An unknown bound is that which excludes nothing: the election may have come right after the one before, or (if no
    reading shows the epoch) at any later time.
    """
    reigns, since_us = [], -_EVER
    for epoch in sorted(history, key=lambda epoch: (_EVER if epoch.by_us is None else epoch.by_us, epoch.epoch)):
        leader = UNKNOWN if epoch.leader is None and epoch.isr is None else epoch.leader
        since_us = since_us if epoch.after_us is None else max(since_us, epoch.after_us)
        reigns.append(Reign(leader, since_us, _EVER if epoch.by_us is None else max(since_us, epoch.by_us)))
    return tuple(reigns)


def possible_leaders(reigns: Sequence[Reign], at_us: int) -> frozenset[int] | None:
    """Return the brokers that may lead at a time; None if unknown.

    An empty set means that the partition may have no leader.
    """
    ends_us = [following.by_us for following in reigns[1:]] + [_EVER + 1]
    current = (
        [reign for reign, end_us in zip(reigns, ends_us, strict=True) if reign.after_us <= at_us < end_us]
        if reigns
        else []
    )
    leaders = {reign.leader for reign in current}
    if not leaders or UNKNOWN in leaders:
        return None
    return frozenset() if None in leaders else frozenset(leader for leader in leaders if leader is not None)
