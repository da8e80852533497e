"""``cut``: data sent over some links vanishes while connections stay open, so no side notices except by timeouts.

It is Toxiproxy's ``timeout`` toxic with a timeout of 0. During the fault, open connections stay open without any
traffic, and so do new ones. The heal closes all of them, so clients must reconnect after it (measured: 0.6 s). A
one-way cut A -> B affects the upstream of A's links into B and the downstream of B's links into A. A link whose broker
closes connections by itself during the cut (it is down, for example) is left out of the witness, as its silence would
not prove the cut. A rack cut off, both ways::

      rack a, rack c            rack b
      clients, nodes  ----x---->  nodes           client, replication, controller links into it
               nodes  <---x-----  clients, nodes  and out of it

``between`` cuts groups of nodes off from each other; ``shape`` cuts a randomly drawn minority of nodes off from all
others, or every rack off from all but its neighbours on a drawn ring. Groups are given by node ids or by racks::

    between: [[1, 2], [3]]       between: [[a], [b, c]]

A node in no group keeps all its links. Such a cut is a set of (from, to) pairs of nodes that can't reach each other;
Jepsen calls it a grudge. Rules:

* A grudge affects only nodes; clients keep all their links. ``rack`` cuts a whole rack off with its clients
  (``links_of_rack``).
* Data from a node s to a node t goes upstream over the link of s's rack into t, and downstream over the link of t's
  rack into s. All nodes of a rack (on the replication listener: its brokers) send over the same link, so either all of
  them are cut off from a node, or none of them. Nodes of one rack have no link between them and can't be separated.
* A ring is Jepsen's "majorities ring": every rack hears a majority of the racks, and is in the middle of that majority;
  no two racks hear the same majority. If a majority is even (two of three racks) the middle is off by one, so each pair
  is cut one way; as Kafka sends requests and responses over one connection, no pair can work together then.
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
from aftershock.faults.runtime.probing import (
    SILENCE_MS,
    answering_links,
    count_answers,
    probe_all,
)
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
    """Separate all groups; ``in`` and ``out`` cut only what is sent to, or by, the first group."""
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    both = {(s, t) for s in group_of for t in group_of if group_of[s] != group_of[t]}
    outgoing = {(s, t) for s, t in both if group_of[s] == 0}
    incoming = {(s, t) for s, t in both if group_of[t] == 0}
    return frozenset({"both": both, "in": incoming, "out": outgoing}[ways])


def of_ring(order: Sequence[str], homes: Homes) -> Grudge:
    """Let each rack hear only the majority of the ring of which it is the middle."""
    majority = len(order) // 2 + 1
    heard = {
        order[(first + majority // 2) % len(order)]: {order[(first + i) % len(order)] for i in range(majority)}
        for first in range(len(order))
    }
    return frozenset((s, t) for s in homes for t in homes if homes[s] not in heard[homes[t]])


def minority(order: Sequence[str], homes: Homes) -> list[list[int]]:
    """Return the nodes of the first racks, fewer than half of all racks, and all other nodes."""
    first = order[: (len(order) - 1) // 2]
    return [[n for n in homes if homes[n] in first], [n for n in homes if homes[n] not in first]]


def picked(items: Iterable[T], drawn: float, unlike: Sequence[T] = ()) -> tuple[T, ...]:
    """Return the permutation of the items, except ``unlike``, that a number in [0, 1) selects."""
    orders = [order for order in permutations(items) if order != unlike]
    return orders[int(drawn * len(orders))]


def streams_of(grudge: Grudge, links: Iterable[Link], homes: Homes, brokers: Iterable[int]) -> tuple[LinkStream, ...]:
    """Return the streams to cut, sorted by proxy and stream; raise FaultError if the links don't allow for it."""
    senders = {"replication": frozenset(brokers), "controller": frozenset(homes)}
    if impossible := sorted((s, t) for s, t in grudge if homes[s] == homes[t]):
        first, second = impossible[0]
        raise FaultError(
            f"nodes {first} and {second} share rack {homes[first]}, and nodes of one rack have no link between them: "
            "put them in one group"
        )
    chosen = [
        stream
        for link in links
        if link.channel != "client"
        for stream in _cut(grudge, link, [n for n in senders[link.channel] if homes[n] == link.source_rack])
    ]
    if not chosen:
        raise FaultError("no link of this cluster is between these groups, so there is nothing to cut")
    return tuple(sorted(chosen, key=lambda stream: (stream.link.proxy, stream.stream)))


