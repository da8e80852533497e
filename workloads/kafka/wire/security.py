"""Security settings of a client connection (Kafka's security protocol, SASL credentials and TLS certificates).

``workloads/load/security.py`` builds the ``Security`` settings from the plan; a client certificate and key make TLS
mutual (mTLS).
"""

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True)
class Security:
    """Security settings of a client connection, whose ``repr`` omits the passwords.

    ``ca`` is a PEM file of trusted certificates, None for those of the operating system. ``certificate`` and ``key``
    are PEM files of the client. ``mechanism``, ``user`` and ``password`` are used for SASL only.
    """

    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str = field(default="", repr=False)
    verify_hostname: bool = True

    @property
    def encrypted(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """TLS context; None without TLS. Raises OSError if a certificate or key can't be read or is invalid."""
        if not self.encrypted:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = self.verify_hostname
        if self.certificate:
            # Without a password callback, OpenSSL would ask for the key's password on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: self.key_password)
        return context


PLAINTEXT = Security()
