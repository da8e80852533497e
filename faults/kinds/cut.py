"""``cut``: what is sent over some links vanishes, and nobody is told.

A rack cut off, both ways::

      rack a, rack c            rack b
      clients, nodes  ----x---->  nodes           client, replication, controller links into it
               nodes  <---x-----  clients, nodes  and out of it

It is Toxiproxy's ``timeout`` toxic with a timeout of 0. While it lasts connections stay open and keep silent, new ones
are accepted and as silent; the heal closes them all, so clients must dial again after it (measured: 0.6 s). One way
A -> B is the upstream of A's links into B and the downstream of B's links into A. A link whose broker hangs up by
itself while it is cut (it is down, say) is left out of the witness: its silence would not be ours.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Scene, Stake, Strike
from aftershock.faults.kinds.linked import ToxicStrike, described, role_of, toxic_on
from aftershock.faults.kinds.probing import SILENCE_MS, answer_again, answering, ask_all, counted
from aftershock.faults.links import LinkText, Stretch, Ways, around, resolve
from aftershock.faults.problem import Problem
from aftershock.faults.record import Witness
from aftershock.faults.world import Link

if TYPE_CHECKING:
    from aftershock.faults.draft import Draft

PROBE_SLACK_MS = 200  # what a probe takes beside its limit, generously


class CutStrike(ToxicStrike):
    """One ``timeout`` toxic for each stream of each link. ``reachable``: the links that answered before."""

    measuring_us = (SILENCE_MS + PROBE_SLACK_MS) * 1000
    reachable: Sequence[Link] = ()

    async def measure(self) -> Witness:
        """No link that answered before may answer now."""
        answers = counted(await ask_all(self.reachable, self.scene))
        asked = answers["answered"] + answers["silent"]
        what = "requests answered over links that keep their connections open and silent until the heal closes them"
        if not asked:
            what = "no link answers by itself, so none can be probed; the toxics read back are the witness"
        return Witness(what, 0, answers["answered"], "answers", asked, ok=not answers["answered"])

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await answer_again(self.reachable, self.scene)


class Cut(Fault):
    """Let all that is sent over some links, or into and out of a rack, vanish."""

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
    rack: Annotated[str, Field(description="the rack to cut off from all others, instead of `link`")] | None = None
    ways: Annotated[Ways, Field(description="which way round a rack: into it, out of it, or both")] = "both"

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.link is None) == (self.rack is None):
            sentence = 'a cut needs either `link: "client(a) <-> broker"` or `rack: b`; say one of them'
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        if self.link is not None and self.ways != "both":
            sentence = "`ways` is for a rack; a link says it by `->` or `<->`: take `ways` away"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def roles(self) -> dict[tuple[str, ...], str]:
        """The broker at the link's end, where it names one."""
        return role_of(self.link) if self.link else {}

    def links(self) -> dict[Place, str]:
        """The link."""
        return {("link",): self.link} if self.link else {}

    def racks(self) -> dict[Place, str]:
        """The rack to cut off."""
        return {("rack",): self.rack} if self.rack else {}

    def problems(self, draft: "Draft") -> Iterator[Problem]:
        """A rack that is alone has nothing to be cut off from."""
        if draft.cluster is not None and tuple(draft.cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, so there is nothing to cut it off from: add a rack")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if there is no such link."""
        stretches = await self._stretches(scene, draws)
        roles = await described(self.link or f"rack {self.rack}", stretches, scene.world)
        if self.roles():
            roles["broker"] = stretches[0].link.broker
        silence = {each: toxic_on(each, scene.fault, "timeout", {"timeout": 0}) for each in stretches}
        strike = CutStrike(scene, silence, roles)
        strike.reachable = await answering((stretch.link for stretch in stretches), scene)
        return strike

    async def _stretches(self, scene: Scene, draws: Draws) -> tuple[Stretch, ...]:
        if self.rack is not None:
            return await around(self.rack, self.ways, scene.world)
        return await resolve(self.link or "", scene.world, draws)
