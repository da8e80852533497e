"""Integrity checks, which fail on lost or wrong records unless a witnessed cause explains each of them.

The table of integrity rules is ``model/rules.py``; ``explanations/`` has the causes. Anomalies that a cause explains
are counted beside (``Check.explained``). If some are explained only by causes that the evidence can't witness, the
check is INCONCLUSIVE and names what is missing.

A record in doubt may be in the log or not, so neither its presence nor its absence fails a check. If a run did not
finish, a loss is INCONCLUSIVE, because missing records may not have been read yet. The integrity checks of a client
without any observation are INCONCLUSIVE.

What was not observed is not passed. Who should have observed it decides how that is told:

* The **harness** writes each row of a record, reads the logs, and is told of each assignment. If a rule needs such an
  observation and it is missing, the rule's check is INCONCLUSIVE and names what is missing.
* A **client** reports what its library tells. If it never tells what a rule reads (librdkafka has no high watermark of
  a response), or if nothing happened that the rule is about (no batch was retried), the rule has no check, because no
  change of the run could give it one. The check ``integrity/coverage`` of the client lists these rules with what they
  need; it never affects the run's status.
* A value that a client tells of some records and not of others is a result of the protocol (an acknowledgement of a
  duplicate has no offset). The rule judges the others, and its check says how many it left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain

from aftershock.names import topic_names
from aftershock.results.checks.explanations.causes import explanations
from aftershock.results.checks.explanations.model import Anomaly, Explanation, counted, first_match
from aftershock.results.checks.findings.groups import REPLICA_SIDE
from aftershock.results.checks.findings.ownership import co_assigned, fenced
from aftershock.results.checks.findings.records import LOG_READER
from aftershock.results.checks.obligations.spans import DRAIN_PATIENCE_US
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.groups import committers, committing_readers, group_of, reader_events
from aftershock.results.evidence.outages import deaths_of
from aftershock.results.evidence.transactions import held_back, reads_committed
from aftershock.results.model.check import SAMPLES_MAX, Check, Status
from aftershock.results.model.facts import Explained, Facts, Finding
from aftershock.results.model.rules import RULES, UNDATED, Event, Rule, Subject

_NAMES_MAX = 3


@dataclass(frozen=True)
class Result:
    """Finding of an integrity rule about one client, the log or the replicas.

    ``partial`` says what to do about observations that are missing, empty if none are; the check can then fail, but it
    can't pass. ``judged`` is False for a rule that has no check, because nothing was observed that it could judge.
    """

    rule: str
    subject: str
    arm: str | None
    finding: Finding
    note: str = ""
    partial: str = ""
    judged: bool = True

    @property
    def unknown(self) -> bool:
        """True if nobody knows how many records break the rule: inputs of a service whose outputs name none."""
        return self.rule == "pipe_lost" and self.finding.undecided > 0


Causes = Callable[[], Sequence[Explanation]]
"""Function that returns the explanations of the run, which are needed only if events break a rule."""


_SLOW = "make the consumer faster, or lower the rate, so that it reads the topic to its end after the load"
_DIED = "fix the cause shown in check `client/died`: nobody knows what the client would have read"
_STOPPED = "read logs/{}-consume*.log: why did the consumer read no further? It had read nothing for {:.0f} s"
_HELD_BACK = "fix the cause shown in check `obligation/stable_offset`: readers of committed records can't read on"
_UNSEEN = "add to the plan traffic that these rules apply to, or let the client report what they need"
_UNREAD = "find out from the brokers' logs why the replicas could not be read, and run the plan again"
_UNENDED = "find out from the transaction coordinators' logs why these transactions do not end, and run the plan again"
_UNASSIGNED = "let the client report `assigned` before it delivers records of a partition"


def integrity_checks(evidence: Evidence, results: Sequence[Result]) -> list[Check]:
    """Return the checks ``integrity/<rule>`` of each client that the rule applies to, of the log and of the replicas.

    An integrity failure stands even if a fault is unproven or the harness is slow.
    """
    checks = [_check(evidence, result) for result in results if result.judged]
    subjects = dict.fromkeys(result.subject for result in results if not result.judged)
    checks += (_coverage([result for result in results if result.subject == subject]) for subject in subjects)
    return sorted(checks, key=lambda check: (check.id, check.subject))


def _coverage(results: Sequence[Result]) -> Check:
    """Return the check that lists those rules about one subject of which nothing was observed."""
    unjudged = [result for result in results if not result.judged]
    judged, needs = len(results) - len(unjudged), (f"{result.rule} (needs {result.note})" for result in unjudged)
    observed = any(result.finding.examined for result in results)
    return Check(
        id="integrity/coverage",
        kind="integrity",
        subject=results[0].subject,
        arm=results[0].arm,
        status=Status.PASS if observed else Status.INCONCLUSIVE,
        observed=float(judged),
        threshold=float(len(results)),
        unit="rules",
        n=len(results),
        minimum=1,
        why=f"{judged} of {len(results)} rules have a check; not judged: {', '.join(needs)}",
        next=None if observed else _UNSEEN,
        gate=False,
    )


def integrity_results(evidence: Evidence, facts: Facts) -> tuple[Result, ...]:
    """Return the results of all rules about each subject that they apply to.

    Integrity is evaluated once for a run: its checks, and the SLOs that count records, read these results.
    """
    causes = cache(partial(explanations, evidence))
    subjects: list[tuple[Subject, Client | None]] = []
    if any(client.produces_to or client.consumes_from for client in evidence.clients):
        subjects.append(("log", None))
    for client in evidence.clients:
        subjects += [("produce", client)] if client.produces_to else []
        subjects += [("consume", client)] if client.consumes_from else []
        subjects += [("pipe", client)] if client.pipe else []
    subjects += [("commit", client) for client in dict.fromkeys([*committers(evidence), *committing_readers(evidence)])]
    of_subjects = (_of_subject(evidence, facts, subject, client, causes) for subject, client in subjects)
    return (*chain.from_iterable(of_subjects), *_of_replicas(evidence, facts))


def _of_subject(
    evidence: Evidence, facts: Facts, subject: Subject, client: Client | None, causes: Causes
) -> Iterator[Result]:
    """Yield the result of each rule for the produce or consume side of a client, or for the log (client None)."""
    side, key = ("consume", LOG_READER) if client is None else (subject, client.key)
    name = "log" if client is None else f"{evidence.subject_of(client)} {subject}"
    # every record of a producer is examined for lost, every record of the log or of a reader for phantom
    total = facts.finding({"produce": "lost", "pipe": "pipe_lost"}.get(side, "phantom"), side, key).examined
    arm = client.arm if client else None
    for rule_name, rule in _rules_of(evidence, subject, client):
        nothing = Finding(rule_name, side, key, 0, 0)
        unjudged = Result(rule_name, name, arm, nothing, rule.needs.get(subject, ""), judged=False)
        finding, notes = facts.finding(rule.findings[subject], side, key), []
        if rule.events and client and subject != "commit":
            count = rule.events([event for event in _events(evidence, client) if event.get("op", side) == side])
            producer_id = next((number for number, owner in evidence.producers.items() if owner == key), -1)
            samples = tuple((producer_id, seq) for seq in count.seqs[:SAMPLES_MAX])
            finding = _add(finding, count.examined, count.broken, samples)
            if count.undated:
                perhaps = Explained(*UNDATED, count.undated, certain=False)
                finding = replace(finding, explained=(*finding.explained, perhaps))
            notes.append(count.note)

        finding, lacking, to_do = _of_pipe(facts, client, finding) if client else (finding, "", "")
        if rule_name == "corrupt":
            # a reader that compares values examines each record; other readers only report corrupt records
            if not finding.broken and key not in evidence.run.get("values_compared", ()):
                yield unjudged
                continue
            finding = replace(finding, examined=max(total, finding.broken))
        elif rule_name == "co_owned" and client:
            if not group_of(evidence, client):
                continue
            examined, overlaps = co_assigned(evidence, client)
            # a client that reads nothing shares no partition
            finding = _with_anomalies(finding, examined if total or overlaps else 0, overlaps, causes)
        elif rule_name in ("fenced", "stale_assignment") and client:
            if client.members == 1 and not finding.broken:
                continue  # no other member could have got the partition
            if rule_name == "fenced":
                finding = _with_anomalies(finding, *fenced(evidence, client), causes)
                commits = [event for event in _events(evidence, client) if event["event"] == "committed"]
                unsent = sum(event.get("took_us") is None for event in commits)
                notes.append(f"{unsent} commits without the time of their sending were not compared" if unsent else "")
        undated = facts.finding("commit_undated", side, key).examined if rule_name == "commit_ahead" else 0
        if undated:
            notes.append(f"{undated} commits without the time of their sending (took_us) were not judged")
        partial, unended = _unended(facts, rule_name, side, key)
        unassigned = facts.finding("unassigned", side, key).broken
        if rule_name in _OF_ASSIGNMENTS and unassigned and finding.examined:
            partial = _UNASSIGNED
            notes.append(f"{unassigned} times a member read a partition of which it had reported no assignment")
        partial = to_do or partial
        notes += [_note(facts, rule_name, finding, side, key), unended, lacking]
        # records beyond the position at which the consumer stopped reading after the load are not judged
        behind = {("lost", "consume"): "unreached", ("pipe_lost", "pipe"): "pipe_unreached"}.get((rule_name, subject))
        unreached = facts.finding(behind, side, key).examined if behind else 0
        if unreached:
            held = client is not None and held_back(evidence) and reads_committed(evidence, client)
            partial = _HELD_BACK if held else unread_advice(evidence, client) if client else _SLOW
            notes.append(
                f"{unreached} further records were not judged, because they lie beyond the position "
                "that the client had reached when it stopped reading"
            )
        if not finding.examined and (rule.if_examined or (subject in rule.optional and (total or subject == "commit"))):
            yield unjudged
            continue
        yield Result(rule_name, name, arm, finding, "; ".join(filter(None, notes)), partial)


def unread_advice(evidence: Evidence, client: Client) -> str:
    """Return what to do about records that a client had not reached when it stopped reading."""
    if any(death.client == client for death in deaths_of(evidence)):
        return _DIED
    idle_us = [line.get("idle_us") or 0 for reader, line in reader_events(evidence, EVENT) if reader == client]
    longest_us = max(idle_us, default=0)
    if longest_us < DRAIN_PATIENCE_US:
        return _SLOW
    return _STOPPED.format(f"{client.workload}-{client.arm}", longest_us / 1e6)


EVENT = "drain_incomplete"
"""Event of a consumer that stopped reading before the ends of its topics."""
OF_TRANSACTIONS = ("aborted_read", "torn", "lost_commit", "unaborted", "fenced_write")
"""Rules that apply only to clients that produce in transactions, or read topics to which others do."""
_OF_WHOLE_TRANSACTIONS = ("torn", "lost_commit", "unaborted")


def _rules_of(evidence: Evidence, subject: Subject, client: Client | None) -> Iterator[tuple[str, Rule]]:
    for name, rule in RULES.items():
        if subject in rule.findings and (name not in OF_TRANSACTIONS or _transacts(evidence, subject, client)):
            yield name, rule


def _unended(facts: Facts, rule: str, side: str, key: str) -> tuple[str, str]:
    """Return advice and a note if transactions have not ended in the log, so that a rule can't judge them."""
    count = facts.finding("undecided", side, key).examined if rule in _OF_WHOLE_TRANSACTIONS else 0
    return (_UNENDED, f"{count} transactions have not ended in the log, and were not judged") if count else ("", "")


