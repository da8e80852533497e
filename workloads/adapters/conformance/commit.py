"""What a committer must do. Each check is a function; its docstring is what is printed."""

from aftershock.workloads.adapters.conformance.bench import (
    GRACE_S,
    PARTITIONS,
    Bench,
    Complaint,
    Talk,
    all_acked,
    end_of_input_ends,
    none_acked,
    settle,
)
from aftershock.workloads.adapters.exec_protocol import commit_order

_GROUPS = 8
_ROUNDS = 25
_FEW = 8
_SOON_MS = 2_000


def commits_are_acked_and_kept(bench: Bench) -> None:
    """Commits of many groups are acked once each, and the last of each group is what the cluster has."""
    topic = bench.topic()
    with bench.talk() as talk:
        talk.start(bench.committing(topic))
        _commit(talk, topic, _GROUPS * _ROUNDS)
        all_acked(settle(talk, range(_GROUPS * _ROUNDS), f"report all of {_GROUPS * _ROUNDS} commits"))
        talk.close()
    for number in range(_GROUPS):
        kept, last = bench.committed(_group(topic, number), topic), {number % PARTITIONS: _ROUNDS - 1}
        if kept != last:
            raise Complaint(f"group {number} was to have {last} committed last, by partition, and has {kept}")


def nothing_is_acked_while_kafka_is_away(bench: Bench) -> None:
    """With every broker away nothing is acked; once they are back all is reported."""
    topic = bench.topic()
    with bench.talk() as talk:
        talk.start(bench.committing(topic))
        with bench.outage():
            _commit(talk, topic, _FEW)
            talk.quiet()
            none_acked(talk, "while every broker was away")
        settle(talk, range(_FEW), "report all commits once Kafka is back")


def deadlines_are_kept(bench: Bench) -> None:
    """With Kafka away for longer than the deadline every commit fails, soon after it."""
    topic = bench.topic()
    with bench.talk() as talk:
        talk.start(bench.committing(topic, deadline_ms=_SOON_MS))
        with bench.outage():
            _commit(talk, topic, _FEW)
            settle(talk, range(_FEW), f"fail commits of a {_SOON_MS} ms deadline", _SOON_MS / 1000 + GRACE_S)
            none_acked(talk, "while every broker was away")


def it_ends_with_its_worker(bench: Bench) -> None:
    """When its standard input ends without a close it ends at once."""
    with bench.talk() as talk:
        talk.start(bench.committing(bench.topic()))
        end_of_input_ends(talk)


CHECKS = (
    commits_are_acked_and_kept,
    nothing_is_acked_while_kafka_is_away,
    deadlines_are_kept,
    it_ends_with_its_worker,
)


def _group(topic: str, number: int) -> str:
    return f"{topic}-{number}"


def _commit(talk: Talk, topic: str, count: int) -> None:
    for seq in range(count):
        number = seq % _GROUPS
        talk.order(commit_order(seq, _group(topic, number), number % PARTITIONS, seq // _GROUPS))
