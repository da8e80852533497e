"""Base classes of the protocol faults, each of which is a rule of the wire proxy.

In a plan with a protocol fault, every client connects through the wire proxy (``faults/wire_proxy``), which counts the
requests that it alters. Before the fault, at the beginning of the fault and right before its end, the harness sends
probes, requests that the rule selects by their client id. If the probe before the fault looks like the fault already,
or is not answered, no later probes are sent.
"""

import random
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, WithJsonSchema, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.sections.document import Problem, did_you_mean
from aftershock.faults.targets.clients import ClientText, Op, select_clients, with_op
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.rules import API_KEYS, PROBED, rule_from

SILENCE_MS = 1_000  # time that a probe waits for an answer that must not come
SLACK_MS = 300  # usual time of a probe beyond the rule's effect
ROOM_MS = 2_000  # further time allowed on a busy host
HEALED_DEADLINE_MS = 10_000


@dataclass(eq=False)
class TamperInjection(Injection):
    """One rule of the wire proxy; ``before`` is the response to a probe before the fault, if probes are possible."""

    fault: "TamperFault"
    rule: Mapping[str, Any]
    before: Answer | None = None

    async def measure_before(self) -> None:
        """Send a probe before the fault, and set ``before`` unless the response looks like the fault already."""
        answer = await self._probe()
        if answer is not None and answer.outcome == "answered" and not self.fault.interpret_probe(answer, answer, 0).ok:
            self.before = answer

    async def inject(self) -> None:
        await run_to_completion(self.context.world.add_rule(self.rule))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Probe at the beginning and right before the end of the fault; read the rule's counters each second."""
        clock = self.context.clock
        until_us = until_us or clock.now_us()
        last_us = until_us - (self.fault.probes * self.fault.probing_ms if self.before else 0) * 1000
        await self._measure(report)
        again = clock.now_us() < last_us
        while (now_us := clock.now_us()) < last_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, last_us))
            report(await self._rule_witness())
        if again:
            await self._measure(report)
        await clock.sleep_until_us(until_us)
        report(await self._rule_witness(last=True))

    async def confirm_healed(self) -> None:
        """Wait until a probe no longer shows the fault."""
        before = self.before
        if before is None:
            return

        async def remaining() -> str | None:
            answer = await self._probe()
            witness = self.fault.interpret_probe(before, answer, 0) if answer else None
            return f"a probe still shows the fault: {witness.what}" if witness and witness.ok else None

        await wait_until(remaining, self.context.clock, HEALED_DEADLINE_MS)

    async def _measure(self, report: Report) -> None:
        if self.before is None:
            return
        probed = (await self._counters() or {}).get("probed", 0)
        answer = await self._probe()
        if answer is None:
            return  # no broker answers behind the proxy, because of another fault; the counters remain as witness
        probed = (await self._counters() or {}).get("probed", 0) - probed
        report(self.fault.interpret_probe(self.before, answer, probed))

    async def _rule_witness(self, *, last: bool = False) -> Witness:
        """Return a witness that the wire proxy has the rule, with the number of requests that the rule altered."""
        counters = await self._counters()
        if counters is None:
            return Witness("rules of the fault that are in force in the wire proxy", 1, 0, "rules", 1, ok=False)
        return self.fault.interpret_counters(counters, last=last)

    async def _counters(self) -> Mapping[str, int] | None:
        return (await self.context.world.rules()).get(self.context.fault)

    async def _probe(self) -> Answer | None:
        """Return the fastest response to a probe; None if the fault can't be probed or no broker answers it."""
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


def undecoded(counters: Mapping[str, int]) -> str:
    """Return the end of a witness's sentence about requests that the wire proxy could not decode, if there are any."""
    count = counters["untouched"]
    return f"; {count} requests could not be decoded and passed unchanged" if count else ""


CHANCES = 1_024  # number of draws before the sequence repeats
GRAMMAR = "Kafka's name of an API, like Produce, Fetch or OffsetCommit"


def known_to_kafka(noun: str, name: str, names: Collection[str]) -> str:
    """Return the name; raise ValueError with the nearest valid name if Kafka doesn't have it."""
    if name not in names:
        raise ValueError(f"Kafka has no {noun} `{name}`; {did_you_mean(name, names)}")
    return name


Api = Annotated[
    str,
    AfterValidator(lambda name: known_to_kafka("API", name, API_KEYS)),
    WithJsonSchema({"type": "string", "description": GRAMMAR}),
]


