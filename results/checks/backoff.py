"""Checks ``obligation/backoff``: no client connects to a broker again and again without a pause.

Kafka's clients and librdkafka wait for ``reconnect.backoff.ms`` before they connect to a broker again, and longer after
each failure. The wire proxy counts the connections of each client process to each broker by second
(``connections_opened``). A process that opens more than ``TIMES`` connections per back-off, in each of ``SECONDS``
seconds, does not wait: a library has a few connections to a broker (for data, fetches, the coordinator), and no
back-off lasts less than the first one. No fault excuses that, because waiting needs no broker. There is a check only
for a client that did so.
"""

from collections.abc import Iterator, Mapping

from aftershock.results.checks.obligations.waits import number
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.model.check import Check, Status

TIMES, SECONDS = 5, 3
BACKOFF_MS = 50.0
"""Kafka's default ``reconnect.backoff.ms``, the shortest of all libraries."""
_SECOND_US = 1_000_000
_ADVICE = (
    "look at `connections_opened` in events.jsonl; a client must wait for its `reconnect.backoff.ms` between two "
    "connections to a broker, so compare its version with a newer release"
)


def backoff_checks(evidence: Evidence) -> Iterator[Check]:
    """Yield the check of each client one of whose processes connected without a pause."""
    counts: dict[str, dict[int, dict[int, int]]] = {}
    for line in evidence.events:
        if line["event"] == "connections_opened":
            second = round(line["t_us"] / _SECOND_US)
            counts.setdefault(line["worker"], {}).setdefault(line["node_id"], {})[second] = line["connections"]
    for client in evidence.clients:
        # a committer has a client for each of its groups
        workers = {worker for side in client.topics if side != "commit" for worker in client.workers(side)}
        if not workers & counts.keys():
            continue
        settings = evidence.arm_settings(client)
        limit = TIMES * 1000 / max(1.0, number(settings.get("reconnect.backoff.ms"), BACKOFF_MS))
        limit *= number(settings.get("connections.per.broker"), 1)
        storms = [
            (n, worker, broker, second)
            for worker in sorted(workers & counts.keys())
            for broker, by_second in counts[worker].items()
            for n, second in _storms(by_second, limit)
        ]
        if storms:
            yield _check(evidence, client, limit, storms)


def _storms(by_second: Mapping[int, int], limit: float) -> Iterator[tuple[int, int]]:
    """Yield the connections, and the first second, of each ``SECONDS`` seconds with more than ``limit`` each."""
    for second in by_second:
        of_each = [by_second.get(second + later, 0) for later in range(SECONDS)]
        if min(of_each) > limit:
            yield sum(of_each), second


def _check(evidence: Evidence, client: Client, limit: float, storms: list[tuple[int, str, int, int]]) -> Check:
    n, worker, broker, second = max(storms)
    most = round(SECONDS * limit)
    return Check(
        id="obligation/backoff",
        kind="obligation",
        subject=evidence.subject_of(client),
        status=Status.FAIL,
        n=sum(storm[0] for storm in storms),
        minimum=1,
        unit="connections",
        observed=n,
        threshold=most,
        arm=client.arm,
        why=f"{worker} opened {n} connections to broker {broker} from {second} to {second + SECONDS} s; with its "
        f"back-off between them, there are no more than {most}",
        next=_ADVICE,
    )