def _transacts(evidence: Evidence, subject: Subject, client: Client | None) -> bool:
    """Return True if a client produces in transactions, or reads (None: any) topics to which others do.

    Of services, those that promise exactly once.
    """
    transactional = [w for w in evidence.timeline["workloads"] if (w.get("produce") or {}).get("transaction")]
    if client is not None and subject == "produce":
        return any(workload["name"] == client.workload for workload in transactional)
    topics = {name for workload in transactional for name in topic_names(workload["produce"])}
    if client is not None and subject == "pipe":
        return client.pipe is not None and client.pipe.transactional and client.pipe.reads in topics
    return not topics.isdisjoint(topics if client is None else client.consumes_from)


def _of_pipe(facts: Facts, client: Client, finding: Finding) -> tuple[Finding, str, str]:
    """Return a finding, with a note and what to do if the evidence lacks inputs or outputs of a service.

    If no output names an input, or the evidence lacks some, a finding about lost inputs can't tell them.
    """
    pipe = client.pipe
    if pipe is None or finding.side != "pipe":
        return finding, "", ""
    lacking = [place for place in _unlogged(facts) if place.rpartition("/")[0] in (pipe.reads, pipe.writes)]
    note, advice = "", ""
    if lacking:
        note = f"log/ ends before all replicas of {_some(lacking)}, so inputs or outputs are missing there"
        advice = "the run's evidence is incomplete: run the plan again"
    if finding.rule != "pipe_lost" or not finding.broken:
        return finding, note, advice
    outputs = facts.finding("pipe_unmarked", "pipe", client.key)
    if outputs.examined > outputs.broken and not lacking:
        return finding, note, advice
    unknown = "outputs that the evidence lacks", f"log/ of {_some(lacking)}"
    if outputs.examined <= outputs.broken:
        first = "".join(f"; the first is {producer_id}:{seq}" for producer_id, seq in finding.samples[:1])
        logs = f"logs/{client.workload}-{client.arm}-pipe*.log"
        what = f"none of the {outputs.examined} outputs names an input" if outputs.examined else "there is no output"
        unknown = "outputs that can't be told from others", f"{what} in {pipe.writes}{first}"
        advice = (
            "let the service copy to its outputs what the `mark` of the plan names, or choose a `mark` that it copies "
            "(docs/SERVICE.md, How outputs name their inputs)"
            if outputs.examined
            else f"read its output ({logs}): does the service read {pipe.reads} and write {pipe.writes}?"
        )
    return replace(finding, explained=(Explained(*unknown, finding.broken, certain=False),)), note, advice


