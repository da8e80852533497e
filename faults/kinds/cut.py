"""``cut``: what is sent over some links vanishes, and nobody is told.

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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.faults import grudges
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.groups import Groups, impossible, misgrouped, nodes_in
from aftershock.faults.grudges import Shape
from aftershock.faults.links import LinkText, Stretch, Ways, around, resolve
from aftershock.faults.problem import Problem
from aftershock.faults.record import Witness
from aftershock.faults.roles import brokers_of
from aftershock.faults.strikes.linked import ToxicStrike, described, role_of, toxic_on
from aftershock.faults.strikes.probing import SILENCE_MS, answer_again, answering, ask_all, counted
from aftershock.faults.values import Link
from aftershock.faults.world import World

if TYPE_CHECKING:
    from aftershock.faults.plan import Cluster

PROBE_SLACK_MS = 200  # what a probe takes beside its limit, generously


async def no_answers(reachable: Sequence[Link], scene: Scene) -> Witness:
    """No link that answered before may answer now."""
    answers = counted(await ask_all(reachable, scene))
    asked = answers["answered"] + answers["silent"]
    what = "requests answered over links that keep their connections open and silent until the heal closes them"
    if not asked:
        what = "no link answers by itself, so none can be probed; the toxics read back are the witness"
    return Witness(what, 0, answers["answered"], "answers", asked, ok=not answers["answered"])


class CutStrike(ToxicStrike):
    """One ``timeout`` toxic for each stream of each link. ``reachable``: the links that answered before."""

    measuring_us = (SILENCE_MS + PROBE_SLACK_MS) * 1000
    reachable: Sequence[Link] = ()

    async def measure(self) -> Witness:
        """Whether all is silent."""
        return await no_answers(self.reachable, self.scene)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await answer_again(self.reachable, self.scene)


class Cut(Fault):
    """Let all that is sent over some links, around a rack, or between groups of nodes vanish."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#8c564b", "cut")
    proof: ClassVar[str] = "no answer through any link that answered before; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed, and every link answers again"
    met_by: ClassVar[Among] = "links"
    severs: ClassVar[bool] = True
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("way", "links", by_plan=False),)
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

    def takes(self) -> Takes:
        """All that these links carry."""
        return "links"

    def roles(self) -> dict[tuple[str, ...], str]:
        """The broker at the link's end, where it names one."""
        return role_of(self.link) if self.link else {}

    def links(self) -> dict[Place, str]:
        """The link."""
        return {("link",): self.link} if self.link else {}

    def racks(self) -> dict[Place, str]:
        """The rack to cut off."""
        return {("rack",): self.rack} if self.rack else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``order``: which order of the racks it is, for a shape; and ``any`` roles."""
        return super().draw(source) | ({"order": source.random()} if self.shape else {})

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A rack that is alone has nothing to be cut off from; groups must be such that links are between them."""
        cluster = rest.cluster
        if cluster is None:
            return
        if tuple(cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, so there is nothing to cut it off from: add a rack")
        if self.shape is not None and (why := _shapeless(self.shape, cluster)):
            yield Problem(("shape",), why)
        if self.between is not None and (why := impossible(self.between, self.ways, cluster)):
            yield Problem(("between",), why)

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if there is no such link."""
        asked, stretches = await self._stretches(scene.world, draws)
        roles = await described(asked, stretches, scene.world)
        if self.roles():
            roles["broker"] = stretches[0].link.broker
        silence = {each: toxic_on(each, scene.fault, "timeout", {"timeout": 0}) for each in stretches}
        strike = CutStrike(scene, silence, roles)
        strike.reachable = await answering((stretch.link for stretch in stretches), scene)
        return strike

    async def _stretches(self, world: World, draws: Draws) -> tuple[str, tuple[Stretch, ...]]:
        """What was asked, the random choices in words, and the streams."""
        if self.rack is not None:
            return f"rack {self.rack}", await around(self.rack, self.ways, world)
        if self.link is not None:
            return self.link, await resolve(self.link, world, draws)
        if self.between is not None:
            asked = " | ".join(", ".join(group) for group in self.between)
            return asked, _streams(grudges.of_groups(nodes_in(self.between, world.racks()), self.ways), world)
        order = grudges.picked(sorted({*world.racks().values()}), draws["order"])
        if self.shape == "ring":
            return f"ring {' > '.join(order)}", _streams(grudges.of_ring(order, world.racks()), world)
        few, many = grudges.minority(order, world.racks())
        return f"{_said(few)} | {_said(many)}", _streams(grudges.of_groups([few, many], "both"), world)


def _streams(grudge: grudges.Grudge, world: World) -> tuple[Stretch, ...]:
    return grudges.streams_of(grudge, world.links(), world.racks(), brokers_of(world))


def _said(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _shapeless(shape: Shape, cluster: "Cluster") -> str | None:
    """Why the cluster's racks don't give this shape."""
    if len(cluster.racks) < grudges.RING_RACKS_MIN:
        return f"a {shape} needs {grudges.RING_RACKS_MIN} racks, and the cluster has {len(cluster.racks)}: add a rack"
    if shape == "ring" and len({*cluster.racks.values()}) > 1:
        return "a ring of majorities needs as many brokers in each rack: even out `cluster.racks`"
    return None


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
