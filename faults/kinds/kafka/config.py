"""Settings changed for a while, by one fault, of one or several resources.

``config``: change dynamic settings of a broker or a topic, or the quotas of a client, for a while.

Any setting that Kafka takes while it runs. It takes thread pools in steps (``DynamicThreadPool``, ``SocketServer``,
``LogCleaner``): at least half, at most double of what there is, so we refuse what could not be undone in one step
either. Names that no broker knows are accepted and do nothing (measured): those we refuse as well. A quota holds on
average over ten seconds: one close to the load bites late, and whoever it has held back is served some seconds after.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import NO_SETTING, Values, settings_not_in_force, restore_settings
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import Resource, Setting

CHANGED_DEADLINE_MS = 10_000  # a change is read back within 0.1 s, measured


@dataclass(frozen=True)
class Change:
    """What the settings of a resource are to be, and the dynamic values that they had before (None: none)."""

    of: Resource
    name: str
    wanted: Mapping[str, str]
    before: Values

    def undo(self) -> Undo:
        """Puts the values of before back."""
        return Undo("restore_settings", {"of": self.of, "name": self.name, "settings": dict(self.before)})


async def planned(of: Resource, name: str, wanted: Mapping[str, str], world: World) -> Change:
    """The change, by what is in force now."""
    now = await world.config(of, name)
    return Change(of, name, wanted, {key: now.get(key, NO_SETTING).dynamic for key in wanted})


async def make(changes: Sequence[Change], context: InjectionContext) -> None:
    """Ask for all of them, and see them in force."""
    for change in changes:
        await run_to_completion(context.world.alter_config(change.of, change.name, change.wanted))
    await wait_until(lambda: _missing(changes, context.world), context.clock, CHANGED_DEADLINE_MS)


async def read_back(changes: Sequence[Change], context: InjectionContext) -> Witness:
    """How many of the settings are in force as asked, by what each resource itself says."""
    asked = sum(len(change.wanted) for change in changes)
    off = await retry_refused(lambda: _off(changes, context.world), context.clock, READ_DEADLINE_MS)
    what = "settings read back from whoever runs with them" + (f"; {off[0]} is not as asked" if off else "")
    return Witness(what, asked, asked - len(off), "settings", asked, not off)


async def confirm_restored(changes: Sequence[Change], context: InjectionContext) -> None:
    """Return once each resource says that its values of before are in force; FaultError after a deadline."""
    for change in changes:
        await wait_until(lambda it=change: _put_back(it, context.world), context.clock, CHANGED_DEADLINE_MS)  # type: ignore[misc]


async def _put_back(change: Change, world: World) -> str | None:
    return await restore_settings(change.of, change.name, change.before, world)


async def _missing(changes: Sequence[Change], world: World) -> str | None:
    off = await _off(changes, world)
    return f"{len(off)} settings are not in force, {off[0]} first" if off else None


async def _off(changes: Sequence[Change], world: World) -> list[str]:
    return [
        f"{key} of {change.of} {change.name}"
        for change in changes
        for key in await settings_not_in_force(change.of, change.name, change.wanted, world)
    ]


POOLS: Mapping[str, int | None] = {
    "num.io.threads": 8,
    "num.network.threads": 3,
    "num.replica.fetchers": 1,
    "background.threads": 10,
    "log.cleaner.threads": 1,
    "num.recovery.threads.per.data.dir": None,
}
"""Kafka's thread pools and their sizes by default; None where that depends on the version."""
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_MIN_ISR = "min.insync.replicas"


