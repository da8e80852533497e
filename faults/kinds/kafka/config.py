"""Fault ``config``, which changes dynamic settings of a broker or topic, or the quotas of a client, until the heal.

Kafka resizes a thread pool at most to half or double of its current size in one request (``DynamicThreadPool``,
``SocketServer``, ``LogCleaner``), so a larger change is refused. Unknown setting names are refused, because brokers
accept unknown names without effect (measured). As quotas limit an average over ten seconds, a quota close to the load
takes effect late, and throttled clients recover some seconds after the heal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    Silence,
    TargetKind,
    report_each_second,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import NO_SETTING, Values, settings_not_in_force
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.broker_settings import Owner, setting_refusal, value_refusal
from aftershock.faults.sections.cluster import ConfigText
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, Resource
from aftershock.faults.targets.world import World

CHANGED_DEADLINE_MS = 10_000  # a change is read back within 0.1 s, measured


@dataclass(frozen=True)
class Change:
    """Change of settings of a broker, topic or client; ``before`` has the earlier dynamic values, None if not set."""

    of: Resource
    name: str
    values: Mapping[str, str]
    before: Values

    def undo(self) -> Undo:
        return Undo("restore_settings", {"of": self.of, "name": self.name, "settings": dict(self.before)})


async def plan_change(of: Resource, name: str, values: Mapping[str, str], world: World) -> Change:
    current = await world.config(of, name)
    return Change(of, name, values, {key: current.get(key, NO_SETTING).dynamic for key in values})


async def apply_changes(changes: Sequence[Change], context: InjectionContext) -> None:
    """Request all changes of settings, and wait until Kafka reports the new values."""

    async def missing() -> str | None:
        different = await _not_in_force(changes, context.world)
        return f"{len(different)} settings aren't in force; the first is {different[0]}" if different else None

    for change in changes:
        await run_to_completion(context.world.alter_config(change.of, change.name, change.values))
    await wait_until(missing, context.clock, CHANGED_DEADLINE_MS)


async def settings_witness(changes: Sequence[Change], context: InjectionContext) -> Witness:
    """Return a witness that the settings have their new values, read back from each broker, topic or client quota."""
    count = sum(len(change.values) for change in changes)
    different = await retry_refused(lambda: _not_in_force(changes, context.world), context.clock, READ_DEADLINE_MS)
    what = "changed settings that are in force, read back from Kafka"
    what += f"; {different[0]} has another value" if different else ""
    return Witness(what, count, count - len(different), "settings", count, not different)


async def _not_in_force(changes: Sequence[Change], world: World) -> list[str]:
    return [
        f"{key} of {change.of} {change.name}"
        for change in changes
        for key in await settings_not_in_force(change.of, change.name, change.values, world)
    ]


POOLS: Mapping[str, int | None] = {
    "num.io.threads": 8,
    "num.network.threads": 3,
    "num.replica.fetchers": 1,
    "background.threads": 10,
    "log.cleaner.threads": 1,
    "num.recovery.threads.per.data.dir": None,
}
"""Settings of the sizes of Kafka's thread pools, with their defaults; None if the default depends on the version."""
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
MIN_ISR = "min.insync.replicas"


