"""Conformance checks of consumers; the docstring of a check is printed with its result."""

from collections import Counter
from collections.abc import Mapping, Sequence

from aftershock.workloads.adapters.conformance.bench import (
    PARTITIONS,
    Bench,
    ClientSession,
    ExpectedRecord,
    Violation,
    marked_record,
    require_exit_at_end_of_input,
)
from aftershock.workloads.adapters.exec_protocol import Assigned, Ready, Record, Rule

_EACH = 50
_FIRST = 7
_ALL = range(PARTITIONS)

ASSIGNED = Rule("consume", "Send `assigned` at every assignment, `ready` after the first")
EVERY_PARTITION = Rule("consume", "Without a group, read every partition from `positions`")
COMMIT = Rule("consume", "commit when you like and at the latest on `close`")
IN_ORDER = Rule("consume", "Report each record when your application receives it, in the order of the partition.")
MARK = Rule("consume", "`mark` is the value of its header `aftershock`, or null")


def reads_from_start_positions(bench: Bench) -> None:
    """The client reports every record from the start offsets on, once and in order, and so for new records."""
    topic, old, new = bench.topic(), _records(0, _EACH), _records(_EACH, _EACH)
    bench.fill(topic, old)
    with bench.session(bench.consuming(topic), dict.fromkeys(_ALL, _FIRST)) as session:
        _assigned_first(session)
        bench.fill(topic, new)
        _read(session, {number: [*old[number], *new[number]] for number in _ALL}, _FIRST)
        session.close()


def reports_foreign_records(bench: Bench) -> None:
    """The client reports a record without the header ``aftershock`` with its size and a null mark."""
    topic = bench.topic()
    strange = [
        ExpectedRecord(None, b"", ()),
        ExpectedRecord(b"", b"other", (("aftershoc", b"x"),)),
        ExpectedRecord(None, b"v", (("h", None),)),
    ]
    bench.fill(topic, {0: strange})
    with bench.session(bench.consuming(topic), dict.fromkeys(_ALL, 0)) as session:
        _read(session, {0: strange}, 0)


def continues_after_an_outage(bench: Bench) -> None:
    """After an outage of all brokers the client misses no record and reports no record twice."""
    topic, old, new = bench.topic(), _records(0, _EACH), _records(_EACH, _EACH)
    bench.fill(topic, old)
    with bench.session(bench.consuming(topic), dict.fromkeys(_ALL, 0)) as session:
        _read(session, old, 0)
        with bench.outage():
            session.quiet()
        bench.fill(topic, new)
        _read(session, {number: [*old[number], *new[number]] for number in _ALL}, 0)


def continues_from_committed_offsets(bench: Bench) -> None:
    """A group member is assigned every partition, reads from the committed offsets, and commits when closed."""
    topic, log = bench.topic(), _records(0, _EACH)
    group = f"group-of-{topic}"
    bench.fill(topic, log)
    bench.commit(group, topic, dict.fromkeys(_ALL, _FIRST))
    with bench.session(bench.consuming(topic, group=group)) as session:
        _assigned_first(session)
        _read(session, log, _FIRST)
        session.close()
    if (committed := bench.committed(group, topic)) != dict.fromkeys(_ALL, _EACH):
        raise Violation(
            f"the client read up to offset {_EACH} of every partition and closed, but the committed "
            f"offsets are {committed}; commit on close",
            COMMIT,
        )


def exits_with_the_worker(bench: Bench) -> None:
    """A consumer exits at once when its standard input ends without a close order."""
    with bench.session(bench.consuming(bench.topic()), dict.fromkeys(_ALL, 0)) as session:
        require_exit_at_end_of_input(session)


CHECKS = (
    reads_from_start_positions,
    reports_foreign_records,
    continues_after_an_outage,
    continues_from_committed_offsets,
    exits_with_the_worker,
)


def _records(first: int, count: int) -> dict[int, list[ExpectedRecord]]:
    return {
        partition: [marked_record(1000 * partition + number, number) for number in range(first, first + count)]
        for partition in _ALL
    }


def _assigned_first(session: ClientSession) -> None:
    kinds = [type(report) for report in session.reports]
    if Assigned not in kinds[: kinds.index(Ready)]:
        raise Violation(
            "the client reported ready before its assigned partitions; report assigned before ready", ASSIGNED
        )
    assigned = {number for report in session.reports_of(Assigned) for number in report.partitions}
    if assigned != set(_ALL):
        raise Violation(
            f"the client is the only reader of {PARTITIONS} partitions, but reports as assigned only "
            f"{sorted(assigned)}",
            ASSIGNED,
        )


def _read(session: ClientSession, log: Mapping[int, Sequence[ExpectedRecord]], first: int) -> None:
    """Raise Violation unless the client reports the records of ``log`` from offset ``first`` on, once and in order."""
    expected = {(number, offset) for number, records in log.items() for offset in range(first, len(records))}
    session.until(
        lambda: expected <= {(record.partition, record.offset) for record in session.reports_of(Record)},
        "report every record of the topic",
        IN_ORDER,
    )
    session.quiet()
    counts = Counter((record.partition, record.offset) for record in session.reports_of(Record))
    if unexpected := counts.keys() - expected:
        raise Violation(
            f"the client reported (partition, offset) {min(unexpected)}, which it should not have read", EVERY_PARTITION
        )
    if repeated := [position for position, times in counts.items() if times > 1]:
        raise Violation(
            f"the client reported (partition, offset) {repeated[0]} twice, although nothing was reassigned", IN_ORDER
        )
    latest: dict[int, int] = {}
    for record in session.reports_of(Record):
        if record.offset < latest.get(record.partition, -1):
            raise Violation(
                f"the client reported offset {record.offset} of partition {record.partition} after a "
                "later offset of the same partition",
                IN_ORDER,
            )
        latest[record.partition] = record.offset
        expected_record = log[record.partition][record.offset]
        mark, size_bytes = dict(expected_record.headers).get("aftershock"), len(expected_record.value)
        if (record.mark, record.size_bytes) != (mark, size_bytes):
            raise Violation(
                f"the record at offset {record.offset} of partition {record.partition} has the mark {mark!r} (header "
                f"`aftershock`) and {size_bytes} bytes; the client reported the mark {record.mark!r} and "
                f"{record.size_bytes} bytes",
                MARK,
            )
