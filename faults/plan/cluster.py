"""What every part of a plan is made of: a model that takes no unknown key, Kafka's settings, the name of a rack.

A cluster that is attached, not launched: what a plan says of it under ``cluster: {attach: …}``.

Rules: what is not named here is not touched, so proxies, brokers and topics to create are named one by one. A secret is
``${NAME}``, the environment variable that holds it; a literal one is refused, and the refusal doesn't repeat it.
``docs/ATTACH.md`` is the document.

The cluster that a plan wants: racks and brokers, what they are set to, their disks; or one that runs already.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from aftershock.faults.plan.units import Size


def text_of(value: object) -> object:
    """Kafka's configs are text: ``2`` -> ``"2"``, ``true`` -> ``"true"``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


RackName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
ConfigText = Annotated[str, BeforeValidator(text_of)]


class Part(BaseModel):
    """Base of every part of a plan: no unknown keys, no change after the fact."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_HOST_PORT = r"[^\s,/@]+:\d{1,5}"


def _variable(value: object) -> object:
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        return value
    raise _refused("a secret doesn't stand in a plan: put it into an environment variable, and say ${ITS_NAME} here")


Secret = Annotated[str, BeforeValidator(_variable), WithJsonSchema({"type": "string", "pattern": _VARIABLE.pattern})]
Hosts = Annotated[str, Field(pattern=rf"^{_HOST_PORT}(,{_HOST_PORT})*$")]
HostPort = Annotated[str, Field(pattern=rf"^(http://)?{_HOST_PORT}/?$")]
Rack = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
BrokerId = Annotated[StrictInt, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Security(_Part):
    """How clients and harness connect, in Kafka's words. Files are PEM, their paths relative to the working directory.

    ``ca``: whom to believe, the system's authorities if it isn't said; ``certificate`` and ``key``: ours, for mTLS.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    user: str | None = None
    password: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: Secret | None = None
    verify_hostname: StrictBool = True

    @model_validator(mode="after")
    def _complete(self) -> Self:
        login = {"mechanism": self.mechanism, "user": self.user, "password": self.password}
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key, "key_password": self.key_password}
        self._fits(login, "SASL", wanted=self.protocol.startswith("SASL"), all_of_it=True)
        self._fits(files, "SSL", wanted=self.protocol.endswith("SSL"), all_of_it=False)
        if bool(self.certificate) != bool(self.key) or (self.key_password and not self.key):
            raise _refused("`certificate` and `key` belong together, and `key_password` to a `key`: say both, or none")
        return self

    def _fits(self, said: dict[str, str | None], what: str, *, wanted: bool, all_of_it: bool) -> None:
        if not wanted and (needless := [name for name, value in said.items() if value is not None]):
            raise _refused(f"`{needless[0]}` is for {what}, and the protocol is {self.protocol}: take it away")
        if wanted and all_of_it and (missing := [name for name, value in said.items() if not value]):
            raise _refused(f"`protocol: {self.protocol}` needs `{missing[0]}`: add it")


class Attach(_Part):
    """A cluster that runs already, and what of it may be touched.

    Attributes:
        bootstrap: ``host:port`` of brokers as clients dial them, several with commas between them.
        admin: likewise for the harness itself, where there is a way that no fault touches.
        rack: what the place where the clients stand is called in links: the ``a`` of ``client(a) -> broker(1)``.
        racks: what the plan calls brokers' racks whose own names (``broker.rack``) no plan can say.
        toxiproxy: where the API of your Toxiproxy listens.
        proxies: its proxies that faults may use, each with the broker that clients reach through it.
        brokers: the brokers whose own settings and fetch sessions faults may touch.
        create: the plan's topics that the run creates, and deletes when it is over; all others must be there.
    """

    bootstrap: Hosts
    admin: Hosts | None = None
    rack: Rack = "a"
    racks: dict[Rack, str] = {}
    toxiproxy: HostPort | None = None
    proxies: dict[str, BrokerId] = {}
    brokers: tuple[BrokerId, ...] = ()
    create: tuple[TopicName, ...] = ()
    security: Security = Security()

    @field_validator("security", mode="before")
    @classmethod
    def _said_in_parts(cls, value: Any) -> Any:
        if isinstance(value, dict | Security):
            return value
        raise _refused("say it in parts: `protocol`, `mechanism`, `user`, `password: ${NAME}`, `ca`, …")

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if bool(self.proxies) != bool(self.toxiproxy):
            raise _refused("`toxiproxy` (its API) and `proxies` (which of them may be used) belong together: say both")
        if len(set(self.proxies.values())) < len(self.proxies):
            raise _refused("two of the `proxies` lead to one broker: name the one that the clients go through")
        if len(set(self.racks.values())) < len(self.racks):
            raise _refused("two of the `racks` are one: give each broker.rack one name")
        return self


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


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
    ] = {"a": 1, "b": 1, "c": 1}
    profile: Literal["fast", "production"] = "fast"
    controllers: Annotated[Literal[0, 1, 3, 5], Field(description="isolated controllers; 0: combined nodes")] = 0
    disks: Disks | None = None
    wire_proxy: Annotated[
        StrictBool, Field(description="clients pass a proxy that faults in the protocol need; a plan with one has it")
    ] = False
    config: Annotated[
        dict[str, ConfigText], Field(description="settings of every node; an empty one leaves Kafka's own default")
    ] = {}
    brokers: Annotated[
        dict[BrokerNumber, Annotated[dict[str, ConfigText], Field(min_length=1)]] | None,
        Field(description="settings of one broker, by its number: they win over `config`"),
    ] = None
    attach: Attach | None = None

    @field_validator("racks")
    @classmethod
    def _not_too_many(cls, racks: dict[str, int]) -> dict[str, int]:
        if sum(racks.values()) > NODES_MAX:
            raise _refused_setting(
                f"{sum(racks.values())} brokers are too many for one host: ask for {NODES_MAX} at most"
            )
        return racks

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.attach and (needless := sorted(self.model_fields_set - {"attach"})):
            raise _refused_setting(
                f"`{needless[0]}` is for launching a cluster, and `attach` takes one that runs: say one"
            )
        return self

    @model_validator(mode="after")
    def _brokers_there(self) -> Self:
        if unknown := sorted(self.brokers.keys() - self.broker_racks.keys()) if self.brokers else []:
            raise _refused_setting(
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


def _refused_setting(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
