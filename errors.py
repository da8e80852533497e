"""Exceptions that Aftershock raises on purpose, and the type of the functions that show progress lines to users.

::

    AftershockError              exit code 3 at the command line
    ├── PlanError                a plan that can't run; lists every problem as file:line:column
    ├── EngineError              no Docker engine, or the engine refused a request
    │   └── ImageError           an image is missing, can't be pulled and can't be built
    ├── ClusterError             a cluster or node did not become ready in time
    │   └── AdminError           Kafka answered an administrative request with an error
    ├── FaultError               a fault could not be injected or healed
    ├── LeaseError               the host or a cluster of a pool can't be leased
    ├── WorkloadError            a client process died or can't be started
    │   ├── ProgramError         a version of a client does not exist, can't be built, or lacks what a plan needs
    │   ├── ClientDiedError      a client program ended by itself
    │   └── ClientError          a reference client can't complete a request
    │       ├── ProtocolError    the peer sent bytes that are not a valid Kafka message, or exceed its limits
    │       ├── UnsupportedError only one side supports a version, an API or a codec
    │       ├── SettingError     an unknown setting, or an invalid value
    │       ├── AuthenticationError  authentication of the client or of the broker failed
    │       └── BrokerError      Kafka answered with an error that is not retriable
    └── EvidenceError            evidence is missing, truncated or of the wrong shape

Each error message says what happened, where, and what to do about it, in that order.
"""

import re
from collections.abc import Callable, Sequence

from aftershock.redaction import redact

Log = Callable[[str], None]
"""Function that receives each progress line for the user as text without a newline."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class AftershockError(Exception):
    """Base class of all exceptions that are meant for users.

    The exception's text consists of whole sentences, and contains no secrets.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact(text) if isinstance(text, str) else text for text in arguments))


class PlanError(AftershockError):
    """A plan can't run; ``problems`` lists its problems, each with file, line, column and remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        # a plan's own text must not look like another problem, or move the terminal's cursor
        self.problems = tuple(_CONTROL.sub(lambda match: repr(match[0])[1:-1], redact(problem)) for problem in problems)
        super().__init__("\n".join(self.problems))


class EngineError(AftershockError):
    """The Docker engine is absent or unreachable, or refused a request."""


class ImageError(EngineError):
    """A Docker image is missing, can't be pulled and could not be built; the text names the failed step and its log."""


class ClusterError(AftershockError):
    """A cluster did not become ready, or one of its nodes did not come back, within the time limit."""


class AdminError(ClusterError):
    """Kafka answered an administrative request with an error; ``code`` is Kafka's error name."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class FaultError(AftershockError):
    """A fault could not be injected (its target is gone, for example), or could not be healed."""


class LeaseError(AftershockError):
    """A lock file of the host or a file of a cluster pool can't be used, or the pool belongs to another process."""


class WorkloadError(AftershockError):
    """A client process could not be started, or ended too early."""


class ProgramError(WorkloadError):
    """A version of a client is not in its package registry, can't be built, or lacks what a plan needs."""


class ClientDiedError(WorkloadError):
    """A client program ended by itself.

    ``cause`` says how, in short. ``status`` is its exit status, or the negative number of the signal that ended it;
    None if it gave up or closed its output without ending. ``lines`` are the last of its standard error.
    """

    def __init__(self, message: str, cause: str, status: int | None = None, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.cause, self.status, self.lines = redact(cause), status, tuple(lines)


class ClientError(WorkloadError):
    """A reference client could not start or could not continue."""


class ProtocolError(ClientError):
    """A broker sent bytes that are not a valid Kafka message, or that exceed the limits; the connection is closed."""


class UnsupportedError(ClientError):
    """Client and broker have no request version, API or compression codec in common; the text says what is missing."""


class SettingError(ClientError):
    """A client setting is unknown, missing or has an invalid value; the text says how to correct the setting."""


class AuthenticationError(ClientError):
    """A broker rejects the client's credentials, or can't prove its own identity; the text contains no secret."""


class BrokerError(ClientError):
    """Kafka answered with an error that is not retriable; ``code`` is Kafka's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EvidenceError(AftershockError):
    """An evidence file is missing, truncated, or not of the declared shape; the text names the file."""
