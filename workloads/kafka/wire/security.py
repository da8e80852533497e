"""How a connection is secured: what is encrypted, who we are, and whom we believe.

Kafka's four protocols: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL. With SSL, a certificate and key of ours make it mTLS.
Values only, secrets included, which is why those are left out of what is printed; who made them from what:
``workloads/security.py``.
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
    """One way to connect. ``ca``: PEM certificates to believe, None for the system's; ``certificate``, ``key``: ours.

    ``mechanism``, ``user`` and ``password`` are there with SASL.
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
        """Whether connections are TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """What TLS connections are made with, None without TLS. OSError where a file can't be read or used."""
        if not self.encrypted:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = self.verify_hostname
        if self.certificate:
            # without one given, OpenSSL would ask for a key's password on the terminal
            context.load_cert_chain(self.certificate, self.key, password=lambda: self.key_password)
        return context


PLAINTEXT = Security()
