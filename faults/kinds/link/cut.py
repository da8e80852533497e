"""Who hears whom no more: a set of (from, to) node pairs, and the streams that carry what flows between these.

Jepsen calls such a set a grudge. Rules kept here:

* Nodes alone are meant; clients keep all their links. A whole rack with its clients is `links.around`.
* What flows from a node s to a node t goes upstream over the link of s's rack into t, and downstream over the link of
  t's rack into s. All nodes of a rack send over the same link (only brokers on the replication listener), so either
  all of them are cut from a node or none is: anything else, and nodes of one rack above all, can't be had.
* A ring is Jepsen's "majorities ring": every rack hears a majority of the racks, itself in its middle, and no two hear
  the same. Where a majority is even (three racks) the middle is off by one, so each pair is cut one way; and since
  Kafka asks and answers over one connection, no pair can work together then.

Groups of nodes as a plan says them, by their ids or by racks, and whether a cluster's links allow for them.

::

    between: [[1, 2], [3]]       between: [[a], [b, c]]

A node that is in no group keeps all its links.

``cut``: what is sent over some links vanishes, and nobody is told.

A rack cut off, both ways::

      rack a, rack c            rack b
      clients, nodes  ----x---->  nodes           client, replication, controller links into it
               nodes  <---x-----  clients, nodes  and out of it

``between`` cuts groups of nodes from each other, ``shape`` a drawn minority from the rest, or every rack from all but
its neighbours on a drawn ring; clients keep their links there (``grudges.py`` says who hears whom, and what can't be
had).

It is Toxiproxy's ``timeout`` toxic with a timeout of 0. While it lasts connections stay open and keep silent, new ones
are accepted and as silent; the heal closes them all, so clients must dial again after it (measured: 0.6 s). One way
A -> B is the upstream of A's links into B and the downstream of B's links into A. A link whose broker hangs up by
itself while it is cut (it is down, say) is left out of the witness: its silence would not be ours.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    TargetKind,
)
from aftershock.faults.kinds.link.base import ToxicInjection, described, role_of, toxic_on
from aftershock.faults.plan.document import Problem, did_you_mean
from aftershock.faults.runtime.probing import SILENCE_MS, wait_until_answering, answering_links, probe_all, count_answers
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.links import LinkStream, LinkText, Ways, links_of_rack, resolve
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import BrokerId, Channel, Link, Stream

if TYPE_CHECKING:
    from aftershock.faults.plan.cluster import Cluster


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


def streams_of(grudge: Grudge, links: Iterable[Link], homes: Homes, brokers: Iterable[int]) -> tuple[LinkStream, ...]:
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


def _cut(grudge: Grudge, link: Link, senders: Sequence[int]) -> Iterator[LinkStream]:
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
            yield LinkStream(link, stream)


_SCHEMA = {
    "type": "array",
    "items": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "description": "groups of node ids, or of racks: [[1, 2], [3]] or [[a], [b, c]]",
}
GROUPS_MIN = 2


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Member = Annotated[str, BeforeValidator(_text)]
Groups = Annotated[tuple[tuple[Member, ...], ...], WithJsonSchema(_SCHEMA)]


def nodes_in(groups: Groups, homes: Mapping[Any, str]) -> list[list[int]]:
    """The groups as node ids; FaultError for a member that the cluster doesn't have."""
    known = {*map(str, homes), *homes.values()}
    if strangers := [member for group in groups for member in group if member not in known]:
        raise FaultError(f"the cluster has no node or rack `{strangers[0]}`; {did_you_mean(strangers[0], known)}")
    return [[node for node, rack in homes.items() if str(node) in group or rack in group] for group in groups]


def misgrouped(groups: Sequence[Sequence[str]]) -> str | None:
    """Why these are no groups of nodes of any cluster."""
    members = [member for group in groups for member in group]
    if len(groups) < GROUPS_MIN or not all(groups):
        return "`between` needs two groups or more, and somebody in each: like [[1, 2], [3]]"
    if len({member.isdecimal() for member in members}) > 1:
        return "`between` takes node ids or racks, not both: like [[1, 2], [3]] or [[a], [b, c]]"
    twice = next((member for member, count in Counter(members).items() if count > 1), None)
    return f"`{twice}` is in `between` twice: a node belongs to one group" if twice else None


def impossible(groups: Groups, ways: Ways, cluster: "Cluster") -> str | None:
    """Why the links of this cluster can't keep these groups apart."""
    homes, brokers = cluster.node_racks, cluster.broker_racks
    try:
        streams_of(of_groups(nodes_in(groups, homes), ways), all_links(homes, brokers), homes, brokers)
    except FaultError as error:
        return str(error)
    return None


PROBE_SLACK_MS = 200  # what a probe takes beside its limit, generously


async def no_answers(reachable: Sequence[Link], context: InjectionContext) -> Witness:
    """No link that answered before may answer now."""
    answers = count_answers(await probe_all(reachable, context))
    asked = answers["answered"] + answers["silent"]
    what = "requests answered over links that keep their connections open and silent until the heal closes them"
    if not asked:
        what = "no link answers by itself, so none can be probed; the toxics read back are the witness"
    return Witness(what, 0, answers["answered"], "answers", asked, ok=not answers["answered"])


