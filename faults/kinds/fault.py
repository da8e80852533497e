"""Base classes of every fault kind, ``Fault`` (an entry of a plan) and ``Injection`` (one execution of a fault).

``Fault`` is a frozen pydantic model whose fields are the parameters of the kind. ``Fault.resolve_targets`` looks up the
targets in the current state of the cluster and returns an ``Injection``. The fault executor writes the targets and the
undo of the injection to the journal, then calls ``inject``, ``hold`` and, after the undo, ``confirm_healed``.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from aftershock.faults.runtime.record import NOTHING, Clock, Targets, Undo, Witness
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.sections.workloads import Topic, Workload
from aftershock.faults.targets import clients
from aftershock.faults.targets.roles import (
    Controller,
    Coordinator,
    TransactionCoordinator,
    innermost,
    needs_draw,
    parse,
)
from aftershock.faults.targets.world import World

READ_BACK_US = 1_000_000  # while a fault lasts, its witness is read again about once a second
Draws = Mapping[str, Any]
Report = Callable[[Witness], None]
Impact = Literal[
    "nodes", "one node", "links", "moments", "leaders", "members", "requests", "connections", "quota", "unknown"
]
"""What a fault makes unavailable while it lasts; the obligations of clients are derived from the impact.

``nodes``: the brokers serve no client, and the heal ends when they are in every ISR; ``one node``: one broker at a time
serves no client; ``links``: no data crosses the links; ``moments``: round trips are late by ``delay_ms`` at most;
``leaders``: the topics get other leaders among the same replicas; ``members``: the client processes serve no partition
of their groups, and the groups' other members take over; ``requests``: requests of a Kafka API are late, fail or get no
answer, by the rule in the journal; ``connections``: the clients' connections or sessions are closed once; ``quota``:
brokers delay the clients' answers without limit; ``unknown``: clients have no obligation wherever the fault acts.
"""
Silence = Literal["until heal", "beyond heal"]
FAMILIES = ("link", "rack and group", "process", "Kafka", "disk", "clock", "client", "protocol", "other")
Family = Literal["link", "rack and group", "process", "Kafka", "disk", "clock", "client", "protocol", "other"]
ForRule = Literal["needed", "optional", "refused"]
Need = Literal["wire_proxy", "block_device", "disk_layer", "clocks", "packets", "hosts", "gc_pauses", "kubernetes"]
TargetKind = Literal["brokers", "links", "topics", "clients", "requests"]
FieldPath = tuple[str, ...]
"""Path of a parameter within a fault of a plan, such as ``("move", "from")``."""
FaultId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


@dataclass(frozen=True)
class Band:
    """Appearance of a fault in plots, with the colour of its band (sRGB hex) and its label."""

    colour: str
    label: str


class OnLink(NamedTuple):
    """What a fault on a link does to connections and data: a row of the comparison in the fault catalogue."""

    established_connections: str
    new_connections: str
    data_in_flight: str
    client_sees: str


class ExclusiveResource(NamedTuple):
    """Resource that only one fault may use at a time, such as the ``process`` (``name``) of a broker (``among``).

    If ``by_plan`` is True, ``plan check`` refuses a plan in which two faults use the resource at the same time. If
    ``by_plan`` is False, only the command ``inject`` is refused while a fault in force uses the resource.
    """

    name: str
    among: TargetKind
    by_plan: bool = True


class PlanContext(Protocol):
    """The valid parts of a plan, against which the plan's faults are validated."""

    @property
    def cluster(self) -> Cluster | None:
        """The plan's cluster; None if the section ``cluster`` is invalid or the plan runs on an attached cluster."""

    @property
    def topics(self) -> Mapping[int, Topic]:
        """The plan's valid topics, keyed by their index in the plan."""

    @property
    def workloads(self) -> Mapping[int, Workload]:
        """The plan's valid workloads, keyed by their index in the plan."""

    @property
    def unreadable_workloads(self) -> bool:
        """True if the plan has invalid workloads, which the property ``workloads`` omits."""


@dataclass(frozen=True)
class InjectionContext:
    """The cluster (``world``) that an injection changes, the run's clock, and the id of the fault."""

    world: World
    clock: Clock
    fault: str


@dataclass(eq=False)
class Injection(ABC):
    """One execution of a fault; its ``targets`` and ``undo`` are known before ``inject`` is called."""

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
        """Undo that the executor performs at the end of a fault without a duration; by default nothing is undone."""
        return NOTHING


async def report_each_second(
    read: Callable[[], Awaitable[Witness]], report: Report, clock: Clock, until_us: int | None
) -> None:
    """Report the witness that ``read`` returns each second until ``until_us``; without ``until_us``, only once."""
    while True:
        report(await read())
        now_us = clock.now_us()
        if until_us is None or now_us >= until_us:
            return
        await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))


async def report_at_both_ends(
    first: Callable[[], Awaitable[Witness]],
    last: Callable[[], Awaitable[Witness]],
    report: Report,
    clock: Clock,
    until_us: int | None,
) -> None:
    """Report the witness that ``first`` returns, and at a later ``until_us`` the witness that ``last`` returns."""
    report(await first())
    if until_us is not None and clock.now_us() < until_us:
        await clock.sleep_until_us(until_us)
        report(await last())


