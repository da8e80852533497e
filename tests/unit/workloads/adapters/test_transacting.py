"""Producers in transactions as the worker drives them: a row of evidence for each transaction, and its outcome."""

from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.adapters.steps import TOPIC, answered, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.confluent import ConfluentProducer
from aftershock.workloads.adapters.reference import ReferenceProducer
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.load.assignment import Go, Stop, TransactionSettings
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import UNKNOWN, write_assignment
from aftershock.workloads.load.transactions import Outcome, TransactionRow, TransactionSpool, is_aborted

S = 1_000_000
PLANNED = {"records": 10, "abort": 0.3, "timeout_ms": 10_000}


def run(bench: Bench, kind: Callable[..., Any], for_us: int = S, **changes: Any) -> list[dict[str, Any]]:
    """Send 200 records a second, and return the rows of the transactions in the order of their beginning."""
    planned = PLANNED | changes.pop("transaction", {})
    told = bench.produce(transaction=planned, **changes)
    producer = kind(told, bench.now_us, Events(told, bench.now_us))
    producer.prepare()
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + for_us))
    assert answered(producer)["unreported"] == 0
    producer.close()
    convert(bench.spool, bench.outcomes)
    found: list[dict[str, Any]] = pq.read_table(bench.outcomes.parent / "transactions").to_pylist()
    return found


def check_rows(bench: Bench, transactions: list[dict[str, Any]]) -> None:
    """Each record belongs to one transaction, in the order of its number, whose times ascend."""
    sent = [row["seq"] for row in rows(bench, "p0")]
    assert sorted(sent) == [n for t in transactions for n in range(t["first_seq"], t["last_seq"] + 1)]
    for row in transactions:
        assert row["first_seq"] // PLANNED["records"] == row["number"]
        times = [row[name] for name in ("begin_us", "sent_us", "asked_us", "done_us") if row[name] is not None]
        assert times == sorted(times)
        assert row["due_us"] is not None


def planned(number: int) -> str:
    return "abort" if is_aborted(_settings(), 7, "orders", number) else "commit"


def _settings() -> TransactionSettings:
    return TransactionSettings.model_validate(PLANNED)


@pytest.mark.parametrize("level", [1, 2])
def test_the_reference_client(broker: ScriptedBroker, here: Bench, level: int) -> None:
    """The log agrees with the rows, about the outcomes and about the producer's epochs."""
    broker.set_transaction_version(level)
    found = run(here, ReferenceProducer)
    check_rows(here, found)
    assert len(found) == 20
    assert [planned(row["number"]) for row in found] == [row["intended"] for row in found]
    outcomes = {"commit": "committed", "abort": "aborted"}
    assert [outcomes[row["intended"]] for row in found] == [row["outcome"] for row in found]
    assert {"committed", "aborted"} == {row["outcome"] for row in found}
    assert {level} == {row["version"] for row in found}
    epochs = [row["kafka_epoch"] for row in found]
    assert epochs == (list(range(20)) if level == 2 else [0] * 20)
    ends = {
        (batch.header.producer_epoch, batch.marker)
        for partition in range(4)
        for batch in parse(broker.log(TOPIC, partition))
        if batch.is_control
    }
    assert {"commit", "abort"} == {marker for _, marker in ends}
    if level == 2:
        by_epoch = dict(ends)
        assert [by_epoch[epoch + 1] for epoch in epochs] == [row["intended"] for row in found]


def test_librdkafka(live_bench: Bench) -> None:
    found = run(live_bench, ConfluentProducer)
    check_rows(live_bench, found)
    assert [planned(row["number"]) for row in found] == [row["intended"] for row in found]
    outcomes = {"commit": "committed", "abort": "aborted"}
    assert [outcomes[row["intended"]] for row in found] == [row["outcome"] for row in found]
    assert {"ok"} == {row["status"] for row in rows(live_bench, "p0")}


@pytest.mark.parametrize(("policy", "first"), [("close", "in_doubt"), ("retry", "committed"), ("abort", "in_doubt")])
def test_a_commit_without_an_answer(broker: ScriptedBroker, here: Bench, policy: str, first: str) -> None:
    """With ``retry`` its late answer counts; ``close`` leaves it in doubt, and so does an abort that Kafka refuses.

    Records whose deadline passes meanwhile are not sent, and their transactions are aborted.
    """
    broker.script("EndTxn", delay_ms=700)
    found = run(here, ReferenceProducer, deadline_ms=400, transaction={"abort": 0, "on_commit_timeout": policy})
    check_rows(here, found)
    assert first == found[0]["outcome"]
    assert found[0]["error"] == (None if policy == "retry" else "REQUEST_TIMED_OUT")
    assert found[-1]["outcome"] == "committed"
    for row in found[1:]:
        assert (row["outcome"], row["error"]) in {("committed", None), ("aborted", "REQUEST_TIMED_OUT")}


