"""Conformance checks of transactions; the docstring of a check is printed with its result."""

import time
from collections import Counter
from collections.abc import Sequence

from aftershock.workloads.adapters.conformance.bench import (
    CLOSE,
    GRACE_S,
    NEVER_GUESS,
    PARTITIONS,
    Bench,
    ClientSession,
    NotExaminable,
    Violation,
    await_reports,
    marked_record,
    require_all_acked,
)
from aftershock.workloads.adapters.exec_orders import (
    ISOLATION,
    TRANSACTIONS,
    Close,
    Send,
    Transact,
    TransactionOrder,
)
from aftershock.workloads.adapters.exec_protocol import Bye, Ready, Record, Rule, Transacted
from aftershock.workloads.load.schedule import HEADER

_FEW = 20
_TIMEOUT_MS = 60_000
_SOON_MS = 3_000

EXACTLY_ONCE = Rule("Transactions", "Report each of these orders **exactly once**")
COMMITTED = Rule("Transactions", "A commit is carried out when Kafka has acknowledged it")
COVERS = Rule("Transactions", "covers all records that were ordered since the begin.")
GIVE_UP = Rule("Transactions", "Give a commit or abort up after `deadline_ms`")
REOPEN = Rule("Transactions", "open another one with the same id, until that works. It has no error.")
LEFT_OPEN = Rule("Transactions", "which ends a transaction that a killed program has left open.")
FOLLOWS = Rule("consume", "A program that follows it says")


def commits_and_aborts_what_it_is_ordered(bench: Bench) -> None:
    """A committed transaction has all its records, and an aborted one none, for a reader of committed records."""
    topic = bench.topic()
    with bench.session(bench.producing(topic, transaction={"records": _FEW, "timeout_ms": _TIMEOUT_MS})) as session:
        _require_transactions(session)
        ends: tuple[TransactionOrder, ...] = ("commit_transaction", "abort_transaction", "commit_transaction")
        for number, end in enumerate(ends):
            _begin(session)
            _send(session, range(number * _FEW, (number + 1) * _FEW))
            _done(session, end)
        session.close()
    _require_visible(bench, topic, [*range(_FEW), *range(2 * _FEW, 3 * _FEW)])
    if (written := len(bench.log(topic))) != 3 * _FEW:
        raise Violation(
            f"the client was ordered to send {3 * _FEW} records, and the log of the topic has {written}", COVERS
        )


def ends_what_it_has_left_open(bench: Bench) -> None:
    """Records of a transaction that is open when the client ends, or reopens its producer, never become visible."""
    topic = bench.topic()
    told = bench.producing(topic, transaction={"records": _FEW, "timeout_ms": _TIMEOUT_MS})
    with bench.session(told) as session:
        _require_transactions(session)
        _begin(session)
        _send(session, range(_FEW))
        _done(session, "reopen_producer", REOPEN)
        _begin(session)
        _send(session, range(_FEW, 2 * _FEW))
    with bench.session(told) as session:
        _begin(session)
        _send(session, range(2 * _FEW, 3 * _FEW), 2 * _FEW)
        _done(session, "commit_transaction")
        session.close()
    _require_visible(bench, topic, range(2 * _FEW, 3 * _FEW), LEFT_OPEN)


def commits_nothing_during_an_outage(bench: Bench) -> None:
    """While all brokers are down, the client gives the commit up in time, and commits when it is ordered again."""
    topic = bench.topic()
    settings = {"records": _FEW, "timeout_ms": _TIMEOUT_MS}
    with bench.session(bench.producing(topic, deadline_ms=_SOON_MS, transaction=settings)) as session:
        _require_transactions(session)
        _begin(session)
        _send(session, range(_FEW))
        with bench.outage():
            report = _transact(session, "commit_transaction", GIVE_UP, _SOON_MS / 1000 + GRACE_S)
            if report.error is None:
                raise Violation("the client reported a commit as carried out while every broker was down", NEVER_GUESS)
        report = _repeated(session, "commit_transaction", report)
        if report.error is not None and report.then == "abort":
            aborted = _repeated(session, "abort_transaction", _transact(session, "abort_transaction", COMMITTED))
            if aborted.error is not None:
                raise Violation(f"the client reported the abort as failed ({aborted.error}) after the outage", GIVE_UP)
        elif report.error is not None:
            _done(session, "reopen_producer", REOPEN)
        session.close()
    # after `reopen`, the outcome of the commit is not known
    if report.error is None or report.then == "abort":
        _require_visible(bench, topic, range(_FEW) if report.error is None else ())


