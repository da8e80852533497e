"""What fetches cost on the wire, full and incremental ones apart: the figure that KIP-227 is about.

Counters, each with ``_full`` or ``_incremental`` behind it: ``fetch_request_bytes`` and ``fetch_response_bytes`` are
whole frames; ``fetch_record_bytes`` is the part of the responses that is records, which cost the same with a session
and without.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any


class FetchBytes:
    """The sums of one consumer, over all its brokers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sent(self, size_bytes: int, *, full: bool) -> None:
        """A request has been written."""
        self._count("request", size_bytes, full)

    def received(self, size_bytes: int, partitions: Iterable[Any], *, full: bool) -> None:
        """It was answered; ``partitions`` are the response's."""
        self._count("response", size_bytes, full)
        self._count("record", sum(len(each.records or b"") for each in partitions), full)

    def _count(self, what: str, size_bytes: int, full: bool) -> None:  # noqa: FBT001 - private, and named by its callers
        self.counts[f"fetch_{what}_bytes_{'full' if full else 'incremental'}"] += size_bytes
