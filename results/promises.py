"""Integrity, judged by what the configuration permits: what it permits is reported, what it forbids fails.

=============  =========================================================  ====================================
rule           forbidden                                                  permitted, and reported
=============  =========================================================  ====================================
lost           acknowledged with acks=all, and not in the log;            acknowledged with acks=1 or 0
               in the log, and not delivered to a reader it was owed
duplicate      one record at two offsets, by an idempotent producer;      without idempotence;
               an offset delivered twice to a reader                      after partitions were assigned to it
phantom        a record that nobody sent, in the log or delivered         nothing
order          the log against an idempotent producer's seq;              without idempotence, or where a fault
                                                                          killed it: what was under way may come late;
               a reader's deliveries against the offsets                  after partitions were assigned to it
=============  =========================================================  ====================================

A fault may excuse its topics from rules (``roles.permits`` of the journal): where the plan itself has records deleted,
a log cut back or a topic created anew, what is missing, twice there or out of order is reported, and no more.

A record in doubt may be in the log or not: both are told, neither fails. Until a run has finished, what is missing may
not have been read yet, and only then is a loss INCONCLUSIVE.
"""

from dataclasses import dataclass, replace

from aftershock.results.check import Check, Status, subject_of
from aftershock.results.evidence import Client, Evidence
from aftershock.results.facts import Facts, Finding
from aftershock.results.held import KILLED, held
from aftershock.results.integrity import LOG_READER


@dataclass(frozen=True)
class _Judged:
    """A finding, whose it is, why it would be permitted (None: forbidden), and what else to say of it."""

    finding: Finding
    subject: str
    arm: str | None
    permitted: str | None
    note: str = ""


def integrity(evidence: Evidence, facts: Facts) -> list[Check]:
    """``integrity/{lost,duplicate,phantom,order}`` for every client that produces or consumes, and for their log."""
    judged = [_of_log(facts)] if any(client.produces_to or client.consumes_from for client in evidence.clients) else []
    killed = held(evidence, KILLED)
    for client in evidence.clients:
        subject = subject_of(client, evidence.clients)
        interrupted = "permitted, for a fault killed the producer" if ("produce", client.key) in killed else None
        sent = _of_producer(facts, client, f"{subject} produce", interrupted) if client.produces_to else []
        read = _of_reader(facts, client, f"{subject} consume") if client.consumes_from else []
        judged += [_excused(evidence, client.produces_to, each) for each in sent]
        judged += [_excused(evidence, client.consumes_from, each) for each in read]
    return sorted((_check(evidence, one) for one in judged), key=lambda check: (check.id, check.subject))


def broken(evidence: Evidence, facts: Facts, rule: str, arms: tuple[str, ...]) -> list[Finding]:
    """Every finding of a rule, permitted or not, of the given arms (empty: all, and the log)."""
    sides = [(client, side) for client in evidence.clients for side in ("produce", "consume")]
    keys = [(side, client.key) for client, side in sides if not arms or client.arm in arms]
    keys += [] if arms else [("consume", LOG_READER)]
    found = [facts.finding(rule, side, key) for side, key in keys]
    return found + [
        facts.finding("repeated", side, key) for side, key in keys if (rule, side) == ("duplicate", "consume")
    ]


def _of_log(facts: Facts) -> _Judged:
    return _Judged(facts.finding("phantom", "consume", LOG_READER), "log", None, None)


def _of_producer(facts: Facts, client: Client, subject: str, interrupted: str | None) -> list[_Judged]:
    """``interrupted``: why what it sent may be out of order though it is idempotent."""
    lossy = None if client.acks_all else f"permitted by acks={client.acks}"
    loose = None if client.idempotent else "permitted without idempotence"
    doubtful = facts.finding("in_doubt", "produce", client.key)
    note = f"of {doubtful.examined} in doubt {doubtful.broken} are in the log" if doubtful.examined else ""
    return [
        _Judged(facts.finding("lost", "produce", client.key), subject, client.arm, lossy, note),
        _Judged(facts.finding("duplicate", "produce", client.key), subject, client.arm, loose),
        _Judged(facts.finding("order", "produce", client.key), subject, client.arm, loose or interrupted),
    ]


def _of_reader(facts: Facts, client: Client, subject: str) -> list[_Judged]:
    again = facts.finding("redelivered", "consume", client.key).broken
    repeated = facts.finding("repeated", "consume", client.key)
    note = f"{again} records were delivered more than once in all" if again > repeated.broken else ""
    return [
        _Judged(facts.finding("lost", "consume", client.key), subject, client.arm, None),
        _Judged(repeated, subject, client.arm, None, note),
        _Judged(facts.finding("order", "consume", client.key), subject, client.arm, None),
        _Judged(facts.finding("phantom", "consume", client.key), subject, client.arm, None),
    ]


def _excused(evidence: Evidence, topic: str | None, judged: _Judged) -> _Judged:
    """The same, permitted where the plan itself does away with records of the topic."""
    fault = None if judged.permitted else evidence.excused(topic, _rule(judged.finding))
    return replace(judged, permitted=f"permitted by {fault}, which rewrites {topic} by plan") if fault else judged


def _rule(finding: Finding) -> str:
    return "duplicate" if finding.rule == "repeated" else finding.rule


def _check(evidence: Evidence, judged: _Judged) -> Check:
    finding = judged.finding
    rule = _rule(finding)
    status = _status(evidence, judged, rule)
    return Check(
        id=f"integrity/{rule}",
        kind="integrity",
        subject=judged.subject,
        arm=judged.arm,
        status=status,
        observed=float(finding.broken) if finding.examined else None,
        threshold=0.0,
        unit="records",
        n=finding.examined,
        minimum=1,
        why=_why(evidence, judged, status),
        next=_next(status, finding),
        samples=finding.samples,
    )


def _status(evidence: Evidence, judged: _Judged, rule: str) -> Status:
    finding = judged.finding
    if not finding.examined or (rule == "lost" and finding.broken and not evidence.complete):
        return Status.INCONCLUSIVE
    return Status.PASS if not finding.broken or judged.permitted else Status.FAIL


def _why(evidence: Evidence, judged: _Judged, status: Status) -> str:
    finding = judged.finding
    if not finding.examined:
        return "no record was seen that it could be judged by"
    said = (
        f"{finding.broken} of {finding.examined} records" if finding.broken else f"none of {finding.examined} records"
    )
    if finding.broken and status is Status.PASS:
        said += f", {judged.permitted}"
    if finding.broken and status is Status.INCONCLUSIVE and not evidence.complete:
        said += ", but the run did not finish, and they may not have been read yet"
    return f"{said}; {judged.note}" if judged.note else said


def _next(status: Status, finding: Finding) -> str | None:
    if status is Status.FAIL:
        return "find the samples in outcomes/ and log/, and read the clients' logs around their times"
    if status is Status.INCONCLUSIVE:
        return (
            "run the plan again, to its end" if finding.examined else "give the plan traffic that this can be judged by"
        )
    return None
