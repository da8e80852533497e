"""Topics to which a plan's clients write in transactions, and when Kafka must have ended a transaction.

Functions that take ``workloads`` take those of a timeline, of a run in progress or of a recorded one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aftershock.names import LIBRARIES, OFFSETS_TOPIC, ON_LIBRDKAFKA, topic_names
from aftershock.results.evidence.evidence import Client, Evidence, deadline_ms_of, workload_of

Workloads = Sequence[Mapping[str, Any]]

STABLE, END = "stable_offset.stable", "stable_offset.end"
"""Names of samples in ``metrics/``, before ``/<topic>/<partition>``: the last stable offset and the high watermark."""
STABLE_OFFSETS = "stable_offsets"
"""Key of ``run.json``: the topics whose last stable offsets a run records. Older versions recorded none."""

TIMEOUT = "transaction.timeout.ms"
SERVICE_TIMEOUT_MS = 60_000
"""Kafka's default ``transaction.timeout.ms``: what a service sets is not known."""
SCAN = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
SCAN_MS = 10_000
"""Kafka's default period in which a coordinator looks for transactions that have timed out."""
MARKERS_MS = 5_000
"""Time that a coordinator gets to write the markers of a transaction into all of its partitions."""
RETURN_MS = 30_000
"""Time after a fault until coordinators work again, beside the rest: the brokers' default ``request.timeout.ms``, after
which a request for markers that a fault has swallowed is sent again."""
OPEN_TRANSACTIONS = "open_transactions"
"""Event with the ``positions`` (topic, partition, last stable offset, high watermark) of partitions that had an open
transaction although all of them should have ended after the load."""

READ_COMMITTED = "read_committed"


def open_transactions_ms(timeout_ms: int, settings: Mapping[str, str]) -> int:
    """Return how long a transaction may be open in a cluster without faults; ``settings`` are those of its brokers."""
    return timeout_ms + int(settings.get(SCAN) or SCAN_MS) + MARKERS_MS


def timeouts_ms(workloads: Workloads) -> dict[str, int]:
    """Return the topics with transactions, with the longest ``transaction.timeout.ms`` of their writers.

    Services commit the offsets of their inputs in transactions too, so their plans have ``__consumer_offsets``.
    """
    longest: dict[str, int] = {}
    for workload in workloads:
        for topic, timeout_ms in _written(workload):
            longest[topic] = max(timeout_ms, longest.get(topic, 0))
    return longest


def _written(workload: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    produce, pipe = workload.get("produce") or {}, workload.get("pipe") or {}
    if settings := produce.get("transaction"):
        yield from ((topic, int(settings["timeout_ms"])) for topic in topic_names(produce))
    if pipe.get("transactional"):
        for arm, topic in pipe["to"].items():
            own = (workload["arms"][arm] or {}).get("settings") or {}
            timeout_ms = int(own.get(TIMEOUT) or SERVICE_TIMEOUT_MS)
            yield from ((name, timeout_ms) for name in (topic, OFFSETS_TOPIC))


def written_in_transactions(evidence: Evidence, client: Client) -> tuple[str, ...]:
    """Return the topics of the plan to which a client writes in transactions."""
    workload = workload_of(evidence, client)
    topics = topic_names(workload["produce"]) if (workload.get("produce") or {}).get("transaction") else ()
    return (*topics, *((client.pipe.writes,) if client.pipe and client.pipe.transactional else ()))


def transaction_deadline_ms(evidence: Evidence, client: Client) -> int | None:
    """Return the time in which a producer must begin or end a transaction; None for one without transactions."""
    settings = (workload_of(evidence, client).get("produce") or {}).get("transaction")
    return min(deadline_ms_of(evidence, client, "produce"), int(settings["timeout_ms"])) if settings else None


def reads_committed(evidence: Evidence, client: Client) -> bool:
    """Return True if a client's consumers read committed records only, as planned or by their library's default."""
    workload = workload_of(evidence, client)
    isolation = (workload.get("consume") or {}).get("isolation")
    library = (workload["arms"][client.arm] or {}).get("client", "confluent")
    if isolation is None and library in ("exec", *LIBRARIES) and library not in ON_LIBRDKAFKA:
        return False  # nobody knows
    return bool((isolation or (READ_COMMITTED if library in ON_LIBRDKAFKA else "")) == READ_COMMITTED)


def held_back(evidence: Evidence) -> list[tuple[str, int, int, int]]:
    """Return the positions of the event ``open_transactions``; empty if all transactions ended after the load."""
    lines = (line for line in evidence.events if line["event"] == OPEN_TRANSACTIONS)
    return [(str(topic), *map(int, numbers)) for line in lines for topic, *numbers in line["positions"]]  # type: ignore[misc]
