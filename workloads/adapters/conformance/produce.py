"""What a producer must do. Each check is a function; its docstring is what is printed."""

from collections.abc import Sequence
from typing import cast

from confluent_kafka import Message

from aftershock.workloads.adapters.conformance.bench import (
    GRACE_S,
    Bench,
    Complaint,
    Sent,
    Talk,
    all_acked,
    end_of_input_ends,
    marked,
    none_acked,
    settle,
)
from aftershock.workloads.adapters.exec_protocol import Acked, Bye, Failed, Header, close_order, send_order

_BURST = 300
_FEW = 20
_TOO_LARGE = 3 * 2**20
_SOON_MS = 2_000


def a_burst_is_acked_once_and_where_it_is(bench: Bench) -> None:
    """Every record of a burst is acked once, and stands in the log where the ack says, byte for byte."""
    topic, records = bench.topic(), [_varied(number) for number in range(_BURST)]
    with bench.talk() as talk:
        talk.start(bench.producing(topic))
        _send(talk, records)
        acked = all_acked(settle(talk, range(_BURST), f"report all of {_BURST} records"))
        talk.close()
    log = bench.log(topic)
    _compare(acked, records, log)
    if len(log) != _BURST:
        raise Complaint(f"it was ordered to send {_BURST} records and the log has {len(log)}")


def a_record_too_large_fails_alone(bench: Bench) -> None:
    """A record of 3 MiB is reported whatever becomes of it, and those around it are acked."""
    records = [marked(0), marked(1, _TOO_LARGE), marked(2)]
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic()))
        _send(talk, records)
        told = settle(talk, range(3), "report a record of 3 MiB and those around it")
    for seq in (0, 2):
        if isinstance(report := told[seq], Failed):
            raise Complaint(f"a record of 100 bytes beside one of 3 MiB failed with {report.error}")


def nothing_is_acked_while_kafka_is_away(bench: Bench) -> None:
    """With every broker away nothing is acked; once they are back all is reported, and what is acked is in the log."""
    topic, records = bench.topic(), [marked(number) for number in range(_FEW)]
    with bench.talk() as talk:
        talk.start(bench.producing(topic))
        with bench.outage():
            _send(talk, records)
            talk.quiet()
            none_acked(talk, "while every broker was away")
        told = settle(talk, range(_FEW), "report all records once Kafka is back")
    _compare([report for report in told.values() if isinstance(report, Acked)], records, bench.log(topic))


def deadlines_are_kept(bench: Bench) -> None:
    """With Kafka away for longer than the deadline every record fails, soon after it.

    One is sent before: Kafka's own producer keeps no deadline until it has got its producer id.
    """
    records = [marked(number) for number in range(_FEW)]
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic(), deadline_ms=_SOON_MS))
        _send(talk, records[:1])
        settle(talk, [0], "report a record while nothing is wrong")
        with bench.outage():
            _send(talk, records[1:], first=1)
            settle(talk, range(_FEW), f"fail records of a {_SOON_MS} ms deadline", _SOON_MS / 1000 + GRACE_S)
            none_acked(talk, "while every broker was away", first=1)


def close_reports_what_is_open(bench: Bench) -> None:
    """Told to close right after a burst, it reports every record before it says bye."""
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic()))
        _send(talk, [marked(number) for number in range(_FEW)])
        talk.order(close_order())
        talk.until(lambda: talk.said(Bye), "say bye after close")
        settle(talk, range(_FEW), "report every record before bye", patience_s=0)


def it_ends_with_its_worker(bench: Bench) -> None:
    """When its standard input ends without a close it ends at once."""
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic()))
        end_of_input_ends(talk)


CHECKS = (
    a_burst_is_acked_once_and_where_it_is,
    a_record_too_large_fails_alone,
    nothing_is_acked_while_kafka_is_away,
    deadlines_are_kept,
    close_reports_what_is_open,
    it_ends_with_its_worker,
)


def _varied(number: int) -> Sent:
    """Records of many sizes, some empty, some with a key, some with an empty one."""
    return marked(number, number * number % 5_000, (None, b"", b"key-%d" % number)[number % 3])


def _send(talk: Talk, records: Sequence[Sent], first: int = 0) -> None:
    for seq, record in enumerate(records, first):
        talk.order(send_order(seq, *record))


def _compare(acked: Sequence[Acked], records: Sequence[Sent], log: Sequence[Message]) -> None:
    found = {(message.partition(), message.offset()): message for message in log}
    for seq, partition, offset in ((report.seq, report.partition, report.offset) for report in acked):
        message = found.get((partition, offset))
        if message is None:
            raise Complaint(f"it acked {seq} at offset {offset} of partition {partition}, where the log has nothing")
        if (stands := _as_sent(message)) != records[seq]:
            raise Complaint(
                f"it acked {seq} at offset {offset} of partition {partition}, where another record is: {stands}"
            )


def _as_sent(message: Message) -> Sent:
    return Sent(message.key(), message.value() or b"", tuple(cast("list[Header]", message.headers() or [])))