def _unlogged(facts: Facts) -> list[str]:
    """Return the partitions (``orders/4``) whose records in log/ end before those of all replicas."""
    of_replicas = (finding for finding in facts.findings.values() if finding.side == REPLICA_SIDE)
    return [finding.client for finding in of_replicas if finding.rule == "unlogged" and finding.broken]


_OF_ASSIGNMENTS = ("co_owned", "stale_assignment", "fenced")
"""Rules that read which member owned a partition at a time."""


def _note(facts: Facts, rule: str, finding: Finding, side: str, key: str) -> str:
    """Return a sentence about related findings, which is added to the text of a finding's check."""
    if (rule, side) == ("lost", "produce"):
        in_doubt, delivered = facts.finding("in_doubt", side, key), facts.finding("delivered", side, key)
        texts = (
            [f"they are not in the log, but {delivered.broken} of them were delivered"] if delivered.examined else []
        )
        if in_doubt.examined:
            texts.append(f"of {in_doubt.examined} records in doubt (no result), {in_doubt.broken} are in the log")
        return "; ".join(texts)
    if (rule, side) == ("pipe_lost", "pipe"):
        outputs = facts.finding("pipe_unmarked", side, key)
        return f"{outputs.broken} of {outputs.examined} outputs name no input of the run" if outputs.broken else ""
    if (rule, side) == ("duplicate", "consume"):
        again = facts.finding("redelivered", side, key).broken
        return f"in total {again} records were delivered more than once" if again > finding.broken else ""
    if (rule, side) == ("backward", "consume"):
        reads, epochs = (facts.finding(name, side, key).examined for name in ("skipped", rule))
        return f"{reads - epochs} deliveries have no leader epoch" if 0 < epochs < reads else ""
    if rule == "unaborted" and (permitted := facts.finding("unaborted_permitted", side, key).broken):
        return (
            f"{permitted} further transactions were committed although the application aborted them after a commit "
            "without an answer (on_commit_timeout: abort), which version 1 of the transactions permits"
        )
    without_offset = facts.finding("lost", side, key).examined - finding.examined
    if (rule, side) == ("misplaced", "produce") and finding.examined and without_offset > 0:
        return f"{without_offset} acknowledged records have no offset to compare"
    if (rule, side) == ("phantom", "produce") and finding.broken:
        return "the producer reported these records as failed, but they are in the log"
    return ""


