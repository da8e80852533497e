"""Model of the transactions of a plan's producers, ``transaction: {records: 10, abort: 10%, timeout: 10s}``."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from aftershock.faults.sections.cluster import Part
from aftershock.faults.sections.units import Duration, Percent


class Transaction(Part):
    """Transactions of a producer's consecutive ``records``, of which the share ``abort`` is aborted by a seeded draw.

    ``timeout`` is Kafka's ``transaction.timeout.ms``. The producer waits for a commit as long as for a record
    (``deadline``); if it has no answer then, it waits again (``retry``), aborts although the commit may have reached
    Kafka (``abort``, against Kafka's rules), or closes and begins anew (``close``).
    """

    records: Annotated[StrictInt, Field(ge=1, le=100_000)] = 10
    abort: Percent | None = None
    timeout: Annotated[Duration, Field(ge=1_000)] = 60_000
    on_commit_timeout: Literal["retry", "abort", "close"] = "retry"

    def settings(self) -> dict[str, Any]:
        """Return the settings of the timeline and of the producers' assignments."""
        return {
            "records": self.records,
            "abort": self.abort or 0,
            "timeout_ms": self.timeout,
            "on_commit_timeout": self.on_commit_timeout,
        }
