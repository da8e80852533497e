"""``pause``: freeze one node with its sockets open, so that nothing is refused and nothing is answered.

The difference from ``kill`` is what clients see: no reset, only silence until their own timeouts end it.
"""

from typing import Any, ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Band, Draws, Fault, Report, Scene, Strike
from aftershock.faults.kinds.victim import duties, in_service, require_running
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.roles import RoleText, resolve
from aftershock.faults.waiting import to_the_end, until, within
from aftershock.faults.world import BrokerId, Link

SILENCE_MS = 1_000  # how long a probe waits for an answer that must not come
BACK_DEADLINE_MS = 60_000


class Pause(Fault):
    """Freeze a node for a while."""

    band: ClassVar[Band] = Band("#9467bd", "pause")
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 4_000  # a thawed broker must first learn that it was fenced

    kind: Literal["pause"] = "pause"
    broker: RoleText

    def roles(self) -> dict[tuple[str, ...], str]:
        """The victim."""
        return {("broker",): self.broker}

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the victim doesn't run."""
        victim = await resolve(self.broker, scene.world, draws, "broker")
        await require_running(victim, scene.world)
        return PauseStrike(scene, victim, {"asked": self.broker, **await duties(victim, scene.world)})


class PauseStrike(Strike):
    """One node, frozen."""

    def __init__(self, scene: Scene, victim: BrokerId, roles: dict[str, Any]) -> None:
        self.scene = scene
        self.victim = victim
        self.targets = Targets(brokers=(victim,), roles=roles)
        self.undo = Undo("resume", {"broker": victim})

    async def inject(self) -> None:
        """Freeze it."""
        await to_the_end(self.scene.world.pause(self.victim))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """It must read back as paused all the time, and once be seen not to answer."""
        report(await self._frozen())
        link = self._way_in()
        if link is not None:
            silent = await self._silent(link)
            if until_us is None or self.scene.clock.now_us() < until_us:
                report(silent)
        while until_us is not None and (now_us := self.scene.clock.now_us()) < until_us:
            await self.scene.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self._frozen())

    async def confirm_healed(self) -> None:
        """Registered again, and in the ISR of every partition it holds."""
        try:
            await until(lambda: in_service(self.victim, self.scene.world), self.scene.clock, BACK_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {self.victim} did not come back: {error}; look at its log") from error

    def _way_in(self) -> Link | None:
        ways = (link for link in self.scene.world.links() if link.channel == "client" and link.broker == self.victim)
        return next(ways, None)

    async def _frozen(self) -> Witness:
        frozen = await self.scene.world.state(self.victim) == "paused"
        what = f"node {self.victim}'s container, read back, is paused"
        return Witness(what, asked=1, observed=float(frozen), unit="reads", n=1, ok=frozen)

    async def _silent(self, link: Link) -> Witness:
        try:
            answer_ms = await within(self.scene.world.probe_ms(link), self.scene.clock, SILENCE_MS)
        except FaultError:
            answer_ms = None
        what = f"a request through {link.proxy} gets no answer"
        return Witness(what, asked=0, observed=float(answer_ms is not None), unit="answers", n=1, ok=answer_ms is None)