class CutInjection(ToxicInjection):
    """One ``timeout`` toxic for each stream of each link. ``reachable``: the links that answered before."""

    measuring_us = (SILENCE_MS + PROBE_SLACK_MS) * 1000
    reachable: Sequence[Link] = ()

    async def measure(self) -> Witness:
        """Whether all is silent."""
        return await no_answers(self.reachable, self.context)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)


class Cut(Fault):
    """Let all that is sent over some links, around a rack, or between groups of nodes vanish."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#8c564b", "cut")
    proof: ClassVar[str] = "no answer through any link that answered before; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed, and every link answers again"
    exposure_target: ClassVar[TargetKind] = "links"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("way", "links", by_plan=False),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 2_000  # toxics go on and off in 30 ms; connections are made anew within 0.6 s

    kind: Literal["cut"] = "cut"
    link: LinkText | None = None
    rack: Annotated[str, Field(description="the rack to cut off from all others")] | None = None
    between: Groups | None = None
    shape: (
        Annotated[Shape, Field(description="a drawn minority of the racks, or a drawn ring of majorities")] | None
    ) = None
    ways: Annotated[
        Ways, Field(description="which way round a rack, or the first of two groups: into it, out of it, or both")
    ] = "both"

    @model_validator(mode="after")
    def _one_of_four(self) -> Self:
        if sum(each is not None for each in (self.link, self.rack, self.between, self.shape)) != 1:
            raise _refused(
                'a cut needs either `link: "client(a) <-> broker"`, `rack: b`, `between: [[1, 2], [3]]` or '
                "`shape: ring`; say one of them"
            )
        if self.ways != "both" and self.rack is None and len(self.between or ()) != 2:  # noqa: PLR2004 -- one and other
            raise _refused("`ways` is for a rack or for two groups; a link says it by `->` or `<->`: take `ways` away")
        if self.between is not None and (why := misgrouped(self.between)):
            raise _refused(why)
        return self

    def impact(self) -> Impact:
        """All that these links carry."""
        return "links"

    def roles(self) -> dict[tuple[str, ...], str]:
        """The broker at the link's end, where it names one."""
        return role_of(self.link) if self.link else {}

    def links(self) -> dict[FieldPath, str]:
        """The link."""
        return {("link",): self.link} if self.link else {}

    def racks(self) -> dict[FieldPath, str]:
        """The rack to cut off."""
        return {("rack",): self.rack} if self.rack else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``order``: which order of the racks it is, for a shape; and ``any`` roles."""
        return super().draw(source) | ({"order": source.random()} if self.shape else {})

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """A rack that is alone has nothing to be cut off from; groups must be such that links are between them."""
        cluster = plan.cluster
        if cluster is None:
            return
        if tuple(cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, so there is nothing to cut it off from: add a rack")
        if self.shape is not None and (why := _shapeless(self.shape, cluster)):
            yield Problem(("shape",), why)
        if self.between is not None and (why := impossible(self.between, self.ways, cluster)):
            yield Problem(("between",), why)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such link."""
        asked, stretches = await self._stretches(context.world, draws)
        roles = await described(asked, stretches, context.world)
        if self.roles():
            roles["broker"] = stretches[0].link.broker
        silence = {each: toxic_on(each, context.fault, "timeout", {"timeout": 0}) for each in stretches}
        injection = CutInjection(context, silence, roles)
        injection.reachable = await answering_links((stretch.link for stretch in stretches), context)
        return injection

    async def _stretches(self, world: World, draws: Draws) -> tuple[str, tuple[LinkStream, ...]]:
        """What was asked, the random choices in words, and the streams."""
        if self.rack is not None:
            return f"rack {self.rack}", await links_of_rack(self.rack, self.ways, world)
        if self.link is not None:
            return self.link, await resolve(self.link, world, draws)
        if self.between is not None:
            asked = " | ".join(", ".join(group) for group in self.between)
            return asked, _streams(of_groups(nodes_in(self.between, world.racks()), self.ways), world)
        order = picked(sorted({*world.racks().values()}), draws["order"])
        if self.shape == "ring":
            return f"ring {' > '.join(order)}", _streams(of_ring(order, world.racks()), world)
        few, many = minority(order, world.racks())
        return f"{_said(few)} | {_said(many)}", _streams(of_groups([few, many], "both"), world)


def _streams(grudge: Grudge, world: World) -> tuple[LinkStream, ...]:
    return streams_of(grudge, world.links(), world.racks(), brokers_of(world))


def _said(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _shapeless(shape: Shape, cluster: "Cluster") -> str | None:
    """Why the cluster's racks don't give this shape."""
    if len(cluster.racks) < RING_RACKS_MIN:
        return f"a {shape} needs {RING_RACKS_MIN} racks, and the cluster has {len(cluster.racks)}: add a rack"
    if shape == "ring" and len({*cluster.racks.values()}) > 1:
        return "a ring of majorities needs as many brokers in each rack: even out `cluster.racks`"
    return None


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
