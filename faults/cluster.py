"""The cluster that a plan wants: racks and brokers, what they are set to, their disks; or one that runs already."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from aftershock.faults.attach import Attach
from aftershock.faults.part import ConfigText, Part, RackName
from aftershock.faults.units import Size

NODES_MAX = 9
RACKS_MAX = 5
_MIB = 1_048_576
BrokerNumber = Annotated[int, Field(ge=1, le=NODES_MAX)]


class Disks(Part):
    """Log directories of their own: ``count`` for each broker, each of ``size`` and no more, in memory.

    They outlive a broker's death, not the cluster's. The metadata log never lies there.
    """

    count: Annotated[StrictInt, Field(ge=1, le=4)] = 1
    size: Annotated[Size, Field(ge=16 * _MIB, le=1024 * _MIB)] = 64 * _MIB


class Cluster(Part):
    """The cluster to break. ``racks`` maps a rack to its number of brokers; ``attach``: yours, in place of all else."""

    kafka: Annotated[str, Field(pattern=r"^(default|\d+\.\d+\.\d+)$")] = "default"
    racks: Annotated[
        dict[RackName, Annotated[StrictInt, Field(ge=1, le=NODES_MAX)]], Field(min_length=1, max_length=RACKS_MAX)
    ] = {"a": 1, "b": 1, "c": 1}  # noqa: RUF012 -- pydantic copies defaults
    profile: Literal["fast", "production"] = "fast"
    controllers: Annotated[Literal[0, 1, 3, 5], Field(description="isolated controllers; 0: combined nodes")] = 0
    disks: Disks | None = None
    wire_proxy: Annotated[
        StrictBool, Field(description="clients pass a proxy that faults in the protocol need; a plan with one has it")
    ] = False
    config: Annotated[
        dict[str, ConfigText], Field(description="settings of every node; an empty one leaves Kafka's own default")
    ] = {}  # noqa: RUF012 -- pydantic copies defaults
    brokers: Annotated[
        dict[BrokerNumber, Annotated[dict[str, ConfigText], Field(min_length=1)]] | None,
        Field(description="settings of one broker, by its number: they win over `config`"),
    ] = None
    attach: Attach | None = None

    @field_validator("racks")
    @classmethod
    def _not_too_many(cls, racks: dict[str, int]) -> dict[str, int]:
        if sum(racks.values()) > NODES_MAX:
            raise _refused(f"{sum(racks.values())} brokers are too many for one host: ask for {NODES_MAX} at most")
        return racks

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.attach and (needless := sorted(self.model_fields_set - {"attach"})):
            raise _refused(f"`{needless[0]}` is for launching a cluster, and `attach` takes one that runs: say one")
        return self

    @model_validator(mode="after")
    def _brokers_there(self) -> Self:
        if unknown := sorted(self.brokers.keys() - self.broker_racks.keys()) if self.brokers else []:
            raise _refused(
                f"there is no broker {unknown[0]} to give settings to: the cluster's are 1 to {len(self.broker_racks)}"
            )
        return self

    @property
    def broker_racks(self) -> dict[int, str]:
        """The rack of each broker: brokers are numbered from 1, rack after rack, as the plan lists them."""
        homes = [rack for rack, brokers in self.racks.items() for _ in range(brokers)]
        return dict(enumerate(homes, start=1))

    @property
    def node_racks(self) -> dict[int, str]:
        """The rack of each node: isolated controllers are numbered from 11 and go round the racks."""
        racks = list(self.racks)
        return self.broker_racks | {11 + i: racks[i % len(racks)] for i in range(self.controllers)}


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
