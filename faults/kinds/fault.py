"""What every fault has: its words in a plan, its band in the plots, and how it strikes.

A kind is one file with two classes. The *fault* is what the plan says (a frozen pydantic model). ``aim`` resolves its
targets against the cluster as it is now and gives a *strike*: one live use of the fault, with its targets and its
undo already known, before anything is touched. The executor journals those, and then lets the strike inject, hold and
confirm.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
"""What a fault takes from its targets while it lasts, so that the verdict knows what is owed nevertheless.

``nodes``: these brokers serve nobody, and the heal ends with them in every ISR; ``one node``: the same of one of them
at a time; ``links``: nothing ever crosses them; ``moments``: what crosses them is late by a second at most;
``leaders``: its topics get other leaders among the same replicas; ``unknown``: nothing is owed of whatever it touches.
"""
FAMILIES = ("link", "rack and group", "process", "Kafka", "disk", "client", "protocol", "other")
Family = Literal["link", "rack and group", "process", "Kafka", "disk", "client", "protocol", "other"]
TargetKind = Literal["brokers", "links", "topics", "clients", "requests"]
FieldPath = tuple[str, ...]
"""Where something stands in a fault: ``("move", "from")``."""
FaultId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


@dataclass(frozen=True)
class Band:
    """How a fault is drawn: the colour of its band (sRGB hex) and the word on it."""

    colour: str
    label: str


class ExclusiveResource(NamedTuple):
    """What a fault must have to itself while it lasts: ``what`` of each of its targets ``among`` the brokers, say.

    ``by_plan``: a plan with both is refused; else only an injection by hand into what is in force.
    """

    what: str
    among: TargetKind
    by_plan: bool = True


class PlanContext(Protocol):
    """The rest of the plan, as far as it can be read: what a fault's own words are judged against."""

    @property
    def cluster(self) -> Cluster | None:
        """None where it can't be read, or is not the plan's to say."""

    @property
    def topics(self) -> Mapping[int, Topic]:
        """By their index in the plan."""

    @property
    def workloads(self) -> Mapping[int, Workload]:
        """Likewise."""

    @property
    def unreadable_workloads(self) -> bool:
        """Whether there are more."""


@dataclass(frozen=True)
class InjectionContext:
    """What a strike is given: the cluster, the run's clock, and the fault's id."""

    world: World
    clock: Clock
    fault: str


class Injection(ABC):
    """One live use of a fault. ``targets`` and ``undo`` are known before ``inject`` is called."""

    targets: Targets
    undo: Undo

    @abstractmethod
    async def inject(self) -> None:
        """Do the harm. FaultError if it could not be done; the undo is performed then as well."""

    @abstractmethod
    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report what is seen, at least once, and return at ``until_us`` (None: when seen once).

        A witness that fails is reported with ``ok=False``, not raised.
        """

    async def confirm_healed(self) -> None:  # noqa: B027 -- most harm is gone when its undo returns
        """Return once the cluster shows that the undo took hold; FaultError after a deadline."""

    @property
    def undo_after(self) -> Undo:
        """What is left to undo once the action is done, for a fault without ``for``: nothing, it stays."""
        return NOTHING


class Fault(BaseModel, ABC):
    """One thing that goes wrong. Its parameters are its fields, so schema, docs and check come from here."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    family: ClassVar[Family] = "other"
    band: ClassVar[Band]
    proof: ClassVar[str]
    """What its witness sees, for the catalogue."""
    remedy: ClassVar[str]
    """What its heal brings back, for the catalogue."""
    permanent_effect: ClassVar[str | None] = None
    """What no heal brings back, for a kind without an inverse: a cluster that met it is not handed to another test."""
    exposure_target: ClassVar[TargetKind]
    """Which of its targets traffic must have gone to for the fault to have been met."""
    drops_traffic: ClassVar[bool] = False
    """Whether it ends all traffic to its targets: then what went there right before counts as having met it."""
    closes_connections: ClassVar[bool] = False
    """Whether connections to its targets are closed as it begins: else whoever waits on one waits for a timeout."""
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    for_rule: ClassVar[Literal["needed", "optional", "refused"]]
    allowance_ms: ClassVar[int]
    """How long injecting and healing may take beyond ``for``; the compiler leaves this much room."""

    kind: str
    id: FaultId | None = None
    at: Duration = 0
    for_: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="for")

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **handler(self)}  # also when defaults are left out: `kind` says which fault it is

    def parameters(self) -> dict[str, Any]:
        """What makes this fault different from others of its kind, in the plan's own words."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: value for key, value in plain.items() if key not in ("kind", "id", "at", "for")}

    def impact(self) -> Impact:
        """What is missing while it lasts. A kind that does not say is given the benefit of every doubt."""
        return "unknown"

    def effective_exposure_target(self) -> TargetKind:
        """``met_by``, for a kind where it depends on what the plan says."""
        return self.exposure_target

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Every random choice this fault needs, drawn from a stream of its own. Most need none but ``any`` roles."""
        anys = sorted(place for place, text in self.roles().items() if needs_draw(parse(text)))
        return {"any." + ".".join(place): source.random() for place in anys}

    def roles(self) -> dict[FieldPath, str]:
        """The roles it names, by where they stand in the fault: ``{("broker",): "leader of orders/0"}``."""
        return {}

    def links(self) -> dict[FieldPath, str]:
        """The links it names, likewise."""
        return {}

    def racks(self) -> dict[FieldPath, str]:
        """The racks it names, likewise."""
        return {}

    def topics(self) -> dict[FieldPath, str]:
        """The topics it names, likewise."""
        return {}

    def clients(self) -> dict[FieldPath, str]:
        """The arms it names, likewise."""
        return {}

    def nodes(self, plan: PlanContext) -> frozenset[int]:  # noqa: ARG002 -- a rack's nodes are known from the plan
        """The nodes it is sure to hit, as far as the plan alone can tell: a role may be played by anybody."""
        return frozenset(int(text) for text in self.roles().values() if text.isdecimal())

    def kafka_versions(self) -> tuple[str, ...]:
        """The Kafka versions whose images it needs: they are had before the load, not in its midst."""
        return ()

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- most have nothing to add
        """What of it doesn't fit the rest of the plan, beyond names; places are counted from the fault itself."""
        yield from ()

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- as above
        """What is allowed, but may not be what was meant; likewise."""
        yield from ()

    @abstractmethod
    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the targets as the cluster is now. FaultError, with a sentence, when there is nothing to hit."""
