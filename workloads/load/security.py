"""Security settings of a user's own cluster, and their translation into the settings of each client library."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from aftershock.errors import WorkloadError
from aftershock.redaction import remember
from aftershock.workloads.kafka.wire.security import Mechanism, Protocol, Security

Config = dict[str, str | int | float | bool]


class SecuritySettings(BaseModel):
    """Section ``security`` of a plan.

    ``password`` and ``key_password`` name environment variables (``${NAME}``), so that no assignment on disk contains
    secrets. The paths of ``ca``, ``certificate`` and ``key`` are absolute.
    """

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
        """Return the security settings with their secrets; raise WorkloadError for a missing environment variable."""

        def secret(reference: str | None) -> str:
            if reference is None:
                return ""
            name = reference.removeprefix("${").removesuffix("}")
            if not environment.get(name):
                raise WorkloadError(
                    f"the environment variable {name} is not set, and the plan takes a secret from it: export it"
                )
            remember(environment[name])
            return environment[name]

        return Security(
            self.protocol,
            self.mechanism,
            self.user or "",
            secret(self.password),
            self.ca,
            self.certificate,
            self.key,
            secret(self.key_password),
            self.verify_hostname,
        )


PLAINTEXT_SETTINGS = SecuritySettings()


def librdkafka_config(security: Security) -> Config:
    """Return librdkafka's security settings, which client programs (client ``exec``) receive too."""
    if security.protocol == "PLAINTEXT":
        return {}
    config = {
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
        config["ssl.endpoint.identification.algorithm"] = "https" if security.verify_hostname else "none"
    return {name: value for name, value in config.items() if value}


def java_config(security: Security) -> Config:
    """Return the security settings of Kafka's Java clients, with certificates as PEM text (KIP-651), not as files."""
    if security.protocol == "PLAINTEXT":
        return {}
    config: Config = {"security.protocol": security.protocol}
    if security.mechanism:
        module = "plain.PlainLoginModule" if security.mechanism == "PLAIN" else "scram.ScramLoginModule"
        user, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (security.user, security.password))
        jaas = f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'
        config |= {"sasl.mechanism": security.mechanism, "sasl.jaas.config": jaas}
    if security.encrypted and not security.verify_hostname:
        config["ssl.endpoint.identification.algorithm"] = ""
    if security.encrypted and security.ca:
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": security.ca.read_text()}
    if security.encrypted and security.certificate and security.key:
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": security.key.read_text()}
        config["ssl.keystore.certificate.chain"] = security.certificate.read_text()
        config |= {"ssl.key.password": security.key_password} if security.key_password else {}
    return config
