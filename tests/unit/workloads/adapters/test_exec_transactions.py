"""Transactions of a client program as the worker drives them: the orders, the evidence, and what is refused."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.adapters.steps import answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.exec import ExecConsumer, ExecProducer
from aftershock.workloads.load.assignment import Go, Stop, TransactionSettings
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.transactions import is_aborted

S = 1_000_000
PLANNED = {"records": 10, "abort": 0.3, "timeout_ms": 10_000}

READY = 'say(say="ready", accepts=["transactions"])\n'
CORRECT = """
assert told["transaction"] == {"id": "p0", "timeout_ms": 10_000}, told
open_, written, epoch, ended = False, [], 0, 0
for order in orders:
    do = order["do"]
    if do == "send":
        assert open_
        written.append(order["seq"])
        say(say="acked", seq=order["seq"], partition=0, offset=0)
    else:
        assert open_ == (do != "begin_transaction")
        open_ = do == "begin_transaction"
        extra = {}
        if do in FAIL and ended == FAIL_AT:
            extra = FAIL[do]
            open_ = open_ or extra["then"] != "reopen" or do == "commit_transaction"
        ended += do != "begin_transaction"
        say(say="transacted", did=do, producer_id=7, epoch=epoch, version=2, **extra)
        epoch += do != "begin_transaction"
"""


def run(bench: Bench, code: str, **changes: Any) -> list[dict[str, Any]]:
    """Send 200 records a second for half a second, and return the rows of the transactions."""
    planned = PLANNED | changes.pop("transaction", {})
    told = bench.produce(client="exec", command=program(READY + code), transaction=planned, **changes)
    producer = ExecProducer(told, bench.now_us, Events(told, bench.now_us))
    try:
        producer.prepare()
        now_us = bench.now_us()
        producer.obey(Go(start_us=now_us))
        producer.obey(Stop(at_us=now_us + S // 2))
        assert answered(producer)["unreported"] == 0
    finally:
        producer.close()
    convert(bench.spool, bench.outcomes)
    found: list[dict[str, Any]] = pq.read_table(bench.outcomes.parent / "transactions").to_pylist()
    return found


def failing(order: str, **report: Any) -> str:
    """Return the correct program, which reports the first such order, or the one after it, as failed."""
    return f"FAIL, FAIL_AT = { ({order: report})!r}, 1\n{CORRECT}"


def test_a_correct_program(bench: Bench) -> None:
    """It is ordered to end the transactions as the plan's seed says, and the rows have what it reports."""
    found = run(bench, f"FAIL, FAIL_AT = {{}}, 0\n{CORRECT}")
    assert [row["number"] for row in found] == list(range(10))
    settings = TransactionSettings.model_validate(PLANNED)
    aborted = [is_aborted(settings, 7, "orders", row["number"]) for row in found]
    assert True in aborted
    assert [row["outcome"] for row in found] == ["aborted" if aborts else "committed" for aborts in aborted]
    assert [(row["kafka_producer_id"], row["kafka_epoch"], row["version"]) for row in found] == [
        (7, number, 2) for number in range(10)
    ]
    assert {(row["status"], row["offset"]) for row in rows(bench, "p0")} == {("ok", 0)}
    assert [(row["first_seq"], row["last_seq"]) for row in found] == [(n * 10, n * 10 + 9) for n in range(10)]
    for row in found:
        times = [row[name] for name in ("begin_us", "sent_us", "asked_us", "done_us")]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("order", "report", "outcome", "error"),
    [
        ("begin_transaction", {"error": "PRODUCER_FENCED", "then": "reopen"}, "failed", "PRODUCER_FENCED"),
        ("commit_transaction", {"error": "REQUEST_TIMED_OUT", "then": "repeat"}, "committed", None),
        ("commit_transaction", {"error": "INVALID_RECORD", "then": "abort"}, "aborted", "INVALID_RECORD"),
        ("commit_transaction", {"error": "PRODUCER_FENCED", "then": "reopen"}, "in_doubt", "PRODUCER_FENCED"),
        (
            "commit_transaction",
            {"error": "PRODUCER_FENCED", "then": "reopen", "in_doubt": False},
            "failed",
            "PRODUCER_FENCED",
        ),
    ],
)
def test_what_follows_an_error(bench: Bench, order: str, report: dict[str, Any], outcome: str, error: str) -> None:
    """Only the second transaction fails; the program is ordered to do what its library demands, and goes on."""
    found = run(bench, failing(order, **report), transaction={"abort": 0})
    assert (found[1]["outcome"], found[1]["error"]) == (outcome, error)
    assert {"committed"} == {row["outcome"] for number, row in enumerate(found) if number != 1}


