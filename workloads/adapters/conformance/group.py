"""Conformance checks of the members of a consumer group; the docstring of a check is printed with its result.

The client program is started twice, and both copies share the partitions of a topic until the second one closes. The
reports of one copy are in the order in which it wrote them; those of two copies can be compared to within ``SLACK_S``.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aftershock.workloads.adapters.conformance.bench import (
    PARTITIONS,
    Bench,
    ClientSession,
    NotExaminable,
    Violation,
    marked_record,
)
from aftershock.workloads.adapters.conformance.consume import ASSIGNED, COMMIT, IN_ORDER
from aftershock.workloads.adapters.exec_orders import start_order
from aftershock.workloads.adapters.exec_protocol import (
    Assigned,
    Committed,
    Lost,
    Ready,
    Record,
    Report,
    Revoked,
    Rule,
)
from aftershock.workloads.load.spool import UNKNOWN

SLACK_S = 1.0
_BATCH = 20
_COMMIT_EVERY_MS = 500
_ALL = frozenset(range(PARTITIONS))

GIVEN_UP = Rule("consume", "Send `revoked` before another member can get the partitions")
ADDED = Rule("consume", "An assignment lists only the partitions that you did not have before")
SENT = Rule("consume", "`took_us`, the time from your request to Kafka's response, is required")
NOT_OWNED = Rule("consume", "report no record of them until they are assigned again")
COMMIT_FIRST = Rule("consume", "and before you give up partitions")
COVERED = Rule("consume", "A commit covers only records that you have reported.")
EPOCH = Rule("consume", "`epoch` is your member epoch or generation; leave it out if you do not know it.")


def owned(reports: Sequence[Report]) -> frozenset[int]:
    """Return the partitions that a member owns after these reports."""
    own: set[int] = set()
    for report in reports:
        if isinstance(report, Assigned):
            own.update(report.partitions)
        elif isinstance(report, Revoked | Lost):
            own.difference_update(report.partitions)
    return frozenset(own)


class Pair:
    """Two members of one group, and the records that were appended to each partition of their topic."""

    def __init__(self, bench: Bench, members: Sequence[ClientSession]) -> None:
        self.bench, self.topic = bench, bench.topic()
        self.group = f"group-of-{self.topic}"
        self.members = self.running = members
        self.filled = 0
        self._shared_since: float | None = None

    def start(self, member: ClientSession) -> None:
        number = self.members.index(member) + 1
        names = {"worker": f"conformance-{number}", "number": number, "group": self.group}
        commit = {"every_ms": _COMMIT_EVERY_MS}
        member.order(start_order(self.bench.consuming(self.topic, **names, members=2, commit=commit)))

    def fill(self) -> None:
        """Append records to each partition."""
        numbers = range(self.filled, self.filled + _BATCH)
        self.filled += _BATCH
        records = {partition: [marked_record(1000 * partition + at) for at in numbers] for partition in sorted(_ALL)}
        self.bench.fill(self.topic, records)

    def delivered(self) -> Counter[tuple[int, int]]:
        """Return how often the members reported each record, by partition and offset."""
        records = (record for member in self.members for record in member.reports_of(Record))
        return Counter((record.partition, record.offset) for record in records)

    def until(self, condition: Callable[[], object], action: str, rule: Rule) -> None:
        """Read the members' reports until ``condition`` is true; raise Violation of ``rule`` if it stays false.

        Raise Violation, too, if both members own a partition for longer than ``SLACK_S``.
        """
        patience_s = self.members[0].patience_s
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise Violation(f"the members do not {action} within {patience_s:g} s", rule)
            for member in self.running:
                member.listen(SLACK_S / 20)
            shared = frozenset.intersection(*(owned(member.reports) for member in self.members))
            if not shared:
                self._shared_since = None
            elif self._shared_since is None:
                self._shared_since = time.monotonic()
            elif time.monotonic() - self._shared_since > SLACK_S:
                raise Violation(
                    f"the first member did not report the partitions {sorted(shared)} as revoked or lost, and the "
                    "second member has them",
                    GIVEN_UP,
                )

    def read_all(self) -> None:
        expected = {(partition, offset) for partition in _ALL for offset in range(self.filled)}
        self.until(lambda: expected <= self.delivered().keys(), "report every record of the topic", IN_ORDER)


@contextmanager
def _sharing(bench: Bench) -> Iterator[Pair]:
    """Start one member, then another, both while records arrive; yield when each owns some of the partitions."""
    with bench.session() as first, bench.session() as second:
        pair = Pair(bench, [first, second])
        pair.fill()
        pair.start(first)
        pair.until(
            lambda: owned(first.reports) == _ALL, "report every partition as assigned to the only member", ASSIGNED
        )
        pair.start(second)
        pair.fill()

        def is_shared() -> bool:
            parts = [owned(member.reports) for member in pair.members]
            settled = all(parts) and frozenset.union(*parts) == _ALL and not frozenset.intersection(*parts)
            return settled and all(member.reports_of(Ready) for member in pair.members)

        action = "share the partitions, each with `ready`, `assigned` and `revoked`, after a second member has joined"
        pair.until(is_shared, action, ASSIGNED)
        pair.fill()
        yield pair


@contextmanager
def _left(bench: Bench) -> Iterator[Pair]:
    """Let the second of two members close while records arrive; yield when the first has read everything."""
    with _sharing(bench) as pair:
        first, second = pair.members
        pair.read_all()
        pair.fill()
        second.close()
        pair.running = [first]
        second.reports.append(Lost(partitions=tuple(_ALL)))  # a program that has exited owns nothing
        pair.until(
            lambda: owned(first.reports) == _ALL, "report every partition as assigned after the other left", ASSIGNED
        )
        pair.fill()
        pair.read_all()
        first.quiet()
        yield pair


def shares_the_partitions(bench: Bench) -> None:
    """When a second member joins, the first reports ``revoked``, then the second ``assigned``; each owns partitions."""
    with _sharing(bench) as pair:
        pair.read_all()


def takes_over_from_a_member_that_leaves(bench: Bench) -> None:
    """When a member closes, the other is assigned its partitions; no record is missed or read twice."""
    with _left(bench) as pair:
        if repeated := sorted(place for place, times in pair.delivered().items() if times > 1):
            raise Violation(
                f"the members reported (partition, offset) {repeated[0]} more than once, and {len(repeated)} records "
                "in total, although each member gave up its partitions in an orderly way; commit before you give up",
                COMMIT_FIRST,
            )
        pair.members[0].close()
        committed, expected = bench.committed(pair.group, pair.topic), dict.fromkeys(sorted(_ALL), pair.filled)
    if committed != expected:
        raise Violation(
            f"both members have closed, and the committed offsets are {committed}, expected {expected}", COMMIT
        )


def delivers_only_what_it_owns(bench: Bench) -> None:
    """``assigned`` has only new partitions; no record is reported before it, or after ``revoked`` or ``lost``."""
    with _left(bench) as pair:
        for member in pair.members:
            for at, report in enumerate(member.reports):
                if isinstance(report, Assigned) and (again := owned(member.reports[:at]) & {*report.partitions}):
                    raise Violation(
                        f"a member reported the partitions {sorted(again)} as assigned, which it had already, by its "
                        "reports; report what an assignment adds, and not all that you own",
                        ADDED,
                    )
                if isinstance(report, Record) and report.partition not in owned(member.reports[:at]):
                    raise Violation(
                        f"a member reported offset {report.offset} of partition {report.partition}, which it did not "
                        "own at that time, by its reports",
                        NOT_OWNED,
                    )


def commits_what_it_has_reported(bench: Bench) -> None:
    """A commit covers only reported records and has its duration; its epoch is not older than the assignment's."""
    with _left(bench) as pair:
        pair.members[0].close()
    if not any(member.reports_of(Committed) for member in pair.members):
        raise NotExaminable("the client reports no `committed`, without which its commits can't be compared")
    for member in pair.members:
        positions: dict[int, int] = {}
        epochs: dict[int, int] = {}
        for report in member.reports:
            if isinstance(report, Assigned):
                epochs |= dict.fromkeys(report.partitions, report.epoch)
            elif isinstance(report, Revoked | Lost):
                # where the member starts the next time is not known before its first record
                positions = {number: at for number, at in positions.items() if number not in report.partitions}
                epochs = {number: epoch for number, epoch in epochs.items() if number not in report.partitions}
            elif isinstance(report, Record):
                positions[report.partition] = report.offset + 1
            elif isinstance(report, Committed):
                if report.took_us is None:
                    raise Violation(
                        "a member reported `committed` without `took_us`; a commit is judged at the time at which it "
                        "was sent, and so the rules commit_ahead, commit_behind, fenced and stale_assignment need it",
                        SENT,
                    )
                _require_covered(report, positions, epochs)


def _require_covered(commit: Committed, positions: dict[int, int], epochs: dict[int, int]) -> None:
    for partition, offset in commit.offsets.items():
        if offset > positions.get(partition, offset):
            raise Violation(
                f"a member committed offset {offset} of partition {partition}, and had reported its records up to "
                f"offset {positions[partition] - 1}",
                COVERED,
            )
        if UNKNOWN != commit.epoch < epochs.get(partition, UNKNOWN):
            raise Violation(
                f"a member committed partition {partition} with the epoch {commit.epoch}, and its assignment had the "
                f"epoch {epochs[partition]}",
                EPOCH,
            )


CHECKS = (
    shares_the_partitions,
    takes_over_from_a_member_that_leaves,
    delivers_only_what_it_owns,
    commits_what_it_has_reported,
)
