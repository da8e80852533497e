"""SASL login to a broker, as a generator of requests that is sent each response (no I/O of its own).

SaslHandshake comes first, then SaslAuthenticate as often as the mechanism requires. The blocking connection and the
asyncio channel both use it. Since version 1 of the handshake (KIP-152) the mechanism's messages are Kafka requests. A
broker that limits sessions (KIP-368) closes the connection when the session ends, and the client connects again.
Mechanisms: PLAIN (RFC 4616) and SCRAM-SHA-256/-512 (RFC 5802, RFC 7677, KIP-84).
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Generator
from typing import Any

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.static.protocol import RequestPayload

from aftershock.errors import AuthenticationError
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.security import Security

Conversation = Generator[bytes, bytes, None]

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
"""Kafka's own limit is 16384; more than this would keep a client busy for seconds, at a hostile server's word."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *_HASHES)
_NO_BINDING = "n,,"
_NONCE_BYTES = 24


def conversation(mechanism: str, user: str, password: str) -> Conversation:
    """The client's side of one of MECHANISMS, with a fresh nonce where it takes one."""
    if mechanism == "PLAIN":
        return plain(user, password)
    return scram(_HASHES[mechanism], user, password, secrets.token_urlsafe(_NONCE_BYTES))


def plain(user: str, password: str) -> Conversation:
    """RFC 4616, without an identity to act as."""
    yield f"\0{user}\0{password}".encode()


def scram(algorithm: str, user: str, password: str, nonce: str) -> Conversation:
    """RFC 5802 with hashlib's ``algorithm``; ``nonce`` is printable ASCII without a comma, never used before."""
    first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    answer = _fields((yield (_NO_BINDING + first).encode()))
    salted = _salted(algorithm, password, answer, nonce)
    final = f"c={base64.b64encode(_NO_BINDING.encode()).decode()},r={answer['r']}"
    said = f"{first},{answer.raw},{final}".encode()
    client_key = _hmac(algorithm, salted, b"Client Key")
    signature = _hmac(algorithm, hashlib.new(algorithm, client_key).digest(), said)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = _fields((yield f"{final},p={base64.b64encode(proof).decode()}".encode()))
    _verify(verdict, _hmac(algorithm, _hmac(algorithm, salted, b"Server Key"), said))


class _Fields(dict[str, str]):
    """The attributes of a message; ``raw``: as it came, since it is signed."""

    raw: str


def _fields(message: bytes) -> _Fields:
    try:
        raw = message.decode()
        fields = _Fields(part.split("=", 1) for part in raw.split(","))
    except ValueError:
        raise AuthenticationError("the server's SCRAM message can't be read") from None
    fields.raw = raw
    if "m" in fields:  # RFC 5802, 5.1: an extension that must not be passed over
        raise AuthenticationError("the server wants a SCRAM extension that is unknown here")
    return fields


def _salted(algorithm: str, password: str, answer: _Fields, nonce: str) -> bytes:
    """The salted password, when the server's first message is one to go on with."""
    if "e" in answer:
        raise AuthenticationError(f"the server says: {answer['e']}")
    iterations = int(answer["i"]) if answer.get("i", "").isdecimal() else 0
    if not answer.get("r", "").startswith(nonce) or answer["r"] == nonce:
        raise AuthenticationError("the server's nonce is none of its own after ours: somebody may stand in between")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise AuthenticationError(
            f"the server asks for {answer.get('i')} iterations, {ITERATIONS_MIN} to {ITERATIONS_MAX} may be"
        )
    return hashlib.pbkdf2_hmac(algorithm, password.encode(), _bytes(answer.get("s", "")), iterations)


def _verify(verdict: _Fields, expected: bytes) -> None:
    if "e" in verdict:
        raise AuthenticationError(f"the server says: {verdict['e']}")
    if not hmac.compare_digest(_bytes(verdict.get("v", "")), expected):
        raise AuthenticationError("the server's signature is wrong: it doesn't know the password either")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("the server's SCRAM message holds what is no base64") from None


def _hmac(algorithm: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, algorithm)


Login = Generator[RequestPayload, Any, None]


def login(security: Security) -> Login:
    """Log in; nothing to say where ``security`` has no SASL.

    Raises:
        AuthenticationError: either side refused the other; never with a secret in its text.
    """
    if security.mechanism is None:
        return
    offer = yield SaslHandshakeRequest(mechanism=security.mechanism)
    if offer.error_code:
        has = ", ".join(offer.mechanisms) or "none"
        raise AuthenticationError(f"the broker has no {security.mechanism} on this listener; it has: {has}")
    talk = conversation(security.mechanism, security.user, security.password)
    message = next(talk)
    while True:
        answer = yield SaslAuthenticateRequest(auth_bytes=message)
        if answer.error_code:
            why = answer.error_message or codes.name(answer.error_code)
            raise AuthenticationError(f"the broker refuses user {security.user} by {security.mechanism}: {why}")
        try:
            message = talk.send(answer.auth_bytes)
        except StopIteration:
            return
