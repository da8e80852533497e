"""What to do about each integrity rule that is broken: where to look, concretely.

Integrity, judged by what the configuration permits: what it permits is reported, what it forbids fails.

=============  =====================================================  ================================================
rule           forbidden                                              permitted, and reported (``permits.py``)
=============  =====================================================  ================================================
lost           acknowledged, and not in the log; in the log, and not  acks=1 or 0, min.insync.replicas below 2, unclean
               delivered to a reader it was owed; a commit            elections; of a commit nothing
               acknowledged, and not in its coordinator's log
duplicate      one record at two places, by an idempotent producer;   without idempotence; unclean elections;
               an offset delivered twice to a reader                  after an assignment or a reset
order          the log against an idempotent producer's seq, or       without idempotence; a killed producer; unclean
               one's with one request in flight; deliveries against   elections; after an assignment or a reset
               offsets
phantom        a record that nobody sent, in the log or delivered;    nothing
               one in the log that its producer gave up for good
misplaced      the place acknowledged is not where the record is      nothing
collision      two records at one place                               unclean elections
skipped        a reader passed over a record of the log               unclean elections; an assignment or a reset
backward       epochs or high watermarks that go down, old hints      without idempotence; acks=1; a killed producer; in
               taken, a committed position below one before           a coordinator's log: nothing fences a late commit
beyond         a delivery from beyond every high watermark told       nothing
co_owned       two members of a group read a partition at once        while faults may keep members from a coordinator
commit_ahead   a group committed what it had not read                 nothing
commit_behind  a group went on before what it had committed           nothing
corrupt        a value that is not what was sent                      nothing
immediate      a second retry without back-off in one leader epoch    nothing
replica        replicas that differ after the last heal               nothing
=============  =====================================================  ================================================

A fault may excuse its topics from rules (``roles.permits`` of the journal): where the plan itself has records deleted,
a log cut back or a topic created anew, what is missing, twice there or out of order is reported, and no more.

A record in doubt may be in the log or not: both are told, neither fails. Until a run has finished, what is missing may
not have been read yet, and only then is a loss INCONCLUSIVE. A rule that can't apply to a client has no check: one that
reads in no group owns nothing with others; one that does not tell offsets, epochs or high watermarks can't be held to
them (but a client of which nothing at all was seen has its checks, and they are INCONCLUSIVE).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.results.checks.check import Check, Status, subject_of
from aftershock.results.checks.findings.groups import REPLICA_SIDE, committers, group_of
from aftershock.results.checks.findings.groups import SIDE as COMMIT
from aftershock.results.checks.findings.records import LOG_READER
from aftershock.results.checks.integrity_events import co_assigned, gone_back, immediate
from aftershock.results.checks.permits import permit
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.measure.facts import Facts, Finding

_IDS = "`aftershock explain RUN --record PRODUCER:SEQ` tells what became of each sample"

ADVICE: Mapping[str, str] = {
    "lost": f"{_IDS}; then read the logs of its partition's leaders (logs/k*.log) around its acknowledgement",
    "duplicate": f"{_IDS}; look for a retry of an acknowledged batch, or a position that was read again",
    "order": f"{_IDS}; look for retries with more than one request in flight, or a position that went back",
    "phantom": "find out who else writes to the topic, and whether its header was damaged on the way; of a producer: "
    "does it send what it has given up?",
    "misplaced": f"{_IDS}; compare the offset in its acknowledgement with the one in log/",
    "collision": "compare log/ and outcomes/ at the samples' offsets: was the log cut back and written anew?",
    "skipped": f"{_IDS}; read the consumer's log for a position that moved on without a reset",
    "backward": "compare leader_epoch and high_watermark of the samples' rows with the rows before them in outcomes/, "
    "`hint_accepted` and `committed` with those before them in events.jsonl",
    "beyond": "a broker answered with records that were not committed: read the samples' broker's log at that time",
    "co_owned": "compare `assigned` and `revoked` of the group's members in events.jsonl around the samples' times",
    "commit_ahead": "compare the samples' commits with what their group had read: does it commit before it reads?",
    "commit_behind": "compare `committed` before `assigned` in events.jsonl: was the commit lost with its coordinator?",
    "corrupt": f"{_IDS}; compare its bytes in the log of each replica (kafka-dump-log) with what was sent",
    "immediate": "read `batch_retried` of the samples in events.jsonl: a retry did not back off as KIP-951 wants",
    "replica": "compare the replicas with kafka-dump-log --deep-iteration: one was not truncated, or lost what it had",
}


RULES = (
    *("lost", "duplicate", "order", "phantom", "misplaced", "collision", "skipped", "backward", "beyond"),
    *("co_owned", "commit_ahead", "commit_behind", "corrupt", "immediate", "replica"),
)
_SENT = ("lost", "duplicate", "order", "misplaced", "backward", "phantom")
_READ = ("lost", "duplicate", "order", "phantom", "collision", "skipped", "backward", "beyond")
_COMMITTED = ("commit_ahead", "commit_behind")
_OFFSETS = ("lost", "backward")
_UNFENCED = "permitted, as no member's epoch fences a commit that a lost connection still held"
_TOLD_BY_SOME = ("misplaced", "backward", "beyond")
_SEEN_BY_SOME = (*_TOLD_BY_SOME, "phantom")
_NAMES = 3
_UNITS = {
    "co_owned": "assignments",
    "commit_behind": "assignments",
    "commit_ahead": "commits",
    "immediate": "batches",
    "replica": "replicas",
}


@dataclass(frozen=True)
class _Judged:
    """A rule, whose it is, what was found, why that would be permitted (None: forbidden), and what else to say.

    ``open``: not all that it takes was seen, so that nothing found is no proof.
    """

    rule: str
    subject: str
    arm: str | None
    finding: Finding
    permitted: str | None = None
    note: str = ""
    open: bool = False


def integrity(evidence: Evidence, facts: Facts) -> list[Check]:
    """``integrity/<rule>`` for every client that it applies to, for the log and for the replicas."""
    checks = [_check(evidence, one) for one in _judged(evidence, facts)]
    return sorted(checks, key=lambda check: (check.id, check.subject))


def broken(evidence: Evidence, facts: Facts, rule: str, arms: tuple[str, ...]) -> list[Finding]:
    """Every finding of a rule, permitted or not, of the given arms (empty: all, the log and the replicas)."""
    judged = (one for one in _judged(evidence, facts) if one.rule == rule)
    return [one.finding for one in judged if not arms or one.arm in arms]


def _judged(evidence: Evidence, facts: Facts) -> Iterator[_Judged]:
    if any(client.produces_to or client.consumes_from for client in evidence.clients):
        yield _Judged("phantom", "log", None, facts.finding("phantom", "consume", LOG_READER))
        yield _Judged(
            "collision", "log", None, facts.finding("collision", "consume", LOG_READER), _log_permit(evidence)
        )
        yield from _values(evidence, facts, "log", None, LOG_READER)
    for client in evidence.clients:
        yield from _of_producer(evidence, facts, client) if client.produces_to else ()
        yield from _of_reader(evidence, facts, client) if client.consumes_from else ()
    for client in committers(evidence):
        for rule in _OFFSETS:
            subject = f"{subject_of(client, evidence.clients)} {COMMIT}"
            permitted = _UNFENCED if rule == "backward" else None
            yield _Judged(rule, subject, client.arm, facts.finding(rule, COMMIT, client.key), permitted)
    yield from _of_replicas(facts)


def _log_permit(evidence: Evidence) -> str | None:
    """Two records at one place in the log are permitted if they are to any reader of it."""
    told = (permit(evidence, client, "consume", "collision") for client in evidence.clients if client.consumes_from)
    return next((why for why in told if why), None)


def _of_producer(evidence: Evidence, facts: Facts, client: Client) -> Iterator[_Judged]:
    subject = f"{subject_of(client, evidence.clients)} produce"
    seen = facts.finding("lost", "produce", client.key).examined
    for rule in _SENT:
        finding, note = facts.finding(rule, "produce", client.key), _notes_on_sent(facts, client, rule)
        if rule == "backward":
            finding, note = _with_events(evidence, client, "produce", finding)
        if finding.examined or not (seen and rule in _SEEN_BY_SOME):
            yield _Judged(rule, subject, client.arm, finding, permit(evidence, client, "produce", rule), note)
    retried = immediate(evidence, client)
    if retried.examined:
        yield _Judged("immediate", subject, client.arm, retried)


def _with_events(evidence: Evidence, client: Client, side: str, rows: Finding) -> tuple[Finding, str]:
    """What went back by the rows, and by what the client told of itself; what that was is a note."""
    told = gone_back(evidence, client, side)
    both = replace(
        rows,
        examined=rows.examined + sum(examined for examined, _ in told.values()),
        broken=rows.broken + sum(broken for _, broken in told.values()),
    )
    return both, "; ".join(f"{broken} of them are {what}" for what, (_, broken) in told.items() if broken)


def _notes_on_sent(facts: Facts, client: Client, rule: str) -> str:
    """What became of what was lost, and of what was in doubt; what is a phantom though somebody sent it."""
    if rule == "phantom" and facts.finding(rule, "produce", client.key).broken:
        return "their producer had given them up for good, and they are in the log"
    if rule != "lost":
        return ""
    doubtful, lost = (facts.finding(one, "produce", client.key) for one in ("in_doubt", "delivered"))
    notes = [f"not in the log, though {lost.broken} of them were delivered"] if lost.examined else []
    notes += [f"of {doubtful.examined} in doubt {doubtful.broken} are in the log"] if doubtful.examined else []
    return "; ".join(notes)


def _of_reader(evidence: Evidence, facts: Facts, client: Client) -> Iterator[_Judged]:
    subject = f"{subject_of(client, evidence.clients)} consume"
    seen = facts.finding("phantom", "consume", client.key).examined
    for rule in _READ:
        finding = facts.finding("repeated" if rule == "duplicate" else rule, "consume", client.key)
        note = _notes_on_read(facts, client, rule)
        if rule == "backward":
            finding, note = _with_events(evidence, client, "consume", finding)
        if finding.examined or not (seen and rule in _TOLD_BY_SOME):
            yield _Judged(rule, subject, client.arm, finding, permit(evidence, client, "consume", rule), note)
    yield from _values(evidence, facts, subject, client.arm, client.key)
    if group_of(evidence, client):
        yield _co_owned(evidence, facts, client, subject)
    for rule in _COMMITTED:
        if (finding := facts.finding(rule, "consume", client.key)).examined:
            yield _Judged(rule, subject, client.arm, finding, permit(evidence, client, "consume", rule))


def _notes_on_read(facts: Facts, client: Client, rule: str) -> str:
    if rule == "lost":
        lost = facts.finding("unlogged", "consume", client.key)
        told = f"{lost.examined - lost.broken} in the log and not delivered, {lost.broken} not in the log"
        return told if lost.examined else ""
    again, repeated = (facts.finding(one, "consume", client.key).broken for one in ("redelivered", "repeated"))
    told = f"{again} records were delivered more than once in all"
    return told if rule == "duplicate" and again > repeated else ""


def _values(evidence: Evidence, facts: Facts, subject: str, arm: str | None, key: str) -> Iterator[_Judged]:
    """Who compares values looked at all that it read; where nobody says so, only what was found spoilt is told."""
    found = facts.finding("corrupt", "consume", key)
    read = facts.finding("phantom", "consume", key).examined
    if found.broken or compares(evidence, key):
        yield _Judged("corrupt", subject, arm, replace(found, examined=max(read, found.broken)))


def compares(evidence: Evidence, key: str) -> bool:
    """Whether a reader (or who read the log) compared every value with what was sent, as ``run.json`` says."""
    return key in evidence.run.get("values_compared", ())


def _co_owned(evidence: Evidence, facts: Facts, client: Client, subject: str) -> _Judged:
    """By the rows and by the assignments; what faults explain is a note."""
    free, excused = co_assigned(evidence, client)
    by_rows, in_fault = (facts.finding(rule, "consume", client.key) for rule in ("co_owned", "co_owned_in_fault"))
    both = replace(
        by_rows, examined=by_rows.examined + free.examined, broken=by_rows.broken + free.broken, samples=by_rows.samples
    )
    more = in_fault.broken + excused.broken
    note = f"{more} more while faults kept members from their coordinator, which is permitted" if more else ""
    return _Judged("co_owned", subject, client.arm, both, None, note)


def _of_replicas(facts: Facts) -> Iterator[_Judged]:
    """One check of all partitions that have several replicas; one that was not read leaves it open."""
    unread = [one for one in facts.findings.values() if (one.rule, one.side) == ("unread", REPLICA_SIDE)]
    differing = [one for one in facts.findings.values() if (one.rule, one.side) == ("differing", REPLICA_SIDE)]
    missing = sum(map(_broken, unread))
    if differing or missing:
        finding = Finding(
            "replica", REPLICA_SIDE, "", sum(one.examined for one in differing), sum(map(_broken, differing))
        )
        note = f"{missing} replicas could not be read: {_some(unread)}" if missing else ""
        note = "; ".join(told for told in (_some(differing), note) if told)
        yield _Judged("replica", "replicas", None, finding, None, note, open=missing > 0)


def _broken(finding: Finding) -> int:
    return finding.broken


def _some(findings: Sequence[Finding]) -> str:
    """The first partitions of those with something broken."""
    names = sorted(one.client for one in findings if one.broken)
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")


def _check(evidence: Evidence, judged: _Judged) -> Check:
    finding = judged.finding
    status = _status(evidence, judged)
    return Check(
        id=f"integrity/{judged.rule}",
        kind="integrity",
        subject=judged.subject,
        arm=judged.arm,
        status=status,
        observed=float(finding.broken) if finding.examined else None,
        threshold=0.0,
        unit=_unit(judged),
        n=finding.examined,
        minimum=1,
        why=_why(evidence, judged, status),
        next=_next(status, judged),
        samples=finding.samples,
    )


def _unit(judged: _Judged) -> str:
    return "commits" if judged.finding.side == COMMIT else _UNITS.get(judged.rule, "records")


def _status(evidence: Evidence, judged: _Judged) -> Status:
    finding = judged.finding
    if not finding.examined or (judged.rule == "lost" and finding.broken and not evidence.complete):
        return Status.INCONCLUSIVE
    if finding.broken and not judged.permitted:
        return Status.FAIL
    return Status.INCONCLUSIVE if judged.open else Status.PASS


def _why(evidence: Evidence, judged: _Judged, status: Status) -> str:
    finding, unit = judged.finding, _unit(judged)
    said = f"{finding.broken or 'none'} of {finding.examined} {unit}"
    if not finding.examined:
        said = f"no {unit.removesuffix('s')} was seen that it could be judged by"
    if finding.broken and status is Status.PASS:
        said += f", {judged.permitted}"
    if finding.broken and status is Status.INCONCLUSIVE and not evidence.complete:
        said += ", but the run did not finish, and they may not have been read yet"
    return f"{said}; {judged.note}" if judged.note else said


def _next(status: Status, judged: _Judged) -> str | None:
    if status is Status.FAIL:
        return ADVICE[judged.rule]
    if status is Status.INCONCLUSIVE and judged.open:
        return "see in the brokers' logs why the replicas could not be read, and run the plan again"
    if status is Status.INCONCLUSIVE:
        return (
            "run the plan again, to its end"
            if judged.finding.examined
            else "give the plan traffic that this can be judged by"
        )
    return None
