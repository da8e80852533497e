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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults import roles
from aftershock.faults.world import Channel, Link, Stream, World

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


async def resolve(text: str, world: World, draws: Mapping[str, object]) -> tuple[Stretch, ...]:
    """The streams this selects now, sorted by proxy and stream. FaultError if there are none."""
    selector = parse(text)
    if isinstance(selector, ToRack):
        chosen = _between(selector, world)
    else:
        chosen = await _into(selector, world, draws)
    if not chosen:
        raise FaultError(f"`{text}` names no link of this cluster; nodes of one rack have no link between them")
    return tuple(sorted(chosen, key=lambda stretch: (stretch.link.proxy, stretch.stream)))


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


def _checked(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise PydanticCustomError("link", "{message}", {"message": str(error)}) from error
    return " ".join(text.split())


LinkText = Annotated[str, AfterValidator(_checked), WithJsonSchema({"type": "string", "description": GRAMMAR})]
