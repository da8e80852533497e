"""Everything Aftershock raises on purpose.

::

    AftershockError              exit code 3 at the command line
    ├── PlanError                the plan can't be run: every problem, with file:line:column
    ├── EngineError              no Docker engine, or it refused
    │   └── ImageError           an image is neither here, nor to be pulled, nor could it be built
    ├── ClusterError             the cluster did not come up, or did not come back
    │   └── AdminError           Kafka answered an administrative request with an error
    ├── FaultError               a fault could not be injected, or not be healed
    ├── LeaseError               the host or a cluster of a pool can't be leased
    ├── WorkloadError            a client process died or can't be started
    │   └── ClientError          a reference client can't do what it was asked to
    │       ├── ProtocolError    the peer sent what is no Kafka message, or one beyond its limits
    │       ├── UnsupportedError a version, an API or a codec that one side lacks
    │       ├── SettingError     a setting that does not exist, or a value it can't have
    │       ├── AuthenticationError  a broker doesn't believe us, or we don't believe it
    │       ├── RecordError      a record that can't be taken: too large, or no room for it in time
    │       └── BrokerError      Kafka answered with an error that trying again won't mend
    └── EvidenceError            evidence is missing, truncated or of the wrong shape

A message says what happened, where, and what to do about it, in that order.
"""

from collections.abc import Sequence


class AftershockError(Exception):
    """Base of all errors that a user is expected to read; its text is one clear sentence or more."""


class PlanError(AftershockError):
    """A plan that can't be run. ``problems`` holds one ``file:line:column: what, and what to do`` each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class EngineError(AftershockError):
    """The Docker engine is absent, unreachable, or refused what was asked of it."""


class ImageError(EngineError):
    """An image is not here, can't be pulled, and could not be built; the text names the step and its log."""


class ClusterError(AftershockError):
    """The cluster did not become ready, or a node did not come back in time."""


class AdminError(ClusterError):
    """Kafka answered an administrative request with an error; ``code`` is Kafka's error name."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class FaultError(AftershockError):
    """A fault could not be injected (its target is gone, say), or could not be healed."""


class LeaseError(AftershockError):
    """The lease files of this host, or of a pool of clusters, can't be used: somebody else's, or not what they seem."""


class WorkloadError(AftershockError):
    """A client process could not be started, or ended before it was told to."""


class ClientError(WorkloadError):
    """A reference client could not go on, or could not begin."""


class ProtocolError(ClientError):
    """The peer sent what is no Kafka message, or one beyond its limits. Its connection is closed."""


class UnsupportedError(ClientError):
    """A version, an API or a compression codec that one side lacks; the text names it and both sides' ranges."""


class SettingError(ClientError):
    """A setting that does not exist, or a value that it can't have; the text names the nearest that would do."""


class AuthenticationError(ClientError):
    """A broker refuses who we say we are, or can't prove that it is the one we meant. The text holds no secret."""


class RecordError(ClientError):
    """A record that can't be taken: larger than the limit, or no room for it within ``max_block_ms``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class BrokerError(ClientError):
    """Kafka answered with an error that trying again won't mend: ``code`` is Kafka's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EvidenceError(AftershockError):
    """A file of the evidence is missing, truncated, or not of the declared shape; the text names the file."""
