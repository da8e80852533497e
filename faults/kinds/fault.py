"""Base classes of every fault kind: ``Fault`` (an entry of a plan) and ``Injection`` (one execution of a fault).

Each fault kind consists of one subclass of ``Fault`` and one of ``Injection``. ``Fault`` is a frozen pydantic model
whose fields are the parameters of the kind. ``Fault.resolve_targets`` looks up the targets in the current state of the
cluster and returns an ``Injection`` with its targets and its undo. The executor journals targets and undo, then calls
``inject``, ``hold`` and, after the undo, ``confirm_healed``.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.plan.workloads import Topic, Workload
from aftershock.faults.runtime.record import NOTHING, Clock, Targets, Undo, Witness
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import needs_draw, parse

READ_BACK_US = 1_000_000  # while a fault lasts, its witness is read again about once a second
Draws = Mapping[str, Any]
Report = Callable[[Witness], None]
Impact = Literal["nodes", "one node", "links", "moments", "leaders", "unknown"]
"""What a fault makes unavailable while it lasts; the obligations of clients are derived from it.

``nodes``: the brokers serve no client, and the heal ends when they are in every ISR; ``one node``: one broker at a time
serves no client; ``links``: no data crosses the links; ``moments``: data crosses the links, late by a second at most;
``leaders``: the topics get other leaders among the same replicas; ``unknown``: clients have no obligation wherever the
fault acts.
"""
FAMILIES = ("link", "rack and group", "process", "Kafka", "disk", "client", "protocol", "other")
Family = Literal["link", "rack and group", "process", "Kafka", "disk", "client", "protocol", "other"]
TargetKind = Literal["brokers", "links", "topics", "clients", "requests"]
FieldPath = tuple[str, ...]
"""The place of a value in a fault: ``("move", "from")``."""
FaultId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


@dataclass(frozen=True)
class Band:
    """Appearance of a fault in plots: the colour of its band (sRGB hex) and its label."""

    colour: str
    label: str


class ExclusiveResource(NamedTuple):
    """Resource that two faults can't use at once, such as the ``process`` (``name``) of each broker (type ``among``).

    With ``by_plan``, ``plan check`` refuses a plan in which two faults overlap on this resource; without ``by_plan``,
    only a manual injection is refused, and only while a fault in force uses the resource.
    """

    name: str
    among: TargetKind
    by_plan: bool = True


class PlanContext(Protocol):
    """The valid parts of a plan, to which a fault may refer and against which each fault is validated."""

    @property
    def cluster(self) -> Cluster | None:
        """The plan's cluster; None if its section is invalid, or if the plan runs on an attached cluster."""

    @property
    def topics(self) -> Mapping[int, Topic]:
        """The plan's valid topics, keyed by their index in the plan."""

    @property
    def workloads(self) -> Mapping[int, Workload]:
        """The plan's valid workloads, keyed by their index in the plan."""

    @property
    def unreadable_workloads(self) -> bool:
        """True if the plan has invalid workloads, which ``workloads`` omits."""


@dataclass(frozen=True)
class InjectionContext:
    """Environment of an injection: the cluster, the run's clock, and the fault's id."""

    world: World
    clock: Clock
    fault: str