def all_links(homes: Homes, brokers: Iterable[int]) -> Iterator[Link]:
    """Yield the links between the nodes of a planned cluster; every combined node counts as a voter."""
    voters = {*homes} - {*brokers} or {*homes}
    ends: list[tuple[Channel, int]] = [("replication", broker) for broker in sorted(brokers)]
    ends += [("controller", voter) for voter in sorted(voters)]
    for channel, target in ends:
        for rack in sorted({*homes.values()} - {homes[target]}):
            yield Link(f"{channel}_{rack}-k{target}", channel, rack, BrokerId(target))


def _cut(grudge: Grudge, link: Link, senders: Sequence[int]) -> Iterator[LinkStream]:
    """Yield the streams of a link whose senders are all cut; raise FaultError if only some of them are."""
    ways: dict[Stream, dict[int, bool]] = {
        "upstream": {n: (n, link.broker) in grudge for n in senders},
        "downstream": {n: (link.broker, n) in grudge for n in senders},
    }
    for stream, is_cut in ways.items():
        if any(is_cut.values()) and not all(is_cut.values()):
            cut, kept = (next(n for n in sorted(is_cut) if is_cut[n] is state) for state in (True, False))
            raise FaultError(
                f"nodes {cut} and {kept} share rack {link.source_rack}, and so the link to node {link.broker}, "
                "which can't be cut for one of them alone: put both in one group"
            )
        if is_cut and all(is_cut.values()):
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
    """Return the groups as node ids; raise FaultError for a member that the cluster doesn't have."""
    members = {*map(str, homes), *homes.values()}
    if unknown := [member for group in groups for member in group if member not in members]:
        raise FaultError(f"the cluster has no node or rack `{unknown[0]}`; {did_you_mean(unknown[0], members)}")
    return [[node for node, rack in homes.items() if str(node) in group or rack in group] for group in groups]


def misgrouped(groups: Sequence[Sequence[str]]) -> str | None:
    """Return why these groups are invalid in any cluster; None if they are valid."""
    members = [member for group in groups for member in group]
    if len(groups) < GROUPS_MIN or not all(groups):
        return "`between` needs two groups or more, and a member in each: like [[1, 2], [3]]"
    if len({member.isdecimal() for member in members}) > 1:
        return "`between` takes node ids or racks, not both: like [[1, 2], [3]] or [[a], [b, c]]"
    twice = next((member for member, count in Counter(members).items() if count > 1), None)
    return f"`{twice}` is in `between` twice: a node belongs to one group" if twice else None


def impossible(groups: Groups, ways: Ways, cluster: "Cluster") -> str | None:
    """Return why the links of this cluster can't separate these groups; None if they can."""
    homes, brokers = cluster.node_racks, cluster.broker_racks
    try:
        streams_of(of_groups(nodes_in(groups, homes), ways), all_links(homes, brokers), homes, brokers)
    except FaultError as error:
        return str(error)
    return None


PROBE_SLACK_MS = 200  # upper bound of a probe's time beyond its limit


async def no_answers(reachable: Sequence[Link], context: InjectionContext) -> Witness:
    """Probe the links that answered before; none may answer now."""
    answers = count_answers(await probe_all(reachable, context))
    asked = answers["answered"] + answers["silent"]
    what = "requests answered over links that keep their connections open and silent until the heal closes them"
    if not asked:
        what = "no link answers by itself, so none can be probed; the toxics read back are the witness"
    return Witness(what, 0, answers["answered"], "answers", asked, ok=not answers["answered"])


class CutInjection(ToxicInjection):
    """One ``timeout`` toxic for each stream of each link. ``reachable``: the links that answered before the fault."""

    measuring_us = (SILENCE_MS + PROBE_SLACK_MS) * 1000

    async def measure(self) -> Witness:
        """Expect silence on all links."""
        return await no_answers(self.reachable, self.context)


