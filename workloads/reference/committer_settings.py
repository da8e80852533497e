"""The settings of the reference committer: Kafka's names and defaults (4.3), and our own."""

from dataclasses import dataclass

from aftershock.errors import SettingError
from aftershock.workloads.reference.settings import ClientSettings, flag, number


@dataclass(frozen=True, kw_only=True)
class CommitterSettings(ClientSettings):
    """What a committer has. ``transactional`` makes each commit one transaction of its own (``TxnOffsetCommit``).

    ``delivery_timeout_ms`` bounds a commit with all its retries. Kafka's consumer has ``default.api.timeout.ms`` for
    it, whose default this is; the name is the producer's, because plans and assignments speak of deadlines alike.
    ``connections_per_broker`` is ours: a broker answers the requests of one connection one after the other, so commits
    that are to meet in a coordinator's batch must not share one. Groups are dealt to so many in turn.
    ``commit_metadata_bytes`` of text go with each plain commit: a few large ones fill a coordinator's batch.
    """

    delivery_timeout_ms: int = number(60_000, 1)
    connections_per_broker: int = number(16, 1)
    commit_metadata_bytes: int = number(0, 0, 32_767)
    transactional: bool = flag(default=False)
    transaction_timeout_ms: int = number(60_000, 1)

    def __post_init__(self) -> None:
        """``SettingError`` for settings that contradict one another."""
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise SettingError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, less than request.timeout.ms "
                f"({self.request_timeout_ms}): raise it, or lower request.timeout.ms"
            )
