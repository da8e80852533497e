"""Fault ``cut``, which discards all data sent over some links, while connections stay open.

``cut`` is Toxiproxy's ``timeout`` toxic with a timeout of 0. Connections stay open without traffic (half-open, as after
a silent network failure), so clients notice a cut only by their own timeouts. The heal closes all connections over the
links that were cut, so clients must reconnect (0.6 s, measured).

``between`` cuts groups of nodes off from each other; ``shape`` cuts a drawn minority of the racks off from all other
racks, or every rack off from all but its neighbours on a drawn ring. Under ``between`` and ``shape`` clients keep all
their links, whereas ``rack`` cuts a rack off together with its clients.

A grudge (Jepsen's term) is the set of (from, to) pairs of nodes that a cut separates. Data from a node s to a node t
goes upstream over the link of s's rack into t, and downstream over the link of t's rack into s. All nodes of a rack
(all its brokers, for replication) send over the same link, so a cut separates either all nodes of a rack from another
node, or none. Nodes of one rack have no link between them and can't be separated.

In an attached cluster whose brokers run in containers of this host, a link has no proxy before it, and a cut is a rule
of the kernel in the network namespaces of the containers, which drops packets. There every two brokers have links of
their own, so any brokers can be separated, and ``broker`` cuts one broker off from everything, its clients and other
programs included. Connections stay open, and go on after the heal.

A ring is Jepsen's "majorities ring", in which every rack receives data only from a majority of the racks, namely itself
and the racks nearest to it on the ring, and no two racks receive data from the same majority. In a ring of three racks
each pair of racks is cut in one direction; as Kafka sends requests and responses over one connection, no two of the
three racks can work together.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    OnLink,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import (
    LinkInjection,
    ToxicInjection,
    link_roles,
    link_targets,
    role_at_end,
    toxic_on,
)
from aftershock.faults.kinds.probing import SILENCE_US, answering_links, silence_witness
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem, did_you_mean
from aftershock.faults.targets.links import LinkStream, LinkText, Ways, links_of_rack, resolve
from aftershock.faults.targets.roles import RoleText, brokers_of
from aftershock.faults.targets.roles import resolve as resolve_role
from aftershock.faults.targets.values import BrokerId, Channel, Link, PacketChange, Stream
from aftershock.faults.targets.world import World

Grudge = frozenset[tuple[int, int]]
Shape = Literal["minority", "ring"]
Homes = Mapping[Any, str]  # the rack of each node; a mapping's keys are invariant, and `BrokerId` is an int
RING_RACKS_MIN = 3
T = TypeVar("T")


def permutation(items: Iterable[T], drawn: float, unlike: Sequence[T] = ()) -> tuple[T, ...]:
    """Return the permutation of the items that the number ``drawn``, in [0, 1), selects, but never ``unlike``."""
    orders = [order for order in permutations(items) if order != unlike]
    return orders[int(drawn * len(orders))]


def of_groups(groups: Sequence[Iterable[int]], ways: Ways) -> Grudge:
    """Return the grudge that separates all groups, or only cuts data into or out of the first group."""
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    both = {(s, t) for s in group_of for t in group_of if group_of[s] != group_of[t]}
    outgoing = {(s, t) for s, t in both if group_of[s] == 0}
    incoming = {(s, t) for s, t in both if group_of[t] == 0}
    return frozenset({"both": both, "in": incoming, "out": outgoing}[ways])


def of_ring(order: Sequence[str], homes: Homes) -> Grudge:
    """Return the grudge by which each rack receives data only from the majority of racks nearest to it on the ring."""
    majority = len(order) // 2 + 1
    heard = {
        order[(first + majority // 2) % len(order)]: {order[(first + i) % len(order)] for i in range(majority)}
        for first in range(len(order))
    }
    return frozenset((s, t) for s in homes for t in homes if homes[s] not in heard[homes[t]])


def minority(order: Sequence[str], homes: Homes) -> list[list[int]]:
    """Return two groups of nodes, those in the first racks of ``order``, fewer than half, and all other nodes."""
    first = order[: (len(order) - 1) // 2]
    return [[n for n in homes if homes[n] in first], [n for n in homes if homes[n] not in first]]


def streams_of(grudge: Grudge, links: Iterable[Link], homes: Homes, brokers: Iterable[int]) -> tuple[LinkStream, ...]:
    """Return the streams to cut for a grudge, sorted by proxy and stream; raise FaultError if there is no such cut."""
    senders = {"replication": frozenset(brokers), "controller": frozenset(homes)}
    links = tuple(links)
    pairs = {(link.source, link.broker) for link in links if link.source is not None}
    if pairs and (unnamed := sorted((s, t) for s, t in grudge if (s, t) not in pairs)):
        raise FaultError(
            f"the containers of nodes {unnamed[0][0]} and {unnamed[0][1]} are not both named under `attach`, so they "
            "can't be separated: name them, or cut one of them off with `broker`"
        )
    if not pairs and (impossible := sorted((s, t) for s, t in grudge if homes[s] == homes[t])):
        first, second = impossible[0]
        raise FaultError(
            f"nodes {first} and {second} share rack {homes[first]}, and nodes of one rack have no link between them: "
            "put them in one group"
        )
    chosen: list[LinkStream] = []
    for link in links:
        if link.channel == "client":
            continue
        if link.source is not None:
            if (link.source, link.broker) in grudge:  # the other way is the upstream of the link back
                chosen.append(LinkStream(link, "upstream"))
            continue
        sources = [node for node in sorted(senders[link.channel]) if homes[node] == link.source_rack]
        ways: dict[Stream, dict[int, bool]] = {
            "upstream": {node: (node, link.broker) in grudge for node in sources},
            "downstream": {node: (link.broker, node) in grudge for node in sources},
        }
        for stream, is_cut in ways.items():
            if not any(is_cut.values()):
                continue
            if not all(is_cut.values()):
                cut, connected = (next(node for node in sources if is_cut[node] is state) for state in (True, False))
                raise FaultError(
                    f"nodes {cut} and {connected} are both in rack {link.source_rack} and use the same link to node "
                    f"{link.broker}, so it can't be cut for only one of them: put both in one group"
                )
            chosen.append(LinkStream(link, stream))
    if not chosen:
        raise FaultError("no link of the cluster is between the groups of `between`, so there is nothing to cut")
    return tuple(sorted(chosen, key=lambda stream: (stream.link.proxy, stream.stream)))


def all_links(homes: Homes, brokers: Iterable[int]) -> Iterator[Link]:
    """Yield the links between the nodes of a planned cluster; a combined node is a broker and a controller."""
    voters = {*homes} - {*brokers} or {*homes}
    ends: list[tuple[Channel, int]] = [("replication", broker) for broker in sorted(brokers)]
    ends += [("controller", voter) for voter in sorted(voters)]
    for channel, target in ends:
        for rack in sorted({*homes.values()} - {homes[target]}):
            yield Link(f"{channel}_{rack}-k{target}", channel, rack, BrokerId(target))


_SCHEMA = {
    "type": "array",
    "items": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "description": "groups to cut off from each other, of node ids or of racks: [[1, 2], [3]] or [[a], [b, c]]",
}
GROUPS_MIN = 2


Member = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Groups = Annotated[tuple[tuple[Member, ...], ...], WithJsonSchema(_SCHEMA)]


def nodes_in(groups: Groups, homes: Mapping[Any, str]) -> list[list[int]]:
    """Return the groups as node ids; raise FaultError for a group member that the cluster doesn't have."""
    members = {*map(str, homes), *homes.values()}
    if unknown := [member for group in groups for member in group if member not in members]:
        raise FaultError(f"the cluster has no node or rack `{unknown[0]}`; {did_you_mean(unknown[0], members)}")
    return [[node for node, rack in homes.items() if str(node) in group or rack in group] for group in groups]


