"""Conformance checks of producers; the docstring of a check is printed with its result."""

from collections.abc import Sequence
from typing import cast

from confluent_kafka import Message

from aftershock.workloads.adapters.conformance.bench import (
    CLOSE,
    FAILED,
    GRACE_S,
    Bench,
    ClientSession,
    ExpectedRecord,
    Violation,
    await_reports,
    marked_record,
    require_all_acked,
    require_exit_at_end_of_input,
    require_none_acked,
)
from aftershock.workloads.adapters.exec_orders import Close, Header, Send
from aftershock.workloads.adapters.exec_protocol import Acked, Bye, Failed, Rule

_BURST = 300
_FEW = 20
_TOO_LARGE = 3 * 2**20
_SOON_MS = 2_000
_SHOWN = 300

ACKED = Rule("produce", "`acked`: Kafka has acknowledged it as `acks` requires.")
UNCHANGED = Rule("produce", "Send each record unchanged: key, value, headers in their order.")


def acks_a_burst_once_at_its_offsets(bench: Bench) -> None:
    """The client acks each record once, and Kafka's log has the record's exact bytes at the acked offset."""
    # Sizes vary and include 0; some records have a key, some an empty key.
    topic = bench.topic()
    records = [
        marked_record(number, number * number % 5_000, (None, b"", b"key-%d" % number)[number % 3])
        for number in range(_BURST)
    ]
    with bench.session(bench.producing(topic)) as session:
        _send(session, records)
        acked = require_all_acked(await_reports(session, range(_BURST), f"report all of {_BURST} records"))
        session.close()
    log = bench.log(topic)
    _compare(acked, records, log)
    if len(log) != _BURST:
        raise Violation(
            f"the client was ordered to send {_BURST} records, and the log of the topic has {len(log)} records",
            UNCHANGED,
        )


def reports_a_record_that_is_too_large(bench: Bench) -> None:
    """The client reports a record of 3 MiB as acked or failed, and acks the records before and after that record."""
    records = [marked_record(0), marked_record(1, _TOO_LARGE), marked_record(2)]
    with bench.session(bench.producing(bench.topic())) as session:
        _send(session, records)
        reports = await_reports(
            session, range(3), "report a record of 3 MiB and the records before and after that record"
        )
    for seq in (0, 2):
        if isinstance(report := reports[seq], Failed):
            raise Violation(f"a record of 100 bytes beside one of 3 MiB failed with {report.error}", FAILED)


def acks_nothing_during_an_outage(bench: Bench) -> None:
    """The client acks no record while all brokers are down, and reports all later; Kafka has every acked record."""
    topic, records = bench.topic(), [marked_record(number) for number in range(_FEW)]
    with bench.session(bench.producing(topic)) as session:
        with bench.outage():
            _send(session, records)
            session.quiet()
            require_none_acked(session)
        reports = await_reports(session, range(_FEW), "report all records once Kafka is back")
    _compare([report for report in reports.values() if isinstance(report, Acked)], records, bench.log(topic))


def keeps_deadlines(bench: Bench) -> None:
    """If Kafka is down for longer than the deadline of records, the client reports every record as failed in time."""
    # One record is sent before the outage, because Kafka's own producer ignores deadlines until it has a producer id.
    records = [marked_record(number) for number in range(_FEW)]
    with bench.session(bench.producing(bench.topic(), deadline_ms=_SOON_MS)) as session:
        _send(session, records[:1])
        await_reports(session, [0], "report a record while all brokers are up")
        with bench.outage():
            _send(session, records[1:], first=1)
            await_reports(
                session,
                range(_FEW),
                f"fail all records that have a deadline of {_SOON_MS} ms",
                _SOON_MS / 1000 + GRACE_S,
            )
            require_none_acked(session, first=1)


def reports_open_records_on_close(bench: Bench) -> None:
    """A client that is ordered to close right after many records reports every record before it reports ``bye``."""
    with bench.session(bench.producing(bench.topic())) as session:
        _send(session, [marked_record(number) for number in range(_FEW)])
        session.order(Close().line())
        session.until(lambda: session.reports_of(Bye), "say bye after close", CLOSE)
        await_reports(session, range(_FEW), "report every record before bye", patience_s=0)


def exits_with_the_worker(bench: Bench) -> None:
    """A producer exits at once when its standard input ends without a close order."""
    with bench.session(bench.producing(bench.topic())) as session:
        require_exit_at_end_of_input(session)


CHECKS = (
    acks_a_burst_once_at_its_offsets,
    reports_a_record_that_is_too_large,
    acks_nothing_during_an_outage,
    keeps_deadlines,
    reports_open_records_on_close,
    exits_with_the_worker,
)


def _send(session: ClientSession, records: Sequence[ExpectedRecord], first: int = 0) -> None:
    for seq, (key, value, headers) in enumerate(records, first):
        order = Send(seq=seq, topic=session.topic, key=key, value=value, headers=tuple(headers))
        session.order(order.line())


def _compare(acked: Sequence[Acked], records: Sequence[ExpectedRecord], log: Sequence[Message]) -> None:
    logged = {
        (message.partition(), message.offset()): ExpectedRecord(
            message.key(), message.value() or b"", tuple(cast("list[Header]", message.headers() or []))
        )
        for message in log
    }
    for report in acked:
        where = f"the client acked record {report.seq} at offset {report.offset} of partition {report.partition}"
        found = logged.get((report.partition, report.offset))
        if found is None:
            raise Violation(f"{where}, where the log has no record", ACKED)
        if found != records[report.seq]:
            rule = ACKED if found in records else UNCHANGED  # the wrong place, or the wrong content
            raise Violation(f"{where}, where the log has another record: {str(found)[:_SHOWN]}", rule)
