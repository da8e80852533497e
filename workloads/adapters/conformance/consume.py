"""What a consumer must do. Each check is a function; its docstring is what is printed."""

from collections import Counter
from collections.abc import Mapping, Sequence

from aftershock.workloads.adapters.conformance.bench import (
    PARTITIONS,
    Bench,
    Complaint,
    Sent,
    Talk,
    end_of_input_ends,
    marked,
)
from aftershock.workloads.adapters.exec_protocol import Assigned, Ready, Record

_EACH = 50
_FIRST = 7
_ALL = range(PARTITIONS)


def it_reads_from_where_it_is_told(bench: Bench) -> None:
    """It reports what stands in the log from its positions on, once each and in order, and what comes after."""
    topic, old, new = bench.topic(), _records(0, _EACH), _records(_EACH, _EACH)
    bench.fill(topic, old)
    with bench.talk() as talk:
        talk.start(bench.consuming(topic), dict.fromkeys(_ALL, _FIRST))
        _assigned_first(talk)
        bench.fill(topic, new)
        _read(talk, {number: [*old[number], *new[number]] for number in _ALL}, _FIRST)
        talk.close()


def a_record_without_our_mark_is_reported_too(bench: Bench) -> None:
    """Records of others, without a key, a value or headers, are reported with a null mark and their size."""
    topic = bench.topic()
    strange = [Sent(None, b"", ()), Sent(b"", b"other", (("aftershoc", b"x"),)), Sent(None, b"v", (("h", None),))]
    bench.fill(topic, {0: strange})
    with bench.talk() as talk:
        talk.start(bench.consuming(topic), dict.fromkeys(_ALL, 0))
        _read(talk, {0: strange}, 0)


def it_goes_on_after_an_outage(bench: Bench) -> None:
    """After every broker was away it misses nothing and repeats nothing."""
    topic, old, new = bench.topic(), _records(0, _EACH), _records(_EACH, _EACH)
    bench.fill(topic, old)
    with bench.talk() as talk:
        talk.start(bench.consuming(topic), dict.fromkeys(_ALL, 0))
        _read(talk, old, 0)
        with bench.outage():
            talk.quiet()
        bench.fill(topic, new)
        _read(talk, {number: [*old[number], *new[number]] for number in _ALL}, 0)


def a_group_goes_on_where_it_had_got_to(bench: Bench) -> None:
    """In a group it is assigned every partition, reads from what was committed, and commits when it closes."""
    topic, log = bench.topic(), _records(0, _EACH)
    group = f"group-of-{topic}"
    bench.fill(topic, log)
    bench.commit(group, topic, dict.fromkeys(_ALL, _FIRST))
    with bench.talk() as talk:
        talk.start(bench.consuming(topic, group=group))
        _assigned_first(talk)
        _read(talk, log, _FIRST)
        talk.close()
    if (kept := bench.committed(group, topic)) != dict.fromkeys(_ALL, _EACH):
        raise Complaint(f"it read up to offset {_EACH} of every partition, closed, and left committed, of each: {kept}")


def it_ends_with_its_worker(bench: Bench) -> None:
    """When its standard input ends without a close it ends at once."""
    with bench.talk() as talk:
        talk.start(bench.consuming(bench.topic()), dict.fromkeys(_ALL, 0))
        end_of_input_ends(talk)


CHECKS = (
    it_reads_from_where_it_is_told,
    a_record_without_our_mark_is_reported_too,
    it_goes_on_after_an_outage,
    a_group_goes_on_where_it_had_got_to,
    it_ends_with_its_worker,
)


def _records(first: int, count: int) -> dict[int, list[Sent]]:
    """``count`` records for each partition, no two alike."""
    return {at: [marked(1000 * at + number, number) for number in range(first, first + count)] for at in _ALL}


def _assigned_first(talk: Talk) -> None:
    kinds = [type(report) for report in talk.reports]
    if Assigned not in kinds[: kinds.index(Ready)]:
        raise Complaint("it said ready before it said what is assigned to it")
    held = {number for report in talk.said(Assigned) for number in report.partitions}
    if held != set(_ALL):
        raise Complaint(f"it is the only reader of {PARTITIONS} partitions and was assigned {sorted(held)}")


def _read(talk: Talk, log: Mapping[int, Sequence[Sent]], first: int) -> None:
    """Listen until all of ``log`` from offset ``first`` on was reported; a Complaint unless it was exactly that."""
    wanted = {(number, offset) for number, records in log.items() for offset in range(first, len(records))}
    talk.until(lambda: wanted <= {(one.partition, one.offset) for one in talk.said(Record)}, "report every record")
    talk.quiet()
    told = Counter((one.partition, one.offset) for one in talk.said(Record))
    if other := told.keys() - wanted:
        raise Complaint(f"it reported (partition, offset) {min(other)}, which it should not have read")
    if twice := [place for place, times in told.items() if times > 1]:
        raise Complaint(f"it reported (partition, offset) {twice[0]} twice, though nothing was reassigned")
    latest: dict[int, int] = {}
    for one in talk.said(Record):
        if one.offset < latest.get(one.partition, -1):
            raise Complaint(f"it reported offset {one.offset} of partition {one.partition} after a later one")
        latest[one.partition] = one.offset
        _same(one, log[one.partition][one.offset])


def _same(told: Record, stands: Sent) -> None:
    mark = dict(stands.headers).get("aftershock")
    if (told.mark, told.size_bytes) != (mark, len(stands.value)):
        raise Complaint(
            f"offset {told.offset} of partition {told.partition} has the mark {mark!r} and {len(stands.value)} bytes; "
            f"it reported {told.mark!r} and {told.size_bytes}"
        )
