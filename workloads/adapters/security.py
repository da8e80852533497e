"""How the clients of an attached cluster connect: the plan's words, and what they are in each client's own words.

Rules: secrets are named here by the environment variable that holds them (``${KAFKA_PASSWORD}``), so that an assignment
can lie on a disk; each process reads its own environment when it makes its client. Files are named by absolute paths.
Java clients run in a container that has none of the files, so theirs go over the pipe as PEM text.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from aftershock.errors import WorkloadError
from aftershock.workloads.kafka.wire.security import Mechanism, Protocol, Security

Config = dict[str, str | int | float | bool]
_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM_MODULE = "scram.ScramLoginModule"


class Secured(BaseModel):
    """What a plan says under ``security``; ``password`` and ``key_password`` are ``${NAME}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism | None = None
    user: str | None = None
    password: str | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    verify_hostname: bool = True

    def resolved(self, environment: Mapping[str, str] = os.environ) -> Security:
        """With its secrets. WorkloadError, naming the variable, where one is missing."""
        return Security(
            self.protocol,
            self.mechanism,
            self.user or "",
            _secret(self.password, environment),
            self.ca,
            self.certificate,
            self.key,
            _secret(self.key_password, environment),
            self.verify_hostname,
        )


OPEN = Secured()


def librdkafka(security: Security) -> Config:
    """In librdkafka's words, which the programs of ``exec`` clients are given as well; nothing for PLAINTEXT."""
    if security.protocol == "PLAINTEXT":
        return {}
    said = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.user,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca and str(security.ca),
        "ssl.certificate.location": security.certificate and str(security.certificate),
        "ssl.key.location": security.key and str(security.key),
        "ssl.key.password": security.key_password,
    }
    if security.encrypted:
        said["ssl.endpoint.identification.algorithm"] = "https" if security.verify_hostname else "none"
    return {name: value for name, value in said.items() if value}


def kafka(security: Security) -> Config:
    """In the words of Kafka's own clients, the files' contents in place of the files (KIP-651); likewise."""
    if security.protocol == "PLAINTEXT":
        return {}
    said: Config = {"security.protocol": security.protocol}
    if security.mechanism:
        said |= {"sasl.mechanism": security.mechanism, "sasl.jaas.config": _jaas(security)}
    if security.encrypted and not security.verify_hostname:
        said["ssl.endpoint.identification.algorithm"] = ""
    if security.encrypted and security.ca:
        said |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": security.ca.read_text()}
    if security.encrypted and security.certificate and security.key:
        said |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": security.key.read_text()}
        said["ssl.keystore.certificate.chain"] = security.certificate.read_text()
        said |= {"ssl.key.password": security.key_password} if security.key_password else {}
    return said


def _jaas(security: Security) -> str:
    module = _MODULES.get(security.mechanism or "", _SCRAM_MODULE)
    user, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (security.user, security.password))
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


def _secret(place: str | None, environment: Mapping[str, str]) -> str:
    if place is None:
        return ""
    name = place.removeprefix("${").removesuffix("}")
    if not environment.get(name):
        raise WorkloadError(
            f"the plan takes a secret from the environment variable {name}, which is not set: export it"
        )
    return environment[name]
