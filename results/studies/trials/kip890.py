"""Claims of KIP-890 (transactions, server-side defence): a late request can't end, or join, another transaction.

A producer asks for a commit, has no answer, and asks again on another connection; the transaction is committed, and the
next one begins. Then the first request arrives. With version 1 of the transactions (KIP-98), all transactions of a
producer have the same epoch, so the coordinator takes the late commit for one of the open transaction (KAFKA-17754).
With version 2, each end raises the epoch, and the late request has an old one. The wire proxy holds the first request
until five of the ten records of the next transaction are acknowledged (``hold_request``).

**Units.** A unit is an exposure: a late request that a broker answered while a later transaction was open
(``kip890_exposures.py``). Transactions without a late request are no units: they are fine with version 1, too.

**Assay.** librdkafka speaks version 1 on every cluster. It runs beside the client of version 2, under the same faults,
and its exposures must be violated, else the late commits are no test. The reference client is exposed, too, on a
cluster with version 1.

**Control.** The late commit arrives when its own transaction has ended, and none is open, so nothing is violated.

The first part of the KIP is about late batches: the leader of a partition asks the coordinator whether the partition
belongs to a transaction of the producer. The assay switches that off (``transaction.partition.verification.enable``).
"""

from collections.abc import Sequence

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Part, share
from aftershock.results.studies.statement import Estimate, Measured, Plot
from aftershock.results.studies.trials.claim import Parts, on_part, register
from aftershock.results.studies.trials.kip890_exposures import (
    ABORTED_READ,
    Exposures,
    exposures,
    is_stray,
    observed,
)

VERSION_2, VERSION_1, EARLY, PRODUCTION = "version-2", "version-1", "early", "production"
VERIFIED, UNVERIFIED = "verified", "unverified"
CLIENTS_2, CLIENTS_1 = "clients-2", "clients-1"
TOPIC = "payments"
REFERENCE, LIBRDKAFKA = "payments/reference", "payments/librdkafka"
JAVA, FRANZ_GO = "payments/java", "payments/franz-go"
LATE = "late"
FENCED, ACCEPTED = "PRODUCER_FENCED", "NONE"
_AFTER_ITS_END = ("between", "open", "in_doubt")


def of_late_commits(part: Part, client: str, met: Sequence[str] = ("open",)) -> Exposures:
    return exposures(part, client, TOPIC, f"{LATE}-{client.split('/')[1]}", met)


def kept(part: Part, client: str) -> Measured:
    """Count the exposures that violated a transaction, and all violations that none explains."""
    found = of_late_commits(part, client)
    reads = [count for count in observed(part, client, ABORTED_READ) if count]
    figure = Estimate(float(found.hits), None, None, len(found.found), "exposures with a violation")
    why = f"{found.summary()}; {int(sum(reads))} aborted records were delivered"
    return Measured(figure, why, found.hits + found.elsewhere + len(reads), found.doubt)


def exposed(part: Part, client: str) -> Measured:
    """Measure the share of exposures that violated a transaction."""
    found = of_late_commits(part, client)
    return Measured(share([bool(exposure.violated) for exposure in found.found]), found.summary(), doubt=found.doubt)


def fenced(part: Part, client: str) -> Measured:
    """Count the exposures whose late request was not refused because of its epoch."""
    found = of_late_commits(part, client)
    other = sum(exposure.answer != FENCED for exposure in found.found)
    figure = Estimate(float(other), None, None, len(found.found), "other answers")
    return Measured(figure, found.summary(), other, found.doubt)


def early(part: Part, clients: Sequence[str]) -> Measured:
    """Count the violations in a run whose late commits arrive between two transactions."""
    runs = {client: of_late_commits(part, client, ("between",)) for client in clients}
    hits = sum(found.hits + found.elsewhere for found in runs.values())
    count = sum(len(found.found) for found in runs.values())
    doubt = next((found.doubt for found in runs.values() if found.doubt), "")
    why = "; ".join(f"{client}: {found.summary()}" for client, found in runs.items())
    return Measured(Estimate(float(hits), None, None, count, "violations"), why, hits, doubt)


def of_late_batches(part: Part) -> Exposures:
    return exposures(part, REFERENCE, TOPIC, LATE, _AFTER_ITS_END)


