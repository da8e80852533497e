"""Conformance checks of committers; the docstring of a check is printed with its result."""

from aftershock.workloads.adapters.conformance.bench import (
    GRACE_S,
    GROUPS,
    PARTITIONS,
    Bench,
    ClientSession,
    Violation,
    await_reports,
    require_all_acked,
    require_exit_at_end_of_input,
    require_none_acked,
)
from aftershock.workloads.adapters.exec_orders import commit_order
from aftershock.workloads.adapters.exec_protocol import Rule
from aftershock.workloads.load.assignment import CommitAssignment

_ROUNDS = 25
_FEW = 8
_SOON_MS = 2_000

IN_ORDER = Rule("commit", "They must reach Kafka in the order of `seq`")


def acks_and_keeps_commits(bench: Bench) -> None:
    """The client acks each commit once, and the cluster stores the last commit of each consumer group."""
    topic = bench.topic()
    assignment = bench.committing(topic)
    with bench.session(assignment) as session:
        _commit(session, assignment, GROUPS * _ROUNDS)
        require_all_acked(await_reports(session, range(GROUPS * _ROUNDS), f"report all of {GROUPS * _ROUNDS} commits"))
        session.close()
    for number in range(GROUPS):
        committed, last = bench.committed(assignment.group_of(number), topic), {number % PARTITIONS: _ROUNDS - 1}
        if committed != last:
            raise Violation(
                f"the cluster has the offsets {committed} (by partition) as the last commit of group "
                f"{number}, expected {last}",
                IN_ORDER,
            )


def acks_nothing_during_an_outage(bench: Bench) -> None:
    """The client acks no commit while every broker is down, and reports every commit when the brokers are back."""
    assignment = bench.committing(bench.topic())
    with bench.session(assignment) as session:
        with bench.outage():
            _commit(session, assignment, _FEW)
            session.quiet()
            require_none_acked(session)
        await_reports(session, range(_FEW), "report all commits once Kafka is back")


def keeps_deadlines(bench: Bench) -> None:
    """If Kafka is down for longer than the deadline of commits, the client reports every commit as failed in time."""
    assignment = bench.committing(bench.topic(), deadline_ms=_SOON_MS)
    with bench.session(assignment) as session, bench.outage():
        _commit(session, assignment, _FEW)
        await_reports(
            session, range(_FEW), f"fail all commits that have a deadline of {_SOON_MS} ms", _SOON_MS / 1000 + GRACE_S
        )
        require_none_acked(session)


def exits_with_the_worker(bench: Bench) -> None:
    """A committer exits at once when its standard input ends without a close order."""
    with bench.session(bench.committing(bench.topic())) as session:
        require_exit_at_end_of_input(session)


CHECKS = (acks_and_keeps_commits, acks_nothing_during_an_outage, keeps_deadlines, exits_with_the_worker)


def _commit(session: ClientSession, assignment: CommitAssignment, count: int) -> None:
    for seq in range(count):
        session.order(commit_order(assignment, seq))
