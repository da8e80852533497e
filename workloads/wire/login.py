"""Who we are, said to a broker: SaslHandshake, then SaslAuthenticate as often as the mechanism has something to say.

Sans-IO: a generator of requests that is sent each one's response, for the blocking connection and the asyncio channel
alike. KIP-152: with version 1 of the handshake the mechanism's messages are Kafka requests. A broker that limits
sessions (KIP-368) closes the connection when one is over, and whoever used it connects again.
"""

from collections.abc import Generator
from typing import Any

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.static.protocol import RequestPayload

from aftershock.errors import AuthenticationError
from aftershock.workloads.wire import codes
from aftershock.workloads.wire.sasl import conversation
from aftershock.workloads.wire.security import Security

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
