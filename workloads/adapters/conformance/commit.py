"""Conformance checks of committers; the docstring of a check is printed with its result."""

from aftershock.workloads.adapters.conformance.bench import (
    GRACE_S,
    PARTITIONS,
    Bench,
    ClientSession,
    Violation,
    await_reports,
    require_all_acked,
    require_exit_at_end_of_input,
    require_none_acked,
)
from aftershock.workloads.adapters.exec_protocol import Rule, commit_order

_GROUPS = 8
_ROUNDS = 25
_FEW = 8
_SOON_MS = 2_000

IN_ORDER = Rule("commit", "They must reach Kafka in the order of `seq`")


def acks_and_keeps_commits(bench: Bench) -> None:
    """The client acks each commit once, and the cluster stores the last commit of each consumer group."""
    topic = bench.topic()
    with bench.session(bench.committing(topic)) as session:
        _commit(session, topic, _GROUPS * _ROUNDS)
        require_all_acked(
            await_reports(session, range(_GROUPS * _ROUNDS), f"report all of {_GROUPS * _ROUNDS} commits")
        )
        session.close()
    for number in range(_GROUPS):
        committed, last = bench.committed(_group(topic, number), topic), {number % PARTITIONS: _ROUNDS - 1}
        if committed != last:
            raise Violation(
                f"the cluster has the offsets {committed} (by partition) as the last commit of group "
                f"{number}, expected {last}",
                IN_ORDER,
            )


def acks_nothing_during_an_outage(bench: Bench) -> None:
    """The client acks no commit while every broker is down, and reports every commit when the brokers are back."""
    topic = bench.topic()
    with bench.session(bench.committing(topic)) as session:
        with bench.outage():
            _commit(session, topic, _FEW)
            session.quiet()
            require_none_acked(session)
        await_reports(session, range(_FEW), "report all commits once Kafka is back")


def keeps_deadlines(bench: Bench) -> None:
    """If Kafka is down for longer than the deadline of commits, the client reports every commit as failed in time."""
    topic = bench.topic()
    with bench.session(bench.committing(topic, deadline_ms=_SOON_MS)) as session, bench.outage():
        _commit(session, topic, _FEW)
        await_reports(
            session, range(_FEW), f"fail all commits that have a deadline of {_SOON_MS} ms", _SOON_MS / 1000 + GRACE_S
        )
        require_none_acked(session)


def exits_with_the_worker(bench: Bench) -> None:
    """A committer exits at once when its standard input ends without a close order."""
    with bench.session(bench.committing(bench.topic())) as session:
        require_exit_at_end_of_input(session)


CHECKS = (acks_and_keeps_commits, acks_nothing_during_an_outage, keeps_deadlines, exits_with_the_worker)


def _group(topic: str, number: int) -> str:
    return f"{topic}-{number}"


def _commit(session: ClientSession, topic: str, count: int) -> None:
    for seq in range(count):
        number = seq % _GROUPS
        session.order(commit_order(seq, _group(topic, number), number % PARTITIONS, seq // _GROUPS))