@pytest.mark.parametrize(("policy", "outcome"), [("retry", "committed"), ("close", "in_doubt"), ("abort", "aborted")])
def test_a_commit_without_an_answer(bench: Bench, policy: str, outcome: str) -> None:
    code = failing("commit_transaction", error="REQUEST_TIMED_OUT", then="repeat")
    found = run(bench, code, transaction={"abort": 0, "on_commit_timeout": policy})
    assert found[1]["outcome"] == outcome


def test_records_of_an_abort_are_acked_before_it_is_ordered(bench: Bench) -> None:
    """Otherwise a library drops them, and nothing is there that a reader must not see."""
    code = """
waiting = []
for order in orders:
    if order["do"] == "send":
        waiting.append(order["seq"])
        if len(waiting) == 10:
            for seq in waiting: say(say="acked", seq=seq)
            waiting = []
    else:
        assert not waiting
        say(say="transacted", did=order["do"])
"""
    found = run(bench, code, transaction={"abort": 1})
    assert {("aborted", None)} == {(row["outcome"], row["version"]) for row in found}


def test_a_version_may_be_told_with_the_end(bench: Bench) -> None:
    """A client like franz-go is known by the requests that it has sent."""
    code = """
for order in orders:
    if order["do"] == "send": say(say="acked", seq=order["seq"])
    elif order["do"] == "begin_transaction": say(say="transacted", did=order["do"], producer_id=3, epoch=4)
    else: say(say="transacted", did=order["do"], version=1, producer_id=9, epoch=9)
"""
    found = run(bench, code)
    assert {(3, 4, 1)} == {(row["kafka_producer_id"], row["kafka_epoch"], row["version"]) for row in found}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("say(say='transacted', did='begin_transaction')", "begin_transaction, which was not ordered"),
        ("say(say='transacted', did='commit_transaction')", "commit_transaction, which was not ordered"),
        ("say(say='transacted', did='reopen')", "field did of transacted"),
        ("say(say='transacted', did='begin_transaction', version=3)", "field version of transacted"),
    ],
)
def test_reports_that_break_the_protocol_end_the_run(bench: Bench, code: str, why: str) -> None:
    """The first such report is answered correctly, and followed by the wrong one."""
    first = "say(say='transacted', did=order['do'])"
    with pytest.raises(WorkloadError) as caught:
        run(bench, f"for order in orders:\n    {first}; {code}")
    assert why in str(caught.value)


def test_a_failed_reopen_ends_the_run(bench: Bench) -> None:
    code = "for order in orders: say(say='transacted', did=order['do'], error='PRODUCER_FENCED')"
    with pytest.raises(WorkloadError, match=r"could not reopen its producer \(PRODUCER_FENCED\)"):
        run(bench, code)


def test_a_program_without_transactions_is_refused_by_name(bench: Bench) -> None:
    command = program('say(say="ready")\nfor order in orders: pass')
    told = bench.produce(client="exec", command=command, transaction=PLANNED)
    producer = ExecProducer(told, bench.now_us, Events(told, bench.now_us))
    with pytest.raises(WorkloadError) as caught:
        producer.prepare()
    assert command[0] in str(caught.value)
    assert "transactions, and its report ready has no" in str(caught.value)
    assert "remove `transaction` under `produce`" in str(caught.value)
    producer.close()


def test_a_program_that_does_not_follow_the_isolation_is_refused(live_bench: Bench) -> None:
    """With the word, it gets the isolation of the plan."""
    bench = live_bench
    code = 'say(say="assigned", partitions=[]); assert told["isolation"] == "read_committed"; say(say="ready"%s)\n'
    for worker, extra in (("c0", ""), ("c1", ', accepts=["isolation"]')):
        command = program(code % extra + "for order in orders: pass")
        told = bench.consume(client="exec", command=command, isolation="read_committed", worker=worker)
        consumer = ExecConsumer(told, bench.now_us, Events(told, bench.now_us))
        if extra:
            consumer.prepare()
        else:
            with pytest.raises(WorkloadError, match="`isolation: read_committed`, and its report ready has no"):
                consumer.prepare()
        consumer.close()