def written(part: Part) -> Measured:
    """Count the late batches that lie in the log behind the marker of their transaction, or that were accepted."""
    found, batches = of_late_batches(part), part.batches(TOPIC)
    strays = [is_stray(batches, exposure) for exposure in found.found]
    hits = sum(stray or exposure.answer == ACCEPTED for stray, exposure in zip(strays, found.found, strict=True))
    why = f"{found.summary()}; {sum(strays)} late batches lie behind the marker that ended their transaction"
    figure = Estimate(float(hits), None, None, len(found.found), "late batches written")
    return Measured(figure, why, hits, found.doubt)


def hanging(part: Part) -> Measured:
    """Count the late batches that lie in the log behind the marker of their transaction."""
    found, batches = of_late_batches(part), part.batches(TOPIC)
    strays = sum(is_stray(batches, exposure) for exposure in found.found)
    figure = Estimate(float(strays), None, None, len(found.found), "late batches written")
    return Measured(figure, found.summary(), strays, found.doubt)


def joined(part: Part) -> Measured:
    """Count the transactions that were aborted, and have a committed record."""
    (count,) = observed(part, REFERENCE, "unaborted") or [None]
    found = of_late_batches(part)
    accepted = sum(exposure.answer == ACCEPTED for exposure in found.found)
    return Measured(Estimate(count, None, None, accepted, "of the late batches that were written"), found.summary())


REGISTRATION = register(
    "kip890",
    {
        "kept": on_part(VERSION_2, kept, REFERENCE),
        "kept-production": on_part(PRODUCTION, kept, REFERENCE),
        "fenced": on_part(VERSION_2, fenced, REFERENCE),
        "exposed-librdkafka": on_part(VERSION_2, exposed, LIBRDKAFKA),
        "exposed-reference": on_part(VERSION_1, exposed, REFERENCE),
        "exposed-librdkafka-1": on_part(VERSION_1, exposed, LIBRDKAFKA),
        "early": on_part(EARLY, early, (REFERENCE, LIBRDKAFKA)),
        "verified": on_part(VERIFIED, written),
        "hanging": on_part(UNVERIFIED, hanging),
        "joined": on_part(UNVERIFIED, joined),
        "kept-java": on_part(CLIENTS_2, kept, JAVA),
        "kept-franz-go": on_part(CLIENTS_2, kept, FRANZ_GO),
        "exposed-java": on_part(CLIENTS_1, exposed, JAVA),
        "exposed-franz-go": on_part(CLIENTS_1, exposed, FRANZ_GO),
    },
)

_ROWS = (
    (VERSION_2, LIBRDKAFKA, "librdkafka (version 1), cluster of version 2"),
    (VERSION_1, LIBRDKAFKA, "librdkafka (version 1), cluster of version 1"),
    (VERSION_1, REFERENCE, "reference client at version 1"),
    (VERSION_2, REFERENCE, "reference client at version 2"),
    (CLIENTS_1, JAVA, "Kafka's Java client at version 1"),
    (CLIENTS_2, JAVA, "Kafka's Java client at version 2"),
    (CLIENTS_1, FRANZ_GO, "franz-go at version 1"),
    (CLIENTS_2, FRANZ_GO, "franz-go at version 2"),
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart of all exposures, with those that violated a transaction."""
    rows = [(label, of_late_commits(parts[name], client)) for name, client, label in _ROWS if name in parts]
    if not rows:
        return ()
    title = "Transactions that met a late commit of the previous transaction"
    with drawing(7.5, 1.2 + 0.5 * len(rows)) as figure:
        axis = figure.subplots()
        for row, (_, found) in enumerate(rows):
            intact = len(found.found) - found.hits
            axis.barh(row, found.hits, color=LINES[1][0], label="violated" if not row else None)
            axis.barh(row, intact, left=found.hits, color=LINES[0][0], label="as it should be" if not row else None)
        axis.set_yticks(range(len(rows)), [label for label, _ in rows])
        axis.invert_yaxis()
        axis.set_xlabel("exposures")
        plain(axis, "")
        legend(figure, axis, 2)
        words = [f"{label}: {found.hits} of {len(found.found)}" for label, found in rows]
        svg = rendered(figure, "kip890-exposures", title, "; ".join(words))
    reading = "Violated are those that are torn, or committed although their producer aborted them."
    return (Plot(title, svg, reading),)
