"""Link targets of faults, connections between racks, clients and brokers that a fault affects, with a direction.

* ``client(a) -> broker(ROLE)`` selects traffic from clients of rack a to one broker, to all brokers without ``(ROLE)``.
* ``replication(a) -> broker(ROLE)`` selects fetch requests of followers in rack a, to all brokers without ``(ROLE)``.
* ``controller(a) -> broker`` selects requests of nodes in rack a to the controllers' listener.
* ``rack(a) -> rack(b)`` selects all traffic from nodes of rack a to nodes of rack b.

In a link selector, ``->`` selects one direction and ``<->`` both; ``*`` stands for every rack. In Toxiproxy's terms,
``X(a) -> broker(s)`` is the *upstream* of the proxies ``X_a-ks``. Traffic from rack a to rack b is the upstream of a's
links into b *and* the downstream (responses) of b's links into a. Nodes of one rack have no link between them, so no
link fault can affect their traffic.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

from aftershock.errors import FaultError
from aftershock.faults.targets import roles
from aftershock.faults.targets.values import Channel, Link, Stream
from aftershock.faults.targets.world import World

GRAMMAR = (
    "`client(RACK) -> broker`, `client(RACK) -> broker(ROLE)`, `replication(RACK) -> ...`, `controller(RACK) -> ...`, "
    "or `rack(RACK) -> rack(RACK)`; `<->` for both ways, `*` for every rack"
)
_RACK = r"(\*|[a-z][a-z0-9]{0,7})"
_TO_BROKER = re.compile(rf"(client|replication|controller)\({_RACK}\) ?(<?->) ?broker(?:\((.*)\))?")
_TO_RACK = re.compile(rf"rack\({_RACK}\) ?(<?->) ?rack\({_RACK}\)")


@dataclass(frozen=True)
class ToBroker:
    """Link selector like ``client(a) -> broker(ROLE)``; ``role`` None stands for every broker."""

    channel: Channel
    source: str
    both: bool
    role: str | None


@dataclass(frozen=True)
class ToRack:
    """Link selector ``rack(a) -> rack(b)``, which selects all traffic between two racks."""

    source: str
    both: bool
    target: str


@dataclass(frozen=True)
class LinkStream:
    """Upstream or downstream direction of a link, the unit to which a toxic is attached."""

    link: Link
    stream: Stream


Selector = ToBroker | ToRack
Ways = Literal["both", "in", "out"]


def parse(text: str) -> Selector:
    """Parse a link selector; raise ValueError with a sentence that shows the grammar."""
    text = " ".join(text.split())
    if match := _TO_BROKER.fullmatch(text):
        channel: Literal["client", "replication", "controller"] = match[1]  # type: ignore[assignment]
        if match[4] is not None:
            roles.parse(match[4])
        return ToBroker(channel, match[2], match[3] == "<->", match[4])
    if match := _TO_RACK.fullmatch(text):
        source, target = match[1], match[3]
        if source == target != "*":
            raise ValueError(f"rack({source}) has no link to itself: nodes of one rack talk directly; name two racks")
        return ToRack(source, match[2] == "<->", target)
    raise ValueError(f"`{text}` is not a link: write {GRAMMAR}")


def share_link(first: str, second: str, broker_racks: Mapping[int, str]) -> bool:
    """Return True if two link selectors certainly have a link in common.

    Two different roles may be held by one broker, which is known only at run time.
    """
    pairs = product(_as_broker_links(parse(first), broker_racks), _as_broker_links(parse(second), broker_racks))
    for left, right in pairs:
        is_drawn = left.role is not None and roles.needs_draw(roles.parse(left.role))
        share_source = left.source == right.source or "*" in (left.source, right.source)
        share_broker = None in (left.role, right.role) or (left.role == right.role and not is_drawn)
        if left.channel == right.channel and share_source and share_broker:
            return True
    return False


def _as_broker_links(selector: Selector, broker_racks: Mapping[int, str]) -> Iterator[ToBroker]:
    if isinstance(selector, ToBroker):
        yield selector
        return
    ends = [(selector.source, selector.target), *([(selector.target, selector.source)] if selector.both else [])]
    channels: tuple[Channel, ...] = ("replication", "controller")
    for channel, (source, target), (broker, rack) in product(channels, ends, broker_racks.items()):
        if target in ("*", rack) and source != rack:
            yield ToBroker(channel, source, both=False, role=str(broker))


async def resolve(
    text: str, world: World, draws: Mapping[str, object], *, by_packets: bool = False
) -> tuple[LinkStream, ...]:
    """Return the streams that a link selector matches now, sorted; raise FaultError if the cluster has none.

    Only links with a proxy match, except ``by_packets``: in containers of an attached cluster, all links have packets.
    """
    selector = parse(text)
    if isinstance(selector, ToRack):
        flows = [(selector.source, selector.target)]
        if selector.both:
            flows.append((selector.target, selector.source))
        racks = world.racks()
        node_links = [
            (link, racks[link.broker]) for link in world.links() if link.channel != "client" and link.broker in racks
        ]
        streams = _streams_of_flows(node_links, flows)
    else:
        broker = None if selector.role is None else await roles.resolve(selector.role, world, draws, "link")
        directions: tuple[Stream, ...] = ("upstream", "downstream") if selector.both else ("upstream",)
        streams = {
            LinkStream(link, direction)
            for link in world.links()
            if link.channel == selector.channel and selector.source in ("*", link.source_rack)
            if (broker is None or link.broker == broker) and (by_packets or world.takes_toxics(link))
            for direction in directions
        }
    if not streams:
        raise FaultError(f"the cluster has no link `{text}`; nodes of one rack have no link between them")
    return _sorted(streams)


async def links_of_rack(rack: str, ways: Ways, world: World) -> tuple[LinkStream, ...]:
    """Return the streams between a rack and other racks, on every channel; raise FaultError for a single rack.

    ``ways`` selects the streams into the rack, out of the rack, or both.
    """
    flows = {"in": [("*", rack)], "out": [(rack, "*")], "both": [("*", rack), (rack, "*")]}[ways]
    racks = world.racks()
    between_racks = [
        (link, racks[link.broker]) for link in world.links() if racks.get(link.broker) not in (None, link.source_rack)
    ]
    streams = _streams_of_flows(between_racks, flows)
    if not streams:
        raise FaultError(f"rack {rack} has no link to another rack, so there is nothing to cut")
    return _sorted(streams)


async def replicated_over(links: set[Link], world: World) -> dict[str, list[int]]:
    """Return the partitions, by topic, that followers fetch over these links now and a fault on the links affects."""
    replication = [link for link in links if link.channel == "replication"]
    if not replication:
        return {}
    racks, partitions = world.racks(), dict[str, list[int]]()
    for state in await world.partitions():
        followers = [replica for replica in state.replicas if replica != state.leader and replica in racks]
        homes = {racks[follower] for follower in followers}
        if any(
            link.broker == state.leader
            and (link.source_rack in homes if link.source is None else link.source in followers)
            for link in replication
        ):
            partitions.setdefault(state.topic, []).append(state.partition)
    return partitions


def _streams_of_flows(links: Iterable[tuple[Link, str]], flows: Iterable[tuple[str, str]]) -> set[LinkStream]:
    """Return the streams of ``links`` that carry data between the pairs of racks in ``flows``, each as (from, to)."""
    streams = set()
    for (link, rack), (source, target) in product(links, flows):
        if source in ("*", link.source_rack) and target in ("*", rack):
            streams.add(LinkStream(link, "upstream"))
        if source in ("*", rack) and target in ("*", link.source_rack):
            streams.add(LinkStream(link, "downstream"))
    return streams


def _sorted(streams: set[LinkStream]) -> tuple[LinkStream, ...]:
    return tuple(sorted(streams, key=lambda stream: (stream.link.proxy, stream.stream)))


LinkText = Annotated[
    str,
    AfterValidator(lambda text: parse(text) and " ".join(text.split())),
    WithJsonSchema({"type": "string", "x-word": "LINK", "description": GRAMMAR}),
]
"""A link selector in a plan, kept as text; spaces are normalised."""