def closes_with_an_open_transaction(bench: Bench) -> None:
    """A client that is ordered to close says bye, and its open transaction is not committed."""
    topic = bench.topic()
    with bench.session(bench.producing(topic, transaction={"records": _FEW, "timeout_ms": _TIMEOUT_MS})) as session:
        _require_transactions(session)
        _begin(session)
        _send(session, range(_FEW))
        session.order(Close().line())
        session.until(lambda: session.reports_of(Bye), "say bye after close", CLOSE)
    _require_visible(bench, topic, ())


def reads_what_its_isolation_allows(bench: Bench) -> None:
    """A consumer that is told to read committed records reports no aborted one; told otherwise, it reports all."""
    topic = bench.topic()
    bench.fill_in_transactions(topic, {0: True, 1: False, 2: True})
    _read(bench, topic, "read_committed", {0, 2})
    _read(bench, topic, "read_uncommitted", {0, 1, 2})


CHECKS = (
    commits_and_aborts_what_it_is_ordered,
    ends_what_it_has_left_open,
    commits_nothing_during_an_outage,
    closes_with_an_open_transaction,
    reads_what_its_isolation_allows,
)


def _require_transactions(session: ClientSession) -> None:
    _require_accepted(session, TRANSACTIONS)


def _require_accepted(session: ClientSession, word: str) -> None:
    if not any(word in ready.accepts for ready in session.reports_of(Ready)):
        raise NotExaminable(f'the client has no "accepts": ["{word}"] in its report ready')


def _transact(
    session: ClientSession, do: TransactionOrder, rule: Rule = EXACTLY_ONCE, patience_s: float | None = None
) -> Transacted:
    """Give an order about the transaction, and return its only report."""
    before = len(session.reports_of(Transacted))
    session.order(Transact(do=do).line())
    session.until(lambda: len(session.reports_of(Transacted)) > before, f"report {do}", rule, patience_s)
    reports = session.reports_of(Transacted)
    if len(reports) > before + 1 or reports[-1].did != do:
        told = [report.did for report in reports[before:]]
        raise Violation(f"the client was ordered to {do}, and reported {told}", EXACTLY_ONCE)
    return reports[-1]


def _done(session: ClientSession, do: TransactionOrder, rule: Rule = EXACTLY_ONCE) -> None:
    if (error := _transact(session, do, rule).error) is not None:
        raise Violation(f"the client reported {do} as failed ({error}), although all brokers were up", rule)


def _repeated(session: ClientSession, do: TransactionOrder, report: Transacted) -> Transacted:
    """Repeat an order as long as the client demands that; return its last report."""
    until = time.monotonic() + session.patience_s
    while report.error is not None and report.then == "repeat" and time.monotonic() < until:
        report = _transact(session, do, COMMITTED)
    return report


def _begin(session: ClientSession) -> None:
    _done(session, "begin_transaction")


def _send(session: ClientSession, seqs: range, first: int = 0) -> None:
    """Order records, and wait until they and those of the session before, from ``first`` on, are acked."""
    for seq in seqs:
        key, value, headers = marked_record(seq)
        session.order(Send(seq=seq, topic=session.topic, key=key, value=value, headers=headers).line())
    reports = await_reports(session, range(first, seqs.stop), "report the records of a transaction")
    require_all_acked(reports)


def _read(bench: Bench, topic: str, isolation: str, expected: set[int]) -> None:
    """Raise Violation unless the client reports exactly the ``expected`` records, by their number."""
    numbers = {dict(marked_record(number).headers)[HEADER]: number for number in range(3)}
    with bench.session(bench.consuming(topic, isolation=isolation), dict.fromkeys(range(PARTITIONS), 0)) as session:
        _require_accepted(session, ISOLATION)

        def found() -> set[int]:
            return {numbers[report.mark] for report in session.reports_of(Record) if report.mark in numbers}

        session.until(lambda: expected <= found(), f"report the records of a topic with {isolation}", FOLLOWS)
        session.quiet()
        if more := found() - expected:
            raise Violation(f"the client was told {isolation}, and reported the aborted record {min(more)}", FOLLOWS)


def _require_visible(bench: Bench, topic: str, seqs: Sequence[int], rule: Rule = COVERS) -> None:
    """Raise Violation of ``rule`` unless a reader of committed records gets exactly these records, once."""
    expected: Counter[bytes | None] = Counter(marked_record(seq).value for seq in seqs)
    found = Counter(message.value() for message in bench.log(topic, committed=True))
    if found != expected:
        missing, more = (expected - found).total(), (found - expected).total()
        raise Violation(
            f"a reader of committed records misses {missing} records of committed transactions, and gets {more} of "
            "transactions that were not to be committed",
            rule,
        )
