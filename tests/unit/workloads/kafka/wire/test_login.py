"""SASL logins: RFC examples, invalid servers, requests and responses without a socket."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeResponse

from aftershock.errors import AuthenticationError
from aftershock.workloads.kafka.wire.login import Conversation, Login, conversation, login, plain, scram
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

ALICE = Security("SASL_PLAINTEXT", "PLAIN", "alice", "opensesame")
OFFER = SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))


def authenticated(code: ErrorCode = ErrorCode.none, message: str | None = None) -> Any:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")


def begun() -> tuple[Login, Any, Any]:
    steps = login(ALICE)
    return steps, next(steps), steps.send(OFFER)


def test_without_sasl_no_request_is_sent() -> None:
    """Plain text, or TLS only."""
    assert [] == list(login(PLAINTEXT)) == list(login(Security("SSL")))


def test_handshake_then_the_mechanisms_messages() -> None:
    """The mechanism is named, then its message goes as it is, and an answer without error ends it."""
    steps, handshake, message = begun()
    assert "PLAIN" == handshake.mechanism
    assert b"\0alice\0opensesame" == message.auth_bytes
    with pytest.raises(StopIteration):
        steps.send(authenticated())


def test_an_unknown_mechanism_is_an_error_with_the_known_ones() -> None:
    """Kafka answers UNSUPPORTED_SASL_MECHANISM with its list."""
    steps = login(ALICE)
    next(steps)
    offer = SaslHandshakeResponse(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=("GSSAPI", "OAUTHBEARER"))
    with pytest.raises(
        AuthenticationError, match="does not support PLAIN on this listener; it supports: GSSAPI, OAUTHBEARER"
    ):
        steps.send(offer)


@pytest.mark.parametrize(("message", "told"), [("Authentication failed", "Authentication failed"), (None, "SASL_AUTH")])
def test_a_refusal_names_the_user_and_no_secret(message: str | None, told: str) -> None:
    """The broker's words, or the name of its error."""
    steps, _, _ = begun()
    with pytest.raises(AuthenticationError, match=f"refuses user alice by PLAIN: {told}") as refused:
        steps.send(authenticated(ErrorCode.sasl_authentication_failed, message))
    assert "opensesame" not in str(refused.value)


RFC_5802 = (
    "sha1",
    "fyko+d2lbbFgONRv9qkxdawL",
    b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    "sha256",
    "rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
NONCE = RFC_7677[1]


def over(talk: Conversation, last: bytes) -> bool:
    """Whether the server's last message ends the conversation well."""
    with pytest.raises(StopIteration):
        talk.send(last)
    return True


@pytest.mark.parametrize(("algorithm", "nonce", "server_first", "client_final", "server_final"), [RFC_5802, RFC_7677])
def test_the_examples_of_the_rfcs(
    algorithm: str, nonce: str, server_first: bytes, client_final: bytes, server_final: bytes
) -> None:
    """RFC 5802, 5 and RFC 7677, 3, byte by byte, to the verified end."""
    talk = scram(algorithm, "user", "pencil", nonce)
    assert f"n,,n=user,r={nonce}".encode() == next(talk)
    assert client_final == talk.send(server_first)
    assert over(talk, server_final)


def test_sha512_agrees_with_a_server_of_its_own_words() -> None:
    """The server's side, computed the other way round (from the stored key), accepts our proof."""
    talk = scram("sha512", "bob", "pä=ss,", "abc")
    first = next(talk)[3:].decode()
    salt, nonce = b"salted", "abcdef"
    answer = f"r={nonce},s={base64.b64encode(salt).decode()},i=8192"
    final, _, proof = talk.send(answer.encode()).decode().rpartition(",p=")
    salted = hashlib.pbkdf2_hmac("sha512", "pä=ss,".encode(), salt, 8192)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    said = f"{first},{answer},{final}".encode()
    signature = hmac.digest(hashlib.sha512(client_key).digest(), said, "sha512")
    assert client_key == bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), said, "sha512")
    assert over(talk, b"v=" + base64.b64encode(server))


def test_names_are_escaped() -> None:
    """A comma or an equals sign in a name would end it (RFC 5802, 5.1)."""
    assert b"n,,n=a=3Db=2Cc,r=x" == next(scram("sha256", "a=b,c", "p", "x"))


def test_plain_is_one_message() -> None:
    """RFC 4616: no authorisation identity, the name, the password; the answer ends it."""
    talk = plain("tim", "tanstaaftanstaaf")
    assert b"\0tim\0tanstaaftanstaaf" == next(talk)
    assert over(talk, b"")


def test_nonces_differ() -> None:
    """Every conversation has its own."""
    assert next(conversation("SCRAM-SHA-256", "u", "p")) != next(conversation("SCRAM-SHA-256", "u", "p"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RFC_7677[2].replace(b"i=4096", b"i=4095"), "4095 SCRAM iterations"),
        (RFC_7677[2].replace(b"i=4096", b"i=9999999"), "9999999 SCRAM iterations"),
        (RFC_7677[2].replace(b"i=4096", b"i=x"), "x SCRAM iterations"),
        (f"r={NONCE},s=AAAA,i=4096".encode(), "nonce"),
        (b"r=another,s=AAAA,i=4096", "nonce"),
        (f"r={NONCE}+,s=!!!!,i=4096".encode(), "base64"),
        (b"m=must," + RFC_7677[2], "extension"),
        (b"e=unknown-user", "unknown-user"),
        (b"\xff\xfe", "can't be parsed"),
        (b"nonsense", "can't be parsed"),
    ],
)
def test_a_server_that_asks_for_the_wrong_thing_is_refused(answer: bytes, why: str) -> None:
    """Too few iterations, a nonce that isn't ours and its, and what is no SCRAM; never with the password in it."""
    talk = scram("sha256", "user", "pencil", NONCE)
    next(talk)
    with pytest.raises(AuthenticationError, match=why) as refused:
        talk.send(answer)
    assert "pencil" not in str(refused.value)


@pytest.mark.parametrize(
    "last",
    [
        lambda right: right.replace(b"v=6", b"v=7"),
        lambda _: b"v=",
        lambda _: b"",
        lambda _: b"e=invalid-proof",
    ],
)
def test_a_server_that_cannot_sign_is_refused(last: Callable[[bytes], bytes]) -> None:
    """One that doesn't know the password's derivative is an impostor."""
    talk = scram("sha256", "user", "pencil", NONCE)
    next(talk)
    talk.send(RFC_7677[2])
    with pytest.raises(AuthenticationError):
        talk.send(last(RFC_7677[4]))