def resize_refusal(name: str, current: str | None, value: str) -> str | None:
    """Return why Kafka refuses to resize a thread pool to ``value`` or back; None if Kafka accepts both changes."""
    if name not in POOLS or current is None or not (current.isdecimal() and value.isdecimal()):
        return None
    if int(current) <= 2 * int(value) <= 4 * int(current):
        return None
    lowest, highest = -(-int(current) // 2), 2 * int(current)
    return f"{name} is {current}, and Kafka at most halves or doubles a thread pool: use {lowest} to {highest}"


@dataclass(eq=False)
class ConfigInjection(Injection):
    change: Change

    async def inject(self) -> None:
        await apply_changes([self.change], self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        read = partial(settings_witness, [self.change], self.context)
        await report_each_second(read, report, self.context.clock, until_us)


class Config(Fault):
    """Change dynamic settings of a broker or a topic, or the quotas of a client."""

    family = "Kafka"
    band = Band("#bcbd22", "config")
    proof = "The broker or topic itself reports the changed settings (read each second)."
    remedy = "Each changed setting has its earlier dynamic value again, or no dynamic value if it had none."
    exposure_target = "topics"
    exclusive_resources = tuple(ExclusiveResource("settings", kind) for kind in ("brokers", "topics", "clients"))
    for_rule = "needed"
    allowance_ms = 2_000  # a change takes 0.1 s, and 0.1 s to be read back

    drawn = (
        '{topic: TOPIC, set: [{max.message.bytes: "100"}, {min.insync.replicas: "3"}]}',
        '{broker: BROKER, set: {message.max.bytes: "100"}}',
    )
    kind: Literal["config"] = "config"
    broker: RoleText | None = None
    topic: str | None = None
    client_id: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="client.id of the client whose quotas change; in a plan, the name of the client's worker process",
    )
    set_: Annotated[
        dict[str, ConfigText],
        Field(alias="set", min_length=1, description="settings to change, by Kafka's names, with their new values"),
    ]

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(resource is not None for resource in (self.broker, self.topic, self.client_id)) != 1:
            raise ValueError("a config fault needs exactly one of `broker: ROLE`, `topic: NAME` and `client_id: NAME`")
        return self

    def impact(self) -> Impact:
        return "quota" if self.client_id else "unknown"

    def silence(self) -> Silence | None:
        """Return that each request is answered, if late: brokers answer at once and then read no more (KIP-219)."""
        return None if self.client_id else super().silence()

    def kafka_apis(self) -> tuple[str, ...]:
        """Return the APIs that read and change the settings of the resource."""
        quotas = ("DescribeClientQuotas", "AlterClientQuotas")
        return (*super().kafka_apis(), *(quotas if self.client_id else ("DescribeConfigs", "IncrementalAlterConfigs")))

    def effective_exposure_target(self) -> TargetKind:
        """Return the type of the resource whose settings change."""
        return "brokers" if self.broker else "topics" if self.topic else "clients"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        settings = plan.cluster.config if plan.cluster else {}
        for name, value in self.set_.items():
            if not self.client_id:
                owner: Owner = "node" if self.broker else "topic"
                if refused := setting_refusal(owner, name, value, foreign=plan.cluster is None):
                    yield Problem(("set", name), refused, on_key=True)
                elif refused := value_refusal(owner, name, value, ranges=False):
                    yield Problem(("set", name), refused)
                    continue
            default = str(POOLS[name]) if POOLS.get(name) else None
            if self.broker and (refused := resize_refusal(name, settings.get(name, default), value)):
                yield Problem(("set", name), refused)
            if self.client_id and name not in QUOTAS:
                yield Problem(("set", name), f"a client has no quota `{name}`: use {', '.join(QUOTAS)}", on_key=True)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        value = self.set_.get(MIN_ISR, "") if self.topic else ""
        replication = {topic.name: topic.replication for topic in plan.topics.values()}.get(self.topic or "")
        if replication and value.isdecimal() and int(value) > replication:
            message = (
                f"{MIN_ISR} {value} exceeds the {replication} replicas of the topic {self.topic}, so the topic "
                f"accepts no records with acks=all; lower {MIN_ISR}"
            )
            yield Problem(("set", MIN_ISR), message)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        of: Resource
        if self.broker is not None:
            of, name = "broker", str(await resolve(self.broker, context.world, draws, "broker"))
        else:
            of, name = ("topic", self.topic) if self.topic is not None else ("client", str(self.client_id))
        current = await context.world.config(of, name)
        for key, value in self.set_.items():
            if of == "client":
                continue
            if key not in current:
                raise FaultError(f"Kafka has no {of} setting `{key}`; check the setting's name")
            if current[key].read_only:
                raise FaultError(f"Kafka reads `{key}` only when a node starts: use `cluster: {{config: ...}}` instead")
            if refusal := resize_refusal(key, current[key].value, value):
                raise FaultError(refusal)
        change = await plan_change(of, name, self.set_, context.world)
        roles: dict[str, Any] = {"set": dict(change.values), "before": dict(change.before)}
        if of == "broker":
            broker = BrokerId(int(name))
            roles |= {"asked": self.broker, "rack": context.world.racks().get(broker)}
            targets = Targets(brokers=(broker,), roles=roles)
        else:
            targets = Targets(topics=(name,), roles=roles) if of == "topic" else Targets(clients=(name,), roles=roles)
        return ConfigInjection(context, targets, change, undo=change.undo())
