"""How a rule of the wire proxy is put in force, watched and taken away.

Rules. The proxy counts what it did; a request that it did something to is one that has met the fault. What the rule
does is also seen from outside where that can be: by a request of our own, which the rule meets because of its client
id, before the fault, at its beginning and right before its end. What looked that way before proves nothing, and isn't
asked for again.

A fault in the protocol: a rule of the wire proxy, and how requests are picked for it.

A plan with one is run on a cluster behind the proxy (``faults/wire_proxy``), which all clients pass, whatever they are
made of. How it is watched stands in ``tampering.py``.
"""

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import AfterValidator, Field, StrictInt, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    Family,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.plan.document import Problem, did_you_mean
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.targets.clients import ClientText, Op, Selector, parse, select_clients
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.messages import API_KEYS
from aftershock.faults.wire_proxy.probe import PROBED, names_topics
from aftershock.faults.wire_proxy.rules import rule_from

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


class TamperInjection(Injection):
    """One rule. ``before``: what a probe showed without it; None where none can show anything."""

    def __init__(self, context: InjectionContext, fault: Probed, rule: Mapping[str, Any], targets: Targets) -> None:
        self.context = context
        self.fault = fault
        self.rule = rule
        self.targets = targets
        self.undo = Undo("remove_rules", {"rules": [context.fault]})
        self.before: Answer | None = None

    async def look_before(self) -> None:
        """Whether a probe can show the fault: somebody answers, and not in a way that looks like it."""
        answer = await self._probe()
        if answer is not None and answer.outcome == "answered" and not self.fault.look(answer, answer, 0).ok:
            self.before = answer

    async def inject(self) -> None:
        """Put the rule in force."""
        await run_to_completion(self.context.world.add_rule(self.rule))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Probed at the beginning and right before the end, its counters read each second in between."""
        clock = self.context.clock
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
        await wait_until(self._still, self.context.clock, GONE_DEADLINE_MS)

    async def _still(self) -> str | None:
        if self.context.fault in await self.context.world.rules():
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
        return (await self.context.world.rules()).get(self.context.fault)

    async def _probe(self) -> Answer | None:
        """The quickest; None if this kind can't be probed, or nobody answers behind the proxy."""
        api, limit_ms = self.fault.probe_api, self.fault.limit_ms
        if api is None:
            return None
        try:
            answers = [
                await self.context.world.probe_rule(self.context.fault, api, limit_ms) for _ in range(self.fault.probes)
            ]
        except FaultError:
            return None
        return min(answers, key=lambda answer: answer.ms)


CHANCES = 1_024  # how many draws there are before they are gone through again
GRAMMAR = "Kafka's name of an API, like Produce, Fetch or OffsetCommit"


def _known(api: str) -> str:
    if api not in API_KEYS:
        sentence = f"Kafka has no API `{api}`; {did_you_mean(api, API_KEYS)}"
        raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
    return api


Api = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "description": GRAMMAR})]


