"""A cluster that is attached, not launched: what a plan says of it under ``cluster: {attach: …}``.

Rules: what is not named here is not touched, so proxies, brokers and topics to create are named one by one. A secret is
``${NAME}``, the environment variable that holds it; a literal one is refused, and the refusal doesn't repeat it.
``docs/ATTACH.md`` is the document.
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