def groups_problem(groups: Sequence[Sequence[str]]) -> str | None:
    """Return why the groups of ``between`` are invalid in every cluster; None if some cluster may have such groups."""
    members = [member for group in groups for member in group]
    if len(groups) < GROUPS_MIN or not all(groups):
        return "`between` needs two or more groups of one or more members: like [[1, 2], [3]]"
    if len({member.isdecimal() for member in members}) > 1:
        return "`between` takes node ids or racks, not both: like [[1, 2], [3]] or [[a], [b, c]]"
    twice = next((member for member, count in Counter(members).items() if count > 1), None)
    return f"`{twice}` is in `between` twice: list each node or rack in one group only" if twice else None


class CutInjection(ToxicInjection):
    measuring_us = SILENCE_US

    async def measure(self) -> Witness:
        return await silence_witness(self.reachable, self.context)


@dataclass(eq=False)
class PacketCutInjection(LinkInjection):
    """Injection that drops all packets of ``streams``, or all packets of the container of ``isolated``."""

    streams: Sequence[LinkStream]
    isolated: BrokerId | None
    measuring_us = SILENCE_US

    async def inject(self) -> None:
        world, fault = self.context.world, self.context.fault
        if self.isolated is not None:
            await run_to_completion(world.isolate(fault, self.isolated))
        else:
            names = [(stream.link.proxy, stream.stream) for stream in self.streams]
            await run_to_completion(world.change_packets(fault, names, PacketChange("drop", 1.0)))

    async def measure(self) -> Witness:
        return await silence_witness(self.reachable, self.context)

    async def read_back(self) -> Witness:
        present = await self.context.world.has_packet_rules(self.context.fault)
        return Witness("rules of the fault in the kernel", 1, float(present), "reads", 1, ok=present)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report also, at the end, how many packets were dropped: none is lost where the brokers use another way."""
        await super().hold(until_us, report)
        counts = await self.context.world.packet_counts(self.context.fault)
        what = "packets that the rules of the fault dropped"
        report(Witness(what, 1, counts.changed, "packets", counts.seen, ok=counts.changed > 0))


class Cut(Fault):
    """Discard all data on some links, at a rack, or between groups of nodes; connections stay open and silent."""

    family = "rack and group"
    unavailable = "links"
    band = Band("#8c564b", "cut")
    proof = (
        "No link that answered before the fault answers a request. Toxiproxy lists the toxics (read each second); in "
        "containers of an attached cluster, the kernel lists the rules, and counts the packets that they dropped."
    )
    remedy = (
        "The toxics are removed, which closes every affected connection, or the rules of the kernel. Every link "
        "answers new connections."
    )
    exposure_target = "links"
    drops_traffic = True
    exclusive_resources = (ExclusiveResource("traffic", "links", by_plan=False),)
    for_rule = "needed"
    allowance_ms = 2_000  # toxics go on and off in 30 ms; connections are made anew within 0.6 s

    drawn = (
        "{link: CLIENT_LINK}",
        "{link: NODE_LINK}",
        "{rack: RACK, ways: [both, in, out]}",
        "{shape: [minority, ring]}",
    )
    on_link = OnLink("half-open: silent until the heal closes them", "accepted, silent", "lost", "request timeouts")
    kind: Literal["cut"] = "cut"
    link: LinkText | None = None
    rack: str | None = Field(default=None, description="the rack that is cut off from all other racks")
    between: Groups | None = None
    shape: Shape | None = Field(
        default=None,
        description="`minority`: cut off a random minority of racks; `ring`: each rack reaches only its neighbours",
    )
    broker: RoleText | None = Field(
        default=None,
        description="the broker that is cut off from everything; only in a container of an attached cluster",
    )
    ways: Annotated[
        Ways, Field(description="direction of the cut traffic, as seen from `rack` or from the first of two groups")
    ] = "both"

    @model_validator(mode="after")
    def _one_of_five(self) -> Self:
        if sum(value is not None for value in (self.link, self.rack, self.between, self.shape, self.broker)) != 1:
            raise ValueError(
                'a cut needs either `link: "client(a) <-> broker"`, `rack: b`, `between: [[1, 2], [3]]`, '
                "`shape: ring` or `broker: 1`; use one of them"
            )
        if self.ways != "both" and self.rack is None and len(self.between or ()) != GROUPS_MIN:
            raise ValueError(
                "`ways` only applies to `rack` or to two groups of `between`: remove `ways` (a `link` gives its "
                "direction by `->` or `<->`)"
            )
        if self.between is not None and (reason := groups_problem(self.between)):
            raise ValueError(reason)
        return self

    def roles(self) -> dict[FieldPath, str]:
        return role_at_end(self.link) if self.link else super().roles()

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, including ``order``, which selects the order of the racks of a ``shape``."""
        return super().draw(source) | ({"order": source.random()} if self.shape else {})

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        cluster = plan.cluster
        if cluster is None:
            return
        homes, racks = cluster.node_racks, len(cluster.racks)
        if self.broker is not None:
            yield Problem(
                ("broker",),
                "only a container of an attached cluster can be cut off by itself: use `rack` or `between`",
            )
        if tuple(cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the only rack of the cluster can't be cut off from other racks: add a rack")
        if self.shape is not None and racks < RING_RACKS_MIN:
            reason = f"`shape: {self.shape}` needs {RING_RACKS_MIN} racks, and the cluster has {racks}: add racks"
            yield Problem(("shape",), reason)
        elif self.shape == "ring" and len({*cluster.racks.values()}) > 1:
            reason = "`shape: ring` needs the same number of brokers in each rack: change `cluster.racks`"
            yield Problem(("shape",), reason)
        if self.between is not None:
            try:
                grudge = of_groups(nodes_in(self.between, homes), self.ways)
                streams_of(grudge, all_links(homes, cluster.broker_racks), homes, cluster.broker_racks)
            except FaultError as error:
                yield Problem(("between",), str(error))

    async def select(self, world: World, draws: Draws) -> tuple[Sequence[LinkStream], str]:
        """Return the link streams to cut, and what the plan asks for in words."""
        homes = world.racks()
        if self.rack is not None:
            asked, streams = f"rack {self.rack}", await links_of_rack(self.rack, self.ways, world)
        elif self.link is not None:
            asked, streams = self.link, await resolve(self.link, world, draws, by_packets=True)
        elif self.broker is not None:
            asked, broker = f"broker {self.broker}", await resolve_role(self.broker, world, draws, "broker")
            links = [link for link in world.links() if broker in (link.broker, link.source)]
            streams = tuple(LinkStream(link, stream) for link in links for stream in ("upstream", "downstream"))
            if not streams or not world.has_packet_control():
                raise FaultError(f"broker {broker} has no container under `attach`, so it can't be cut off by itself")
        else:
            if self.between is not None:
                asked = " | ".join(", ".join(group) for group in self.between)
                grudge = of_groups(nodes_in(self.between, homes), self.ways)
            elif self.shape == "ring":
                order = permutation(sorted({*homes.values()}), draws["order"])
                asked, grudge = f"ring {' > '.join(order)}", of_ring(order, homes)
            else:
                groups = minority(permutation(sorted({*homes.values()}), draws["order"]), homes)
                asked = " | ".join(", ".join(map(str, sorted(group))) for group in groups)
                grudge = of_groups(groups, "both")
            streams = streams_of(grudge, world.links(), homes, brokers_of(world))
        return streams, asked

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams, asked = await self.select(context.world, draws)
        roles = await link_roles(asked, streams, context.world)
        if self.broker is not None:
            roles["broker"] = await resolve_role(self.broker, context.world, draws, "broker")
        elif self.roles():
            roles["broker"] = streams[0].link.broker
        reachable = await answering_links((stream.link for stream in streams), context)
        if self.broker is not None or not all(context.world.takes_toxics(stream.link) for stream in streams):
            isolated = BrokerId(roles["broker"]) if self.broker is not None else None
            undo = Undo("remove_packet_rules", {"fault": context.fault})
            cut = PacketCutInjection(context, link_targets(streams, roles), streams, isolated, undo=undo)
            cut.reachable = reachable
            return cut
        toxics = {stream: toxic_on(stream, context.fault, "timeout", {"timeout": 0}) for stream in streams}
        injection = CutInjection(context, link_targets(streams, roles), toxics)
        injection.reachable = reachable
        return injection