class Fault(BaseModel, ABC):
    """One fault of a plan; its fields are the fault's parameters, from which the schema of plans is derived.

    A validator of a fault kind raises ValueError with a complete sentence, which ``plan check`` prints as the error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    family: ClassVar[Family] = "other"
    band: ClassVar[Band]
    proof: ClassVar[str]
    """Sentences of the fault catalogue about what the witnesses of the kind observe."""
    remedy: ClassVar[str]
    """Sentences of the fault catalogue about what the heal of the kind restores."""
    permanent_effect: ClassVar[str | None] = None
    """Sentences about what no heal of the kind restores; after such a fault, no other test reuses the cluster."""
    exposure_target: ClassVar[TargetKind]
    """Type of target whose traffic is exposed to the fault: for ``links``, the traffic over the affected links."""
    unavailable: ClassVar[Impact] = "unknown"
    """What a fault of this kind makes unavailable to clients; ``unknown`` excuses most failures. See ``impact``."""
    drops_traffic: ClassVar[bool] = False
    """True if the fault stops all traffic to its targets; then traffic right before the fault counts as exposed."""
    closes_connections: ClassVar[bool] = False
    """True if clients notice the fault at once, by closed connections or errors; otherwise requests stay unanswered."""
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    needs: ClassVar[tuple[Need, ...]] = ()
    """Keys of ``cluster`` that a launched cluster gets wherever a fault of this kind is used; see ``cluster_needs``."""
    apis: ClassVar[tuple[str, ...]] = ()
    """Kafka's names of the APIs that a fault of this kind calls, beside Metadata; see ``kafka_apis``."""
    for_rule: ClassVar[ForRule]
    allowance_ms: ClassVar[int]
    """Time that the compiler reserves beyond ``for`` for the injection and the heal of a fault of this kind."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Parameters with which ``explore`` draws a fault of this kind, as YAML (``search/swarm.py`` has the words in
    capitals). Of a list, one item is drawn. Without this, they follow from the schema, if that tells all required ones.
    """
    drawn_with: ClassVar[str | None] = None
    """Second fault, as YAML, that must be in force so that traffic meets a fault of this kind."""
    on_link: ClassVar[OnLink | None] = None

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
        """Return what the fault makes unavailable to clients, by default ``unavailable``."""
        return self.unavailable

    def delay_ms(self) -> int:
        """Return by how much a round trip is late at most; 0 for a kind without impact ``moments``."""
        return 0

    def silence(self) -> Silence | None:
        """Return until when requests to the targets stay unanswered; None if clients notice the fault at once.

        By default the heal answers the requests, or closes their connections.
        """
        return None if self.closes_connections else "until heal"

    def cluster_needs(self) -> tuple[Need, ...]:
        """Return the keys of ``cluster`` that a launched cluster gets for this fault, by default ``needs``."""
        return self.needs

    def kafka_apis(self) -> tuple[str, ...]:
        """Return the APIs that this fault calls: by default ``apis``, and those that find the brokers of its roles."""
        parsed = [innermost(parse(role)) for role in self.roles().values()]
        by_role: dict[str, type | tuple[type, ...]] = {
            "DescribeQuorum": Controller,
            "FindCoordinator": (Coordinator, TransactionCoordinator),
        }
        return (*self.apis, *(api for api, kind in by_role.items() if any(isinstance(role, kind) for role in parsed)))

    def effective_exposure_target(self) -> TargetKind:
        """Return the type of target whose traffic meets the fault, by default the fault class's ``exposure_target``."""
        return self.exposure_target

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, by default a number for each ``any broker`` and ``any member`` it names."""
        random_roles = sorted(path for path, role in self.roles().items() if needs_draw(parse(role)))
        draws = {"any." + ".".join(path): source.random() for path in random_roles}
        if any(clients.parse(text).drawn for text in self.clients().values()):
            draws["client"] = source.random()
        return draws

    def roles(self) -> dict[FieldPath, str]:
        """Return the broker roles that the fault names, by field path; by default, the role in the field ``broker``."""
        return self._named("broker")

    def links(self) -> dict[FieldPath, str]:
        """Return the link selectors that the fault names, by field path; by default, that of the field ``link``."""
        return self._named("link")

    def racks(self) -> dict[FieldPath, str]:
        """Return the racks that the fault names, by field path; by default, the rack in the field ``rack``."""
        return self._named("rack")

    def topics(self) -> dict[FieldPath, str]:
        """Return the topics that the fault names, by field path; by default, the topic in the field ``topic``."""
        return self._named("topic")

    def transactional_ids(self) -> dict[FieldPath, str]:
        """Return the transactional ids that the fault names; by default, that in the field ``transactional_id``."""
        return self._named("transactional_id")

    def _named(self, field: str) -> dict[FieldPath, str]:
        value = getattr(self, field, None)
        return {(field,): value} if value is not None else {}

    def clients(self) -> dict[FieldPath, str]:
        """Return the client selectors that the fault names, by field path; by default none."""
        return {}

    def nodes(self, plan: PlanContext) -> frozenset[int]:  # noqa: ARG002 -- a rack's nodes follow from the plan
        """Return the targets that the plan names by node id; the node of a role is known only at run time."""
        return frozenset(int(role) for role in self.roles().values() if role.isdecimal())

    def kafka_versions(self) -> tuple[str, ...]:
        """Return the Kafka versions whose container images the fault needs; they are pulled before the load starts."""
        return ()

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- most kinds have no further rules
        """Yield the errors of this fault for ``plan check``, except unknown names, with paths relative to the fault."""
        yield from ()

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- most kinds have no warnings
        """Yield the warnings for ``plan check`` about unlikely parameters, with paths relative to the fault."""
        yield from ()

    @abstractmethod
    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Find the fault's targets in the current state of the cluster; raise FaultError if there is no target."""
