"""Which links are to be hit, and in which direction.

::

    client(a) -> broker                 what clients of rack a send to any broker
    client(a) -> broker(ROLE)           ... to one broker
    replication(a) -> broker(ROLE)      what brokers of rack a send to it as followers (all others: no ROLE)
    controller(a) -> broker             ... on the controllers' listener
    rack(a) -> rack(b)                  all that flows from rack a to rack b between nodes

``->`` breaks one way, ``<->`` both; a rack may be ``*``. In Toxiproxy's words: ``X(a) -> broker(s)`` is the
*upstream* of ``X_a-ks``. What flows from rack a to rack b is the upstream of a's links into b *and* the downstream
(the answers) of b's links into a. Nodes of one rack have no link between them, so there is nothing to break.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.runtime.world import World
from aftershock.faults.targets import roles
from aftershock.faults.targets.values import Channel, Link, Stream

GRAMMAR = (
    "`client(RACK) -> broker`, `client(RACK) -> broker(ROLE)`, `replication(RACK) -> ...`, `controller(RACK) -> ...`, "
    "or `rack(RACK) -> rack(RACK)`; `<->` for both ways, `*` for every rack"
)
_RACK = r"(\*|[a-z][a-z0-9]{0,7})"
_TO_BROKER = re.compile(rf"(client|replication|controller)\({_RACK}\) ?(<?->) ?broker(?:\((.*)\))?")
_TO_RACK = re.compile(rf"rack\({_RACK}\) ?(<?->) ?rack\({_RACK}\)")


@dataclass(frozen=True)
class ToBroker:
    """``client(a) -> broker(ROLE)`` and its like. ``role`` None: every broker."""

    channel: Channel
    source: str
    both: bool
    role: str | None


@dataclass(frozen=True)
class ToRack:
    """``rack(a) -> rack(b)``."""

    source: str
    both: bool
    target: str


@dataclass(frozen=True)
class Stretch:
    """One stream of one link: the unit that a toxic sits on."""

    link: Link
    stream: Stream


Selector = ToBroker | ToRack
Ways = Literal["both", "in", "out"]


def parse(text: str) -> Selector:
    """Raises ValueError with a sentence that shows the grammar."""
    text = " ".join(text.split())
    if match := _TO_BROKER.fullmatch(text):
        channel: Literal["client", "replication", "controller"] = match[1]  # type: ignore[assignment]
        if match[4] is not None:
            roles.parse(match[4])
        return ToBroker(channel, match[2], match[3] == "<->", match[4])
    if match := _TO_RACK.fullmatch(text):
        return _between_racks(match[1], match[2] == "<->", match[3])
    raise ValueError(f"`{text}` is no link: say {GRAMMAR}")


def _between_racks(source: str, both: bool, target: str) -> ToRack:  # noqa: FBT001 -- private, named at its one call
    if source == target != "*":
        raise ValueError(f"rack({source}) has no link to itself: nodes of one rack talk directly; name two racks")
    return ToRack(source, both, target)


def shared(first: str, second: str, homes: Mapping[int, str]) -> bool:
    """Whether two selectors are sure to name a link in common that their source dials. ``homes``: brokers' racks.

    Two different roles may or may not be played by one broker; only the cluster knows.
    """
    pairs = product(_dialled(parse(first), homes), _dialled(parse(second), homes))
    return any(_meet(one, other) for one, other in pairs)


def _dialled(selector: Selector, homes: Mapping[int, str]) -> Iterator[ToBroker]:
    if isinstance(selector, ToBroker):
        yield selector
        return
    ends = [(selector.source, selector.target), *([(selector.target, selector.source)] if selector.both else [])]
    channels: tuple[Channel, ...] = ("replication", "controller")
    for channel, (source, target), (broker, home) in product(channels, ends, homes.items()):
        if target in ("*", home) and source != home:
            yield ToBroker(channel, source, both=False, role=str(broker))


def _meet(one: ToBroker, other: ToBroker) -> bool:
    sources = one.source == other.source or "*" in (one.source, other.source)
    drawn = one.role is not None and roles.needs_draw(roles.parse(one.role))
    ends = None in (one.role, other.role) or (one.role == other.role and not drawn)
    return one.channel == other.channel and sources and ends


async def resolve(text: str, world: World, draws: Mapping[str, object]) -> tuple[Stretch, ...]:
    """The streams this selects now, sorted by proxy and stream. FaultError if there are none."""
    selector = parse(text)
    if isinstance(selector, ToRack):
        chosen = _between(selector, world)
    else:
        chosen = await _into(selector, world, draws)
    if not chosen:
        raise FaultError(f"`{text}` names no link of this cluster; nodes of one rack have no link between them")
    return _ordered(chosen)


async def around(rack: str, ways: Ways, world: World) -> tuple[Stretch, ...]:
    """All that flows into the rack, out of it, or both, on every channel. FaultError if nothing does.

    Clients of the rack keep their links to its own brokers.
    """
    flows = {"in": [("*", rack)], "out": [(rack, "*")], "both": [("*", rack), (rack, "*")]}[ways]
    racks = world.racks()
    apart = [
        (link, racks[link.broker]) for link in world.links() if racks.get(link.broker) not in (None, link.source_rack)
    ]
    chosen = {stretch for link, home in apart for flow in flows for stretch in _carrying(flow, link, home)}
    if not chosen:
        raise FaultError(f"rack {rack} has no link to another rack, so there is nothing to cut")
    return _ordered(chosen)


async def crossing(links: set[Link], world: World) -> dict[str, list[int]]:
    """The partitions, by topic, whose followers fetch over these links now; their records are what meets the fault."""
    replication = [link for link in links if link.channel == "replication"]
    if not replication:
        return {}
    racks, met = world.racks(), dict[str, list[int]]()
    for state in await world.partitions():
        homes = {racks[replica] for replica in state.replicas if replica != state.leader and replica in racks}
        if any(link.broker == state.leader and link.source_rack in homes for link in replication):
            met.setdefault(state.topic, []).append(state.partition)
    return met


async def _into(selector: ToBroker, world: World, draws: Mapping[str, object]) -> set[Stretch]:
    target = None if selector.role is None else await roles.resolve(selector.role, world, draws, "link")
    streams: tuple[Stream, ...] = ("upstream", "downstream") if selector.both else ("upstream",)
    return {
        Stretch(link, stream)
        for link in world.links()
        if link.channel == selector.channel and selector.source in ("*", link.source_rack)
        if target is None or link.broker == target
        for stream in streams
    }


def _between(selector: ToRack, world: World) -> set[Stretch]:
    flows = [(selector.source, selector.target)]
    if selector.both:
        flows.append((selector.target, selector.source))
    racks = world.racks()
    inner = [(link, racks[link.broker]) for link in world.links() if link.channel != "client" and link.broker in racks]
    return {stretch for link, home in inner for flow in flows for stretch in _carrying(flow, link, home)}


def _carrying(flow: tuple[str, str], link: Link, home: str) -> list[Stretch]:
    """The streams of this link that carry what flows from one rack to another."""
    source, target = flow
    carrying: list[Stretch] = []
    if source in ("*", link.source_rack) and target in ("*", home):
        carrying.append(Stretch(link, "upstream"))
    if source in ("*", home) and target in ("*", link.source_rack):
        carrying.append(Stretch(link, "downstream"))
    return carrying


def _ordered(chosen: set[Stretch]) -> tuple[Stretch, ...]:
    return tuple(sorted(chosen, key=lambda stretch: (stretch.link.proxy, stretch.stream)))


def _checked(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise PydanticCustomError("link", "{message}", {"message": str(error)}) from error
    return " ".join(text.split())


LinkText = Annotated[
    str, AfterValidator(_checked), WithJsonSchema({"type": "string", "x-word": "LINK", "description": GRAMMAR})
]