def step_refused(name: str, now: str | None, wanted: str) -> str | None:
    """Why Kafka would not take a thread pool from one size to another in one step, or back; None if it would."""
    if name not in POOLS or now is None or not (now.isdecimal() and wanted.isdecimal()):
        return None
    if int(now) <= 2 * int(wanted) <= 4 * int(now):
        return None
    least, most = -(-int(now) // 2), 2 * int(now)
    return f"{name} is {now}, and Kafka at most halves or doubles it at once: say {least} to {most}"


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Value = Annotated[str, BeforeValidator(_as_text)]


class ConfigInjection(Injection):
    """One change of settings."""

    def __init__(self, context: InjectionContext, change: Change, targets: Targets) -> None:
        self.context = context
        self.change = change
        self.targets = targets
        self.undo = change.undo()

    async def inject(self) -> None:
        """Change them and see them in force."""
        await make([self.change], self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """They must stay in force: read back each second."""
        while True:
            report(await read_back([self.change], self.context))
            now_us = self.context.clock.now_us()
            if until_us is None or now_us >= until_us:
                return
            await self.context.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def confirm_healed(self) -> None:
        """The values of before are in force again."""
        await confirm_restored([self.change], self.context)


class Config(Fault):
    """Change dynamic settings of a broker, a topic or a client."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#bcbd22", "config")
    proof: ClassVar[str] = "the settings, read back each second from whoever runs with them"
    remedy: ClassVar[str] = "the dynamic values of before, or their absence, read back"
    exposure_target: ClassVar[TargetKind] = "topics"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = tuple(
        ExclusiveResource("settings", each) for each in ("brokers", "topics", "clients")
    )
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 2_000  # a change takes 0.1 s, and 0.1 s to be read back

    kind: Literal["config"] = "config"
    broker: RoleText | None = None
    topic: str | None = None
    client_id: (
        Annotated[str, Field(min_length=1, description="whose quotas: a worker's name is its client.id")] | None
    ) = None
    set_: Annotated[dict[str, Value], Field(alias="set", min_length=1, description="settings, in Kafka's own words")]

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(each is not None for each in (self.broker, self.topic, self.client_id)) != 1:
            sentence = "a config needs one of `broker: ROLE`, `topic: NAME` and `client_id: NAME`; say whose settings"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def effective_exposure_target(self) -> TargetKind:
        """Whoever's settings they are."""
        return "brokers" if self.broker else "topics" if self.topic else "clients"

    def roles(self) -> dict[FieldPath, str]:
        """The broker, if it is one's settings."""
        return {("broker",): self.broker} if self.broker else {}

    def topics(self) -> dict[FieldPath, str]:
        """The topic, likewise."""
        return {("topic",): self.topic} if self.topic else {}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Steps that Kafka refuses, as far as the plan tells what is in force; quotas that there are not."""
        said = plan.cluster.config if plan.cluster else {}
        for name, value in self.set_.items():
            by_default = str(POOLS[name]) if POOLS.get(name) else None
            if self.broker and (refused := step_refused(name, said.get(name, by_default), value)):
                yield Problem(("set", name), refused)
            if self.client_id and name not in QUOTAS:
                yield Problem(("set", name), f"a client has no quota `{name}`: it has {', '.join(QUOTAS)}", on_key=True)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """A minimum that the topic can't reach."""
        value = self.set_.get(_MIN_ISR, "") if self.topic else ""
        replication = {topic.name: topic.replication for topic in plan.topics.values()}.get(self.topic or "")
        if replication and value.isdecimal() and int(value) > replication:
            sentence = f"{value} is more than the topic's replication {replication}: nothing can be produced meanwhile"
            yield Problem(("set", _MIN_ISR), sentence)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if Kafka has no such settings, takes them only at a start, or not in one step."""
        of, name = await self._whose(context, draws)
        now = await context.world.config(of, name)
        for key, value in self.set_.items():
            if of != "client" and (refused := _refused(of, key, value, now)):
                raise FaultError(refused)
        change = await planned(of, name, self.set_, context.world)
        return ConfigInjection(context, change, await self._targets(of, name, change, context.world))

    async def _whose(self, context: InjectionContext, draws: Draws) -> tuple[Resource, str]:
        if self.broker is not None:
            return "broker", str(await resolve(self.broker, context.world, draws, "broker"))
        return ("topic", self.topic) if self.topic is not None else ("client", str(self.client_id))

    async def _targets(self, of: Resource, name: str, change: Change, world: World) -> Targets:
        roles: dict[str, Any] = {"set": dict(change.wanted), "before": dict(change.before)}
        if of == "broker":
            broker = int(name)
            roles |= {"asked": self.broker, "rack": world.racks().get(broker)}  # type: ignore[call-overload]
            return Targets(brokers=(broker,), roles=roles)
        return Targets(topics=(name,), roles=roles) if of == "topic" else Targets(clients=(name,), roles=roles)


def _refused(of: Resource, key: str, value: str, now: Mapping[str, Setting]) -> str | None:
    if key not in now:
        return f"Kafka knows no setting `{key}` of a {of}, and would take it and do nothing; check its name"
    if now[key].read_only:
        return f"Kafka takes `{key}` only when a node starts: say it in the plan's `cluster: {{config: ...}}`"
    return step_refused(key, now[key].value, value)