@dataclass(eq=False)
class Injection(ABC):
    """One execution of a fault; ``targets`` and ``undo`` are known before ``inject`` is called."""

    context: InjectionContext
    targets: Targets
    undo: Undo = field(default=NOTHING, kw_only=True)

    @abstractmethod
    async def inject(self) -> None:
        """Put the fault in force; raise FaultError if that fails, after which the undo must still be performed."""

    @abstractmethod
    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report at least one witness and return at ``until_us``; without ``until_us``, return after the first witness.

        A witness that does not see the fault is reported with ``ok=False``, not raised. A rehearsal (a run that injects
        nothing) calls ``hold`` without ``inject``.
        """

    async def confirm_healed(self) -> None:  # noqa: B027 -- optional: the executor reads every undo back (verify_undo)
        """Wait for effects of the heal beyond the undo, such as answering links; raise FaultError after a deadline."""

    @property
    def undo_after(self) -> Undo:
        """Undo to perform after ``inject`` has returned, for a fault without ``for``; by default nothing is undone."""
        return NOTHING


async def report_each_second(
    read: Callable[[], Awaitable[Witness]], report: Report, clock: Clock, until_us: int | None
) -> None:
    """Read and report a witness (measurement of the fault) each second until ``until_us``; without it, once."""
    while True:
        report(await read())
        now_us = clock.now_us()
        if until_us is None or now_us >= until_us:
            return
        await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))


class Fault(BaseModel, ABC):
    """One fault of a plan: its fields are the fault's parameters and yield schema, documentation and validation.

    A validator of a fault kind raises ValueError with a complete sentence, which becomes the error message of ``plan
    check``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    family: ClassVar[Family] = "other"
    band: ClassVar[Band]
    proof: ClassVar[str]
    """Observations of the witnesses, in full sentences, for the catalogue."""
    remedy: ClassVar[str]
    """Effect of the heal, in full sentences, for the catalogue."""
    permanent_effect: ClassVar[str | None] = None
    """Effect that no heal reverts, in full sentences; a cluster with such an effect is not leased to another test."""
    exposure_target: ClassVar[TargetKind]
    """Kind of target that client traffic must reach for the fault to count as exposed."""
    drops_traffic: ClassVar[bool] = False
    """True if the fault ends all traffic to its targets: traffic right before the fault then counts as exposure."""
    closes_connections: ClassVar[bool] = False
    """True if the fault closes connections to its targets at once; otherwise pending requests run into timeouts."""
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    for_rule: ClassVar[Literal["needed", "optional", "refused"]]
    allowance_ms: ClassVar[int]
    """Time that injecting and healing may take beyond ``for``; the compiler reserves it."""

    kind: str
    id: FaultId | None = None
    at: Duration = 0
    for_: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="for")

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **handler(self)}  # `kind` is written even when defaults are left out

    def parameters(self) -> dict[str, Any]:
        """Return the fault's parameters in the plan's notation."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: value for key, value in plain.items() if key not in ("kind", "id", "at", "for")}

    def impact(self) -> Impact:
        """Return what a fault makes unavailable to clients; the default, ``unknown``, excuses most client failures."""
        return "unknown"

    def effective_exposure_target(self) -> TargetKind:
        """Return the target type (such as links) whose traffic is exposed to the fault, by default that of its kind."""
        return self.exposure_target

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw a fault's random choices from its random stream; by default, one number for each ``any broker`` role."""
        random_roles = sorted(path for path, role in self.roles().items() if needs_draw(parse(role)))
        return {"any." + ".".join(path): source.random() for path in random_roles}

    def roles(self) -> dict[FieldPath, str]:
        """Return the roles that the fault names, keyed by field path; by default the role in the field ``broker``."""
        return self._named("broker")

    def links(self) -> dict[FieldPath, str]:
        """Return the fault's link selectors by the path of their field; by default, of the field ``link``."""
        return self._named("link")

    def racks(self) -> dict[FieldPath, str]:
        """Return the racks that the fault names by the path of their field; by default, of the field ``rack``."""
        return self._named("rack")

    def topics(self) -> dict[FieldPath, str]:
        """Return the topics that the fault names by the path of their field; by default, of the field ``topic``."""
        return self._named("topic")

    def _named(self, field: str) -> dict[FieldPath, str]:
        value = getattr(self, field, None)
        return {(field,): value} if value is not None else {}

    def clients(self) -> dict[FieldPath, str]:
        """Return the fault's client selectors by the path of their field."""
        return {}

    def nodes(self, plan: PlanContext) -> frozenset[int]:  # noqa: ARG002 -- a rack's nodes follow from the plan
        """Return the nodes that the fault certainly targets: only node ids, as roles are resolved at run time."""
        return frozenset(int(role) for role in self.roles().values() if role.isdecimal())

    def kafka_versions(self) -> tuple[str, ...]:
        """Return the Kafka versions that the fault needs images of; images are pulled before the load starts."""
        return ()

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- most kinds have no further rules
        """Yield each problem of the fault with its plan except unknown names; locations are relative to the fault."""
        yield from ()

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- most kinds have no warnings
        """Yield warnings about valid but unlikely parameters; locations are relative to the fault."""
        yield from ()

    @abstractmethod
    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the targets in the current state of the cluster; raise FaultError if no target exists."""