class TamperFault(Fault):
    """Base of faults that consist of a rule of the wire proxy, for requests that match all given parameters."""

    family = "protocol"
    unavailable: ClassVar[Impact] = "requests"
    needs = ("wire_proxy",)
    band: ClassVar[Band]
    exposure_target = "requests"
    for_rule = "needed"
    rule_fields: ClassVar[tuple[str, ...]] = ()
    """Parameters that the wire proxy's rule has under the same name."""
    probes: ClassVar[int] = 1
    """Number of probes per measurement; the fastest probe counts, because a busy host only adds time."""
    allowance_ms = 1_500  # a rule is added and removed in some ms; a probe takes as long as its rule makes it
    topic: str | None = Field(
        default=None, description="topic of the affected requests: only requests that name this topic are affected"
    )
    partition: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="partition of `topic`: only requests that name this partition are affected"
    )
    client: ClientText | None = None
    op: Op | None = None
    client_id: Annotated[str, Field(min_length=1, max_length=249)] | None = Field(
        default=None, description="client.id of the affected requests, for a client that is not part of the plan"
    )
    nth: Annotated[StrictInt, Field(ge=1)] | None = Field(
        default=None, description="affect only the n-th matching request, counted from the injection"
    )
    probability: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="share of the matching requests to which the rule applies, drawn by the compiler"
    )
    per: Literal["fault", "client"] = Field(
        default="fault",
        description="`client` counts matching requests (`nth`, `probability`, `answers`) for each client.id by itself",
    )

    @model_validator(mode="after")
    def _consistent_selectors(self) -> Self:
        if self.partition is not None and self.topic is None:
            raise ValueError("`partition` needs a `topic`: add the topic")
        if self.op is not None and self.client is None:
            raise ValueError("`op` needs a `client`: add the client, or remove `op`")
        for first, second in (("nth", "probability"), ("client", "client_id")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"the parameters `{first}` and `{second}` exclude each other: remove either")
        return self

    @property
    def named_api(self) -> str | None:
        """Kafka API whose requests the fault affects; None if it affects the requests of every API."""
        return getattr(self, "api", None)

    @property
    def probe_api(self) -> str | None:
        """Kafka API that the harness requests in a probe; None if no probe can show the fault."""
        return self.named_api if self.named_api in PROBED else None

    @property
    def probing_ms(self) -> int:
        """Usual duration in ms of one probe while the fault is in force."""
        return SLACK_MS

    @property
    def limit_ms(self) -> int:
        """Time in ms that one probe waits for a response at most."""
        return self.probing_ms + ROOM_MS

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- most kinds draw nothing of their own
        """Return the field ``do`` of the wire proxy's rule and the fields that ``do`` needs (``rules.py``)."""
        return {"do": self.kind} | {name: getattr(self, name) for name in self.rule_fields}

    @abstractmethod
    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:
        """Return a witness from the responses to probes before and during the fault.

        ``probed`` is the wire proxy's own count of the probes that it has altered.
        """

    def interpret_counters(self, counters: Mapping[str, int], *, last: bool) -> Witness:  # noqa: ARG002 -- for some kinds
        """Return a witness from the counters of the wire proxy's rule; ``last`` is True right before the heal."""
        what = f"requests that the wire proxy has altered, of {counters['matched']} that match the fault's rule"
        return Witness(f"{what}{undecoded(counters)}", 0, counters["hit"], "requests", 1, ok=not counters["untouched"])

    def clients(self) -> dict[FieldPath, str]:
        return {("client",): with_op(self.client, self.op)} if self.client else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, including a digit for each request, 1 if the rule applies to the request."""
        draws = super().draw(source)
        if self.probability is not None:
            hits = [source.random() < self.probability for _ in range(CHANCES)]
            hits[source.randrange(CHANCES)] |= not any(hits)
            draws["chances"] = "".join("1" if hit else "0" for hit in hits)
        return draws

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if self.topic is not None and self.named_api is not None:
            from aftershock.faults.wire_proxy.messages import names_topics  # noqa: PLC0415 -- imports kio's messages

            if not names_topics(self.named_api):
                yield Problem(("topic",), f"requests of the API {self.named_api} name no topic: remove `topic`")
        for topic in plan.topics.values():
            if topic.name == self.topic and self.partition is not None and self.partition >= topic.partitions:
                message = f"the topic {self.topic} has no partition {self.partition}: use 0 to {topic.partitions - 1}"
                yield Problem(("partition",), message)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        await world.rules()  # raises FaultError if the cluster has no wire proxy
        rule: dict[str, Any] = {"name": context.fault, "api": self.named_api, "partition": self.partition}
        if self.topic is not None:
            ids = await world.topic_ids()
            if self.topic not in ids:
                raise FaultError(f"the cluster has no topic {self.topic}; correct the fault's `topic`")
            rule |= {"topic": self.topic, "topic_id": ids[self.topic]}
        clients = [self.client_id] if self.client_id else []
        if self.client is not None:
            text = next(iter(self.clients().values()))
            clients = [worker.name for worker in await select_clients(text, world, draws)]
        rule |= {"clients": clients, "nth": self.nth, "per_client": self.per == "client"}
        rule |= {"chances": draws.get("chances", ""), **await self.resolved(context, draws), **self.rule_action(draws)}
        document = rule_from(rule).as_json()
        targets = Targets(topics=tuple(self.topics().values()), clients=tuple(clients), roles={"rule": document})
        undo = Undo("remove_rules", {"rules": [context.fault]})
        injection = TamperInjection(context, targets, self, document, undo=undo)
        await injection.measure_before()
        return injection

    async def resolved(self, context: InjectionContext, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- most name no broker
        """Return the fields of the wire proxy's rule that depend on the cluster's state at the injection."""
        return {}