def _with_anomalies(finding: Finding, examined: int, anomalies: Sequence[Anomaly], causes: Causes) -> Finding:
    """Add breaches that were found in events, and count those that a cause explains."""
    by_cause = Counter(first_match(causes(), finding.rule, finding.side, anomaly) for anomaly in anomalies)
    explained = [counted(cause, n) for cause, n in by_cause.items() if cause is not None]
    # of deliveries and of events, one cause is told once
    merged = Counter(dict[Explained, int]())
    for part in (*finding.explained, *explained):
        merged[replace(part, n=0)] += part.n
    parts = tuple(replace(part, n=n) for part, n in merged.items())
    return replace(_add(finding, examined, len(anomalies)), explained=parts)


def _add(finding: Finding, examined: int, broken: int, samples: tuple[tuple[int, int], ...] = ()) -> Finding:
    """Add the counts taken from clients' events to the counts that Spark found."""
    examined, broken = finding.examined + examined, finding.broken + broken
    return replace(finding, examined=examined, broken=broken, samples=finding.samples + samples)


def _events(evidence: Evidence, client: Client) -> list[Event]:
    return [event for event in evidence.events if client.wrote(event)]


def _of_replicas(evidence: Evidence, facts: Facts) -> Iterator[Result]:
    """Yield one result for the replicas of all partitions; the result is partial if a replica was not read."""
    replicas = [finding for finding in facts.findings.values() if finding.side == REPLICA_SIDE]
    unread = [finding for finding in replicas if finding.rule == "unread"]
    differing = [finding for finding in replicas if finding.rule == RULES["replica"].findings["replicas"]]
    absent = _without_rows(evidence, [finding.client for finding in unread]) if unread else []
    unlogged = _unlogged(facts)
    missing = sum(finding.broken for finding in unread)
    if differing or missing:
        examined = sum(finding.examined for finding in differing)
        broken = sum(finding.broken for finding in differing)
        notes = [_broken_names(differing)]
        notes += [f"{missing} replicas could not be read: {_broken_names(unread)}"] if missing else []
        notes += [f"replicas/ has no row of a replica of {_some(absent)}"] if absent else []
        notes += [f"log/ ends before all replicas of {_some(unlogged)}"] if unlogged else []
        combined, note = Finding("replica", REPLICA_SIDE, "", examined, broken), "; ".join(filter(None, notes))
        yield Result("replica", "replicas", None, combined, note, _UNREAD if missing or absent or unlogged else "")