class Cut(Fault):
    """Discard all data that is sent over some links, around a rack, or between groups of nodes."""

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
        Ways, Field(description="traffic to cut at a rack, or at the first of two groups: into it, out of it, or both")
    ] = "both"

    @model_validator(mode="after")
    def _one_of_four(self) -> Self:
        if sum(value is not None for value in (self.link, self.rack, self.between, self.shape)) != 1:
            raise _refused(
                'a cut needs either `link: "client(a) <-> broker"`, `rack: b`, `between: [[1, 2], [3]]` or '
                "`shape: ring`; use one of them"
            )
        if self.ways != "both" and self.rack is None and len(self.between or ()) != 2:  # noqa: PLR2004 -- a first group and the rest
            raise _refused(
                "`ways` is for a rack or for two groups, and a link gives it by `->` or `<->`: remove `ways`"
            )
        if self.between is not None and (reason := misgrouped(self.between)):
            raise _refused(reason)
        return self

    def impact(self) -> Impact:
        """Return ``links``: nothing crosses them."""
        return "links"

    def roles(self) -> dict[tuple[str, ...], str]:
        """Return the broker at the link's end, if the link names one."""
        return role_of(self.link) if self.link else {}

    def links(self) -> dict[FieldPath, str]:
        """Return the link."""
        return {("link",): self.link} if self.link else {}

    def racks(self) -> dict[FieldPath, str]:
        """Return the rack to cut off."""
        return {("rack",): self.rack} if self.rack else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw ``order``, which selects a permutation of the racks for a shape; and ``any`` roles."""
        return super().draw(source) | ({"order": source.random()} if self.shape else {})

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield a rack without another one, and shapes and groups that the cluster's links don't allow for."""
        cluster = plan.cluster
        if cluster is None:
            return
        if tuple(cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, so there is nothing to cut it off from: add a rack")
        if self.shape is not None and (reason := _shape_problem(self.shape, cluster)):
            yield Problem(("shape",), reason)
        if self.between is not None and (reason := impossible(self.between, self.ways, cluster)):
            yield Problem(("between",), reason)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the links; raise FaultError if there are none."""
        asked, streams = await self._streams(context.world, draws)
        roles = await described(asked, streams, context.world)
        if self.roles():
            roles["broker"] = streams[0].link.broker
        silence = {stream: toxic_on(stream, context.fault, "timeout", {"timeout": 0}) for stream in streams}
        injection = CutInjection(context, silence, roles)
        injection.reachable = await answering_links((stream.link for stream in streams), context)
        return injection

    async def _streams(self, world: World, draws: Draws) -> tuple[str, tuple[LinkStream, ...]]:
        """Return the request, with the random choices in words, and its streams."""
        if self.rack is not None:
            return f"rack {self.rack}", await links_of_rack(self.rack, self.ways, world)
        if self.link is not None:
            return self.link, await resolve(self.link, world, draws)
        if self.between is not None:
            asked = " | ".join(", ".join(group) for group in self.between)
            return asked, _cut_streams(of_groups(nodes_in(self.between, world.racks()), self.ways), world)
        order = picked(sorted({*world.racks().values()}), draws["order"])
        if self.shape == "ring":
            return f"ring {' > '.join(order)}", _cut_streams(of_ring(order, world.racks()), world)
        few, many = minority(order, world.racks())
        return f"{_joined(few)} | {_joined(many)}", _cut_streams(of_groups([few, many], "both"), world)


def _cut_streams(grudge: Grudge, world: World) -> tuple[LinkStream, ...]:
    return streams_of(grudge, world.links(), world.racks(), brokers_of(world))


def _joined(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _shape_problem(shape: Shape, cluster: "Cluster") -> str | None:
    """Return why the cluster's racks don't allow for this shape."""
    if len(cluster.racks) < RING_RACKS_MIN:
        return f"a {shape} needs {RING_RACKS_MIN} racks, and the cluster has {len(cluster.racks)}: add a rack"
    if shape == "ring" and len({*cluster.racks.values()}) > 1:
        return "a ring of majorities needs as many brokers in each rack: even out `cluster.racks`"
    return None


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
