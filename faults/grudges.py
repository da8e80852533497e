"""Who hears whom no more: a set of (from, to) node pairs, and the streams that carry what flows between these.

Jepsen calls such a set a grudge. Rules kept here:

* Nodes alone are meant; clients keep all their links. A whole rack with its clients is `links.around`.
* What flows from a node s to a node t goes upstream over the link of s's rack into t, and downstream over the link of
  t's rack into s. All nodes of a rack send over the same link (only brokers on the replication listener), so either
  all of them are cut from a node or none is: anything else, and nodes of one rack above all, can't be had.
* A ring is Jepsen's "majorities ring": every rack hears a majority of the racks, itself in its middle, and no two hear
  the same. Where a majority is even (three racks) the middle is off by one, so each pair is cut one way; and since
  Kafka asks and answers over one connection, no pair can work together then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Literal, TypeVar

from aftershock.errors import FaultError
from aftershock.faults.links import Stretch, Ways
from aftershock.faults.values import BrokerId, Channel, Link, Stream

T = TypeVar("T")
Grudge = frozenset[tuple[int, int]]
Shape = Literal["minority", "ring"]
Homes = Mapping[Any, str]  # the rack of each node; a mapping's keys are invariant, and `BrokerId` is an int
RING_RACKS_MIN = 3


def of_groups(groups: Sequence[Iterable[int]], ways: Ways) -> Grudge:
    """Nobody hears another group; ``in`` and ``out``: the first group doesn't hear the others, or isn't heard."""
    belongs = {node: number for number, group in enumerate(groups) for node in group}
    apart = {(s, t) for s in belongs for t in belongs if belongs[s] != belongs[t]}
    out = {(s, t) for s, t in apart if belongs[s] == 0}
    into = {(s, t) for s, t in apart if belongs[t] == 0}
    return frozenset({"both": apart, "in": into, "out": out}[ways])


def of_ring(order: Sequence[str], homes: Homes) -> Grudge:
    """Each rack hears the majority of the ring that it is in the middle of."""
    majority = len(order) // 2 + 1
    heard = {
        order[(first + majority // 2) % len(order)]: {order[(first + i) % len(order)] for i in range(majority)}
        for first in range(len(order))
    }
    return frozenset((s, t) for s in homes for t in homes if homes[s] not in heard[homes[t]])


def minority(order: Sequence[str], homes: Homes) -> list[list[int]]:
    """The nodes of the first racks, fewer than half of them, and all others."""
    few = order[: (len(order) - 1) // 2]
    return [[n for n in homes if homes[n] in few], [n for n in homes if homes[n] not in few]]


def picked(items: Iterable[T], drawn: float, unlike: Sequence[T] = ()) -> tuple[T, ...]:
    """The order of the items that a number in [0, 1) picks among all there are but one."""
    orders = [order for order in permutations(items) if order != unlike]
    return orders[int(drawn * len(orders))]


def streams_of(grudge: Grudge, links: Iterable[Link], homes: Homes, brokers: Iterable[int]) -> tuple[Stretch, ...]:
    """The streams to cut, sorted by proxy and stream. FaultError, with a sentence, where links can't carry it out."""
    senders = {"replication": frozenset(brokers), "controller": frozenset(homes)}
    if impossible := sorted((s, t) for s, t in grudge if homes[s] == homes[t]):
        first, second = impossible[0]
        raise FaultError(
            f"nodes {first} and {second} share rack {homes[first]}, and nodes of one rack have no link between them: "
            "put them in one group"
        )
    chosen = [
        stretch
        for link in links
        if link.channel != "client"
        for stretch in _cut(grudge, link, [n for n in senders[link.channel] if homes[n] == link.source_rack])
    ]
    if not chosen:
        raise FaultError("no link of this cluster is between these groups, so there is nothing to cut")
    return tuple(sorted(chosen, key=lambda stretch: (stretch.link.proxy, stretch.stream)))


def all_links(homes: Homes, brokers: Iterable[int]) -> Iterator[Link]:
    """The links between the nodes of a cluster that isn't there yet; of combined nodes, every one counts as a voter."""
    voters = {*homes} - {*brokers} or {*homes}
    ends: list[tuple[Channel, int]] = [("replication", each) for each in sorted(brokers)]
    ends += [("controller", each) for each in sorted(voters)]
    for channel, target in ends:
        for rack in sorted({*homes.values()} - {homes[target]}):
            yield Link(f"{channel}_{rack}-k{target}", channel, rack, BrokerId(target))


def _cut(grudge: Grudge, link: Link, senders: Sequence[int]) -> Iterator[Stretch]:
    """The streams of a link all of whose traffic is meant."""
    ways: dict[Stream, dict[int, bool]] = {
        "upstream": {n: (n, link.broker) in grudge for n in senders},
        "downstream": {n: (link.broker, n) in grudge for n in senders},
    }
    for stream, meant in ways.items():
        if any(meant.values()) and not all(meant.values()):
            one, other = (next(n for n in sorted(meant) if meant[n] is which) for which in (True, False))
            raise FaultError(
                f"nodes {one} and {other} share rack {link.source_rack}, and so the link to node {link.broker}, "
                "which can't be cut for one of them alone: put both in one group"
            )
        if meant and all(meant.values()):
            yield Stretch(link, stream)