def _without_rows(evidence: Evidence, replicas: Iterable[str]) -> list[str]:
    """Return the partitions of which some replicas (``orders/4 on k2``) have rows, but fewer than there are.

    A partition without a record has none.
    """
    rows = Counter(replica.rpartition(" on ")[0] for replica in replicas)
    return [
        place
        for topic in evidence.timeline.get("topics", ())
        for place in (f"{topic['name']}/{number}" for number in range(topic.get("partitions") or 0))
        if 0 < rows[place] < (topic.get("replication") or 0)
    ]


def _broken_names(findings: Sequence[Finding]) -> str:
    return _some([finding.client for finding in findings if finding.broken])


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(sorted(names)[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _check(evidence: Evidence, result: Result) -> Check:
    finding, rule = result.finding, RULES[result.rule]
    unit = "commits" if finding.side == "commit" else rule.unit
    why = f"{finding.broken or 'none'} of {finding.examined} {unit}"
    advice: str | None = None
    if not finding.examined:
        status = Status.INCONCLUSIVE
        why = f"none of the observed {unit} is one that this rule applies to"
        advice = f"add to the plan traffic that the rule {result.rule!r} applies to"
    elif result.rule == "lost" and finding.broken and not evidence.complete:
        status = Status.INCONCLUSIVE
        why = f"{why}, but the run did not finish, so missing records may not have been read yet"
        advice = "run the plan again and let the run finish"
    elif finding.unexplained:
        status, advice = Status.FAIL, rule.advice
    elif finding.undecided:
        status = Status.INCONCLUSIVE
        missing = next(part.evidence for part in finding.explained if not part.certain)
        advice = f"the evidence can't tell whether a cause permits this, because {missing}; {rule.advice}"
    else:
        status = Status.INCONCLUSIVE if result.partial else Status.PASS
    if finding.explained:
        why += f": {explained_text(finding)}"
    if result.partial and status is Status.INCONCLUSIVE:
        advice = result.partial
    return Check(
        id=f"integrity/{result.rule}",
        kind="integrity",
        subject=result.subject,
        arm=result.arm,
        status=status,
        observed=float(finding.broken) if finding.examined else None,
        threshold=0.0,
        unit=unit,
        n=finding.examined,
        minimum=1,
        why=f"{why}; {result.note}" if result.note else why,
        next=advice,
        samples=finding.samples,
        explained=finding.explained,
    )


def explained_text(finding: Finding) -> str:
    """Return how many anomalies nothing explains, and the causes that explain the most of the others."""
    texts = [f"{finding.unexplained} without an explanation"] if finding.unexplained else []
    parts = sorted(finding.explained, key=lambda part: -part.n)
    for part in parts[:_NAMES_MAX]:
        verb = "explained by" if part.certain else "perhaps explained by"
        every = part.n == finding.broken
        texts.append(f"{'all' if every else part.n} {verb} {part.cause} ({part.evidence})")
    if rest := sum(part.n for part in parts[_NAMES_MAX:]):
        texts.append(f"{rest} by {len(parts) - _NAMES_MAX} further causes")
    return ", ".join(texts)
