"""SASL login to a broker, as a generator without I/O that yields requests and receives their responses.

SaslHandshake requests select the mechanism, then SaslAuthenticate requests carry the mechanism's messages; both are
ordinary Kafka requests since SaslHandshake v1 (KIP-152). A broker that limits sessions (KIP-368) closes the connection
when the session ends, and the client connects again. Supported SASL mechanisms are PLAIN (RFC 4616), SCRAM-SHA-256 and
SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84).
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Generator
from hmac import compare_digest, digest
from typing import Any

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.static.protocol import RequestPayload

from aftershock.errors import AuthenticationError
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.security import Security

Login = Generator[RequestPayload, Any, None]
Conversation = Generator[bytes, bytes, None]
"""Client's side of a SASL mechanism: a generator that yields the client's messages and receives the server's."""

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
"""Limit of SCRAM iterations, with which a hostile server could block the client; Kafka allows at most 16384."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NO_BINDING = "n,,"  # RFC 5802: no channel binding
_NONCE_BYTES = 24


def login(security: Security) -> Login:
    """Log in to a broker by SASL; yields no request if ``security`` has no SASL mechanism.

    Raises AuthenticationError, without secrets in the text, if the broker refuses the client or cannot verify the
    broker.
    """
    if security.mechanism is None:
        return
    offer = yield SaslHandshakeRequest(mechanism=security.mechanism)
    if offer.error_code:
        offered = ", ".join(offer.mechanisms) or "none"
        raise AuthenticationError(
            f"the broker does not support {security.mechanism} on this listener; it supports: {offered}"
        )
    client = conversation(security.mechanism, security.user, security.password)
    message = next(client)
    while True:
        response = yield SaslAuthenticateRequest(auth_bytes=message)
        if response.error_code:
            reason = response.error_message or codes.name(response.error_code)
            raise AuthenticationError(f"the broker refuses user {security.user} by {security.mechanism}: {reason}")
        try:
            message = client.send(response.auth_bytes)
        except StopIteration:
            return


def conversation(mechanism: str, user: str, password: str) -> Conversation:
    """Return a generator of the client's SASL messages for PLAIN or SCRAM."""
    if mechanism == "PLAIN":
        return plain(user, password)
    return scram(_HASHES[mechanism], user, password, secrets.token_urlsafe(_NONCE_BYTES))


def plain(user: str, password: str) -> Conversation:
    """Generate the message of SASL PLAIN (RFC 4616), without an authorisation identity."""
    yield f"\0{user}\0{password}".encode()


def scram(algorithm: str, user: str, password: str, nonce: str) -> Conversation:
    """Generate the client's SCRAM messages (RFC 5802); ``nonce`` is random printable ASCII without a comma."""
    client_first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = yield (_NO_BINDING + client_first).encode()
    challenge = _attributes(server_first)
    server_nonce, iterations_text = challenge.get("r", ""), challenge.get("i", "")
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        raise AuthenticationError("the server's nonce does not extend the client's: the connection may be intercepted")
    iterations = int(iterations_text) if iterations_text.isdecimal() else 0
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise AuthenticationError(
            f"the server requests {iterations_text} SCRAM iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), _decode(challenge.get("s", "")), iterations)

    client_final = f"c={base64.b64encode(_NO_BINDING.encode()).decode()},r={server_nonce}"
    signed = b",".join((client_first.encode(), server_first, client_final.encode()))
    client_key = digest(salted, b"Client Key", algorithm)
    signature = digest(hashlib.new(algorithm, client_key).digest(), signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = _attributes((yield f"{client_final},p={base64.b64encode(proof).decode()}".encode()))

    server_signature = digest(digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not compare_digest(_decode(server_final.get("v", "")), server_signature):
        raise AuthenticationError("the server's SCRAM signature is wrong: the server does not know the password")


def _attributes(message: bytes) -> dict[str, str]:
    """Parse a server's SCRAM message; raise AuthenticationError for an error or a required extension."""
    try:
        attributes = dict(part.split("=", 1) for part in message.decode().split(","))
    except ValueError:
        raise AuthenticationError("the server's SCRAM message can't be parsed") from None
    if "m" in attributes:  # RFC 5802, 5.1: a client must not ignore a mandatory extension
        raise AuthenticationError("the server requires a SCRAM extension that this client does not support")
    if "e" in attributes:
        raise AuthenticationError(f"the server reports the SCRAM error {attributes['e']}")
    return attributes


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("the server's SCRAM message contains invalid base64") from None