class TamperFault(Fault):
    """A rule of the wire proxy, and which requests it is for: those that are all that is said here."""

    family: ClassVar[Family] = "protocol"
    band: ClassVar[Band]
    exposure_target: ClassVar[TargetKind] = "requests"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    probes: ClassVar[int] = 1
    """How often one is sent each time, the quickest being the one that counts: a busy host only adds."""
    allowance_ms: ClassVar[int] = 1_500  # a rule goes on and off in some ms; a probe takes as long as its rule makes it
    topic: Annotated[str, Field(description="only requests that name it")] | None = None
    partition: Annotated[StrictInt, Field(ge=0, description="and this one of its partitions")] | None = None
    client: ClientText | None = None
    op: Op | None = None
    client_id: (
        Annotated[str, Field(min_length=1, max_length=249, description="of a client that is no arm's")] | None
    ) = None
    nth: Annotated[StrictInt, Field(ge=1, description="only this one of them, counted from inject")] | None = None
    probability: Annotated[float, Field(gt=0, lt=1, description="of each of them, drawn by the compiler")] | None = None

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if self.partition is not None and self.topic is None:
            raise _refused("`partition` needs a `topic`: say of which")
        if self.op is not None and self.client is None:
            raise _refused("`op` needs a `client`: say whose")
        for one, other in (("nth", "probability"), ("client", "client_id")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise _refused(f"`{one}` and `{other}` are two ways to pick: say one of them")
        return self

    @property
    def named_api(self) -> str | None:
        """The API whose requests are meant; None: those of every one."""
        return getattr(self, "api", None)

    @property
    def probe_api(self) -> str | None:
        """The API that a probe is sent of; None where a probe can't show this fault."""
        return self.named_api if self.named_api in PROBED else None

    @property
    def probing_ms(self) -> int:
        """How long a probe takes, as a rule."""
        return SLACK_MS

    @property
    def limit_ms(self) -> int:
        """How long a probe waits for its answer."""
        return self.probing_ms + ROOM_MS

    @abstractmethod
    def deed(self, draws: Draws) -> dict[str, Any]:
        """What the rule does, as ``wire_proxy/rule.py`` has it: ``do`` and its own fields."""

    @abstractmethod
    def look(self, before: Answer, now: Answer, probed: int) -> Look:
        """What a probe shows; ``probed``: how often the proxy says it has done something to one."""

    def topics(self) -> dict[FieldPath, str]:
        """The topic, where it names one."""
        return {("topic",): self.topic} if self.topic else {}

    def clients(self) -> dict[FieldPath, str]:
        """The arm, where it names one, and the operation."""
        return {("client",): f"{self.client} {self.op}" if self.op else self.client} if self.client else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``chances``: a 0 or 1 for each request in turn, where there is a probability; at least one is hit."""
        draws = super().draw(source)
        if self.probability is not None:
            hits = [source.random() < self.probability for _ in range(CHANCES)]
            hits[source.randrange(CHANCES)] |= not any(hits)
            draws["chances"] = "".join("1" if hit else "0" for hit in hits)
        return draws

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """A partition that the topic hasn't got, a topic that no such request names."""
        if self.topic is not None and self.named_api is not None and not names_topics(self.named_api):
            yield Problem(("topic",), f"requests of {self.named_api} name no topic: take this away")
        for topic in plan.topics.values():
            if topic.name == self.topic and self.partition is not None and self.partition >= topic.partitions:
                sentence = f"{self.topic} has no partition {self.partition}: its partitions are 0 to "
                yield Problem(("partition",), f"{sentence}{topic.partitions - 1}")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if no proxy stands before the cluster, or there is no such topic or client."""
        await context.world.rules()
        workers = await self._workers(context)
        rule = {"name": context.fault, "api": self.named_api, **await self._topic(context), "partition": self.partition}
        clients = workers or ([self.client_id] if self.client_id else [])
        rule |= {"clients": clients, "nth": self.nth}
        rule |= {"chances": draws.get("chances", ""), **await self.resolved(context, draws), **self.deed(draws)}
        said = rule_from(rule).as_json()
        targets = Targets(topics=tuple(self.topics().values()), clients=tuple(clients), roles={"rule": said})
        injection = TamperInjection(context, self, said, targets)
        await injection.look_before()
        return injection

    async def resolved(self, context: InjectionContext, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- most name nobody else
        """What of the rule the cluster must be asked for."""
        return {}

    async def _workers(self, context: InjectionContext) -> list[str]:
        if self.client is None:
            return []
        selector: Selector = parse(next(iter(self.clients().values())))
        return [worker.name for worker in select_clients(selector, await context.world.clients())]

    async def _topic(self, context: InjectionContext) -> dict[str, Any]:
        if self.topic is None:
            return {}
        ids = await context.world.topic_ids()
        if self.topic not in ids:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        return {"topic": self.topic, "topic_id": ids[self.topic]}


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
