"""The login's requests and what it makes of the answers, without a socket."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeResponse

from aftershock.errors import AuthenticationError
from aftershock.workloads.kafka.wire.login import Login, login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

ALICE = Security("SASL_PLAINTEXT", "PLAIN", "alice", "opensesame")
OFFER = SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))


def authenticated(code: ErrorCode = ErrorCode.none, message: str | None = None) -> Any:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")


def begun() -> tuple[Login, Any, Any]:
    steps = login(ALICE)
    return steps, next(steps), steps.send(OFFER)


def test_without_sasl_nothing_is_said() -> None:
    """Plain text, or TLS alone."""
    assert [] == list(login(PLAINTEXT)) == list(login(Security("SSL")))


def test_handshake_then_the_mechanisms_messages() -> None:
    """The mechanism is named, then its message goes as it is, and an answer without error ends it."""
    steps, handshake, message = begun()
    assert "PLAIN" == handshake.mechanism
    assert b"\0alice\0opensesame" == message.auth_bytes
    with pytest.raises(StopIteration):
        steps.send(authenticated())


def test_an_unknown_mechanism_is_told_with_those_there_are() -> None:
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