def test_a_refused_batch_ends_in_an_abort(broker: ScriptedBroker, here: Bench) -> None:
    broker.script("Produce", error=int(ErrorCode.invalid_record))
    found = run(here, ReferenceProducer, transaction={"abort": 0})
    first, *others = found
    assert ("commit", "aborted", "INVALID_RECORD") == (first["intended"], first["outcome"], first["error"])
    assert {"committed"} == {row["outcome"] for row in others}


def test_a_fenced_producer_begins_anew(broker: ScriptedBroker, here: Bench) -> None:
    """EndTxn may have been applied before, so the outcome is in doubt; a new producer continues."""
    broker.script("EndTxn", nth=2, error=int(ErrorCode.producer_fenced))
    found = run(here, ReferenceProducer, transaction={"abort": 0})
    check_rows(here, found)
    assert ["committed", "in_doubt", "committed"] == [row["outcome"] for row in found[:3]]
    assert found[1]["error"] == "PRODUCER_FENCED"
    assert found[2]["kafka_epoch"] > found[1]["kafka_epoch"]


def test_a_fatal_error_of_librdkafka_begins_anew(broker: ScriptedBroker, here: Bench) -> None:
    """The coordinator has already ended the transaction, as after a late commit; librdkafka can't go on."""
    broker.script("EndTxn", nth=2, error=int(ErrorCode.invalid_txn_state))
    found = run(here, ConfluentProducer, transaction={"abort": 0})
    check_rows(here, found)
    assert ["committed", "in_doubt", "committed"] == [row["outcome"] for row in found[:3]]
    assert found[1]["error"] == "INVALID_TXN_STATE"


def test_a_killed_producer_leaves_its_rows(bench: Bench) -> None:
    """A transaction whose commit was not asked for has failed; otherwise it is in doubt. A new process adds rows."""
    told = bench.produce(transaction=PLANNED)
    (bench.spool / told.worker).mkdir(parents=True)
    write_assignment(bench.spool / told.worker, told)
    for number, asked in ((0, False), (1, True)):
        spool = TransactionSpool(bench.spool, told.worker)
        row = TransactionRow(number, number * 10, 5, aborts=False)
        spool.write(row)
        row.commit_asked, row.last_seq = asked, number * 10 + 3
        spool.write(row)
    final = TransactionRow(2, 20, 5, aborts=True)
    final.outcome, final.done_us = Outcome.ABORTED, 9
    spool.write(final)
    convert(bench.spool, bench.outcomes)
    found = pq.read_table(bench.outcomes.parent / "transactions").to_pylist()
    assert ["failed", "in_doubt", "aborted"] == [row["outcome"] for row in found]
    assert [(0, 3), (10, 13), (20, 20)] == [(row["first_seq"], row["last_seq"]) for row in found]
    assert [None, None, 9] == [row["done_us"] for row in found]
    assert UNKNOWN not in {value for row in found for value in row.values()}


@pytest.mark.parametrize(("kind", "where"), [(ReferenceProducer, "here"), (ConfluentProducer, "live_bench")])
def test_a_row_covers_each_record_before_it_is_sent(
    request: pytest.FixtureRequest, kind: Callable[..., Any], where: str
) -> None:
    """Otherwise the records of a killed producer would belong to no transaction, and count as lost."""
    bench: Bench = request.getfixturevalue(where)
    told = bench.produce(transaction=PLANNED | {"records": 1_000})
    producer = kind(told, bench.now_us, Events(told, bench.now_us))
    producer.prepare()
    producer.obey(Go(start_us=bench.now_us()))
    for _ in range(500):
        producer.step(20_000)
        if len(acked := [row["seq"] for row in rows(bench, "p0") if row["status"] == "ok"]) > 5:
            break
    (row,) = pq.read_table(bench.outcomes.parent / "transactions").to_pylist()
    producer.close()
    assert acked
    assert row["first_seq"] == 0
    assert row["last_seq"] >= max(acked)
    assert row["outcome"] == "failed"


def test_the_share_of_aborts_follows_the_plan() -> None:
    settings = _settings()
    aborted = [is_aborted(settings, 7, "orders", number) for number in range(10_000)]
    assert 0.28 < sum(aborted) / len(aborted) < 0.32
    assert aborted == [is_aborted(settings, 7, "orders", number) for number in range(10_000)]
    assert aborted != [is_aborted(settings, 8, "orders", number) for number in range(10_000)]
