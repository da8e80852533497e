"""Checks ``obligation/deadline``, which require that a producer repeats what can be repeated until a record's deadline.

Kafka's producer sends a batch again after each error that a repetition can mend, until ``delivery.timeout.ms`` is over
(KIP-91); librdkafka does until ``message.timeout.ms``, and the protocol of programs asks for the same. The plan's
``deadline`` is that time. So a record that failed with such an error before half of its deadline was given up: no
rounding, no last request and no age of its batch takes half of the time, so half is where the rule draws the line.

A failed transaction ends all its records at once, so of a producer of transactions the transactions are judged: one
whose begin or end failed before half of the deadline (or of ``transaction.timeout.ms``), with an error that a
repetition mends, was given up. Kafka's producer repeats InitProducerId and EndTxn after each of them
(``TransactionManager``). Transactions that were aborted instead, and commits without an answer in time, are not.

A producer with settings that limit its repetitions, or its time, gives up because its user says so. An unknown topic
may have been deleted, so clients may believe it at once. None of these are judged. A producer that gave nothing up has
no check.
"""

from collections.abc import Mapping

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.transactions import transaction_deadline_ms
from aftershock.results.model.check import SAMPLES_MAX, Check, Status
from aftershock.results.model.facts import Facts, GivenUp

REPEATABLE = frozenset(
    (
        *("CORRUPT_MESSAGE", "FENCED_LEADER_EPOCH", "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE"),
        *("NETWORK_EXCEPTION", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_FOR_PARTITION"),
        *("NOT_LEADER_OR_FOLLOWER", "REPLICA_NOT_AVAILABLE", "REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"),
        *("UNKNOWN_LEADER_EPOCH", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT"),
    )
)
"""Errors of Produce that are retriable by Kafka's ``Errors``, and librdkafka's names of lost connections and time."""

ENDS_REPEATABLE = REPEATABLE - {"REQUEST_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT"} | {
    *("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
}
"""Such errors of the requests that begin and end transactions."""

LIMITING = frozenset(
    ("retries", "message.send.max.retries", "retry.max", "delivery.timeout.ms", "message.timeout.ms", "max_retries")
)
"""Settings by which a user limits the repetitions or the time of a record."""

_ADVICE = (
    "`aftershock explain RUN --record PRODUCER:SEQ` shows when a sample was sent and how it failed; a client must "
    "repeat such errors until the deadline, so compare its version and its settings with a newer release"
)


def deadline_checks(evidence: Evidence, facts: Facts) -> list[Check]:
    """Return the check of each producer that gave records up."""
    checks = []
    for client in evidence.clients:
        given_up = {error: value for (key, error), value in facts.given_up.items() if key == client.key}
        if given_up and not LIMITING & evidence.arm_settings(client).keys():
            checks.append(_check(evidence, client, given_up))
    return checks


def _check(evidence: Evidence, client: Client, given_up: Mapping[str, GivenUp]) -> Check:
    transacts = transaction_deadline_ms(evidence, client) is not None
    unit, repeatable = ("transactions", ENDS_REPEATABLE) if transacts else ("records", REPEATABLE)
    early = {error: value for error, value in given_up.items() if value.early and error in repeatable}
    failed, count = (sum(value.n for value in given_up.values()), sum(value.early for value in early.values()))
    why = f"none of {failed} failed {unit} was given up early with an error that can be repeated"
    if count:
        errors = ", ".join(f"{value.early} with {error}" for error, value in early.items())
        earliest_s = min(value.earliest_us for value in early.values()) / 1e6
        why = (
            f"{count} of {failed} failed {unit} were given up before half of their deadline, the first after "
            f"{earliest_s:.2f} s, with errors that can be repeated: {errors}"
        )
    return Check(
        id="obligation/deadline",
        kind="obligation",
        subject=evidence.subject_of(client),
        status=Status.FAIL if count else Status.PASS,
        n=failed,
        minimum=1,
        unit=unit,
        observed=count,
        threshold=0,
        arm=client.arm,
        why=why,
        next=_ADVICE if count else None,
        samples=tuple(sample for value in early.values() for sample in value.samples)[:SAMPLES_MAX],
    )
