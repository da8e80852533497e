"""Exceptions that Aftershock raises on purpose.

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
    │   └── ClientError          a reference client can't complete a request
    │       ├── ProtocolError    the peer sent bytes that are not a valid Kafka message, or exceed its limits
    │       ├── UnsupportedError a version, an API or a codec that only one side supports
    │       ├── SettingError     an unknown setting, or an invalid value
    │       ├── AuthenticationError  authentication of the client or of the broker failed
    │       └── BrokerError      Kafka answered with an error that is not retriable
    └── EvidenceError            evidence is missing, truncated or of the wrong shape

A message says what happened, where, and what to do about it, in that order.
"""

from collections.abc import Sequence


class AftershockError(Exception):
    """Base of all errors meant for users; the text is one clear sentence or more."""


class PlanError(AftershockError):
    """A plan that can't run. ``problems`` holds one ``file:line:column: problem, and remedy`` per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class EngineError(AftershockError):
    """The Docker engine is absent or unreachable, or refused a request."""


class ImageError(EngineError):
    """An image is missing, can't be pulled, and could not be built; the text names the step and its log."""


class ClusterError(AftershockError):
    """The cluster did not become ready, or a node did not come back in time."""


class AdminError(ClusterError):
    """Kafka answered an administrative request with an error; ``code`` is Kafka's error name."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class FaultError(AftershockError):
    """A fault could not be injected (its target is gone, for example), or could not be healed."""


class LeaseError(AftershockError):
    """The lease files of this host or of a pool of clusters can't be used: foreign owner or unexpected content."""


class WorkloadError(AftershockError):
    """A client process could not be started, or ended too early."""


class ClientError(WorkloadError):
    """A reference client could not start or could not continue."""


class ProtocolError(ClientError):
    """The peer sent bytes that are not a valid Kafka message, or exceed its limits. The connection is closed."""


class UnsupportedError(ClientError):
    """A version, an API or a compression codec that only one side supports; the text gives both sides' ranges."""


class SettingError(ClientError):
    """An unknown setting or an invalid value; the text names the nearest valid one."""


class AuthenticationError(ClientError):
    """A broker rejects the client's credentials, or can't prove its own identity. The text holds no secret."""


class BrokerError(ClientError):
    """Kafka answered with an error that is not retriable; ``code`` is Kafka's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EvidenceError(AftershockError):
    """An evidence file is missing, truncated, or not of the declared shape; the text names the file."""
