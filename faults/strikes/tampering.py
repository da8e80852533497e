"""How a rule of the wire proxy is put in force, watched and taken away.

Rules. The proxy counts what it did; a request that it did something to is one that has met the fault. What the rule
does is also seen from outside where that can be: by a request of our own, which the rule meets because of its client
id, before the fault, at its beginning and right before its end. What looked that way before proves nothing, and isn't
asked for again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Report, Scene, Strike
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.values import Answer
from aftershock.faults.waiting import to_the_end, until

SILENCE_MS = 1_000  # how long a probe waits for an answer that must not come
SLACK_MS = 300  # what a probe takes beside what the rule makes of it, as a rule
ROOM_MS = 2_000  # what it may take beyond that on a busy host
GONE_DEADLINE_MS = 10_000


class Look(NamedTuple):
    """What a probe showed: ``observed`` against ``asked`` in ``unit``, and whether that is the fault."""

    what: str
    asked: float
    observed: float
    unit: str
    ok: bool


class Probed(Protocol):
    """A fault, as far as a probe may show it."""

    @property
    def probes(self) -> int:
        """How often one is sent each time, the quickest being the one that counts: a busy host only adds."""

    @property
    def probe_api(self) -> str | None:
        """The API that it is sent of; None where a probe can't show this fault."""

    @property
    def probing_ms(self) -> int:
        """How long one takes, as a rule."""

    @property
    def limit_ms(self) -> int:
        """How long one waits for its answer."""

    def look(self, before: Answer, now: Answer, probed: int) -> Look:
        """What one shows; ``probed``: how often the proxy says it has done something to one."""


class TamperStrike(Strike):
    """One rule. ``before``: what a probe showed without it; None where none can show anything."""

    def __init__(self, scene: Scene, fault: Probed, rule: Mapping[str, Any], targets: Targets) -> None:
        self.scene = scene
        self.fault = fault
        self.rule = rule
        self.targets = targets
        self.undo = Undo("remove_rules", {"rules": [scene.fault]})
        self.before: Answer | None = None

    async def look_before(self) -> None:
        """Whether a probe can show the fault: somebody answers, and not in a way that looks like it."""
        answer = await self._probe()
        if answer is not None and answer.outcome == "answered" and not self.fault.look(answer, answer, 0).ok:
            self.before = answer

    async def inject(self) -> None:
        """Put the rule in force."""
        await to_the_end(self.scene.world.add_rule(self.rule))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Probed at the beginning and right before the end, its counters read each second in between."""
        clock = self.scene.clock
        until_us = until_us or clock.now_us()
        last_us = until_us - (self.fault.probes * self.fault.probing_ms if self.before else 0) * 1000
        await self._measure(report)
        again = clock.now_us() < last_us
        while (now_us := clock.now_us()) < last_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, last_us))
            report(await self._counted())
        if again:
            await self._measure(report)
        await clock.sleep_until_us(until_us)
        report(await self._counted())

    async def confirm_healed(self) -> None:
        """The proxy has no such rule any more, and a probe shows nothing of it."""
        await until(self._still, self.scene.clock, GONE_DEADLINE_MS)

    async def _still(self) -> str | None:
        if self.scene.fault in await self.scene.world.rules():
            return "the proxy still has the rule"
        answer = await self._probe() if self.before else None
        if self.before is None or answer is None:
            return None
        look = self.fault.look(self.before, answer, 0)
        return f"a probe still shows it: {look.what}" if look.ok else None

    async def _measure(self, report: Report) -> None:
        if self.before is None:
            return
        probed = (await self._counters() or {}).get("probed", 0)
        answer = await self._probe()
        if answer is None:
            return  # nobody answers behind the proxy: another fault's doing, and its counters remain
        probed = (await self._counters() or {}).get("probed", 0) - probed
        look = self.fault.look(self.before, answer, probed)
        report(Witness(look.what, look.asked, round(look.observed, 3), look.unit, 1, look.ok))

    async def _counted(self) -> Witness:
        """The rule is in force, and this is how many requests have met it."""
        counters = await self._counters()
        if counters is None:
            return Witness(
                "the rule, read back from the proxy, which has none of that name", 1, 0, "rules", 1, ok=False
            )
        what = f"requests that met it, of {counters['matched']} it is about, as the proxy counts them"
        if counters["untouched"]:
            what += f"; {counters['untouched']} could not be read, and passed as they were"
        return Witness(what, 0, counters["hit"], "requests", 1, ok=not counters["untouched"])

    async def _counters(self) -> Mapping[str, int] | None:
        return (await self.scene.world.rules()).get(self.scene.fault)

    async def _probe(self) -> Answer | None:
        """The quickest; None if this kind can't be probed, or nobody answers behind the proxy."""
        api, limit_ms = self.fault.probe_api, self.fault.limit_ms
        if api is None:
            return None
        try:
            answers = [
                await self.scene.world.probe_rule(self.scene.fault, api, limit_ms) for _ in range(self.fault.probes)
            ]
        except FaultError:
            return None
        return min(answers, key=lambda answer: answer.ms)
