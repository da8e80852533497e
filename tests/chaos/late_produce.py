"""A hanging transaction, made on a running cluster: a transactional batch that arrives after its transaction's end.

The client speaks the first protocol of transactions (Produce 11, EndTxn 4). With
``transaction.partition.verification.enable=false`` the leader appends the late batch, and no coordinator knows of the
transaction that it opens: it is never ended (KAFKA-14402).
"""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.add_partitions_to_txn.v3 import request as add
from kio.schema.end_txn.v4.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.produce.v11 import request as produce
from kio.static.primitive import i32Timedelta

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import Admin, message, still_lacking
from aftershock.harness.kafka.transactions import PASSING, open_transactions
from aftershock.results.evidence.files import document
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.connection import Address

_TIMEOUT = i32Timedelta.parse(timedelta(seconds=60))
_DEADLINE_S = 30.0


def admin_of(run: Path) -> Admin:
    """Return a client for the cluster of a run that is in progress."""
    bootstrap = document(str(run), (run / "run.json").read_bytes())["bootstrap"]["admin"]
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    first = Admin({BrokerId(0): Address(host, int(port))})
    request = message(
        MetadataRequest,
        topics=(),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    brokers = first.ask(request).brokers
    first.close()
    return Admin({BrokerId(int(broker.node_id)): Address(broker.host, int(broker.port)) for broker in brokers})


class OldProducer:
    """Producer of the first protocol of transactions, for one partition; ``admin`` sends one request at a time."""

    def __init__(self, admin: Admin, name: str, topic: str, partition: int) -> None:
        self._admin, self._name, self._topic, self._partition = admin, name, topic, partition
        self._coordinator = admin.transaction_coordinator(name)
        leader = next(state.leader for state in admin.partitions([topic]) if state.partition == partition)
        assert leader is not None
        self._leader = leader
        begin = message(
            InitProducerIdRequest,
            transactional_id=name,
            transaction_timeout=_TIMEOUT,
            producer_id=-1,
            producer_epoch=-1,
        )
        found = _until(lambda: admin.ask(begin, only=self._coordinator))
        self._identity = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
        self._sequence = 0

    def add_partition(self) -> None:
        topics = (message(add.AddPartitionsToTxnTopic, name=self._topic, partitions=(self._partition,)),)
        prefixed = {f"v3_and_below_{name}": value for name, value in self._identity.items()}
        join = message(
            add.AddPartitionsToTxnRequest,
            v3_and_below_transactional_id=self._name,
            v3_and_below_topics=topics,
            **prefixed,
        )

        def answer() -> Any:
            return (
                self._admin.ask(join, only=self._coordinator).results_by_topic_v3_and_below[0].results_by_partition[0]
            )

        _until(answer)

    def produce(self, value: bytes) -> None:
        now_ms = time.time_ns() // 1_000_000
        identity = {"base_sequence": self._sequence, "transactional": True, **self._identity}
        records = build([value], timestamps_ms=[now_ms], **identity)
        part = message(produce.PartitionProduceData, index=self._partition, records=records)
        request = message(
            produce.ProduceRequest,
            transactional_id=self._name,
            acks=-1,
            timeout=_TIMEOUT,
            topic_data=(message(produce.TopicProduceData, name=self._topic, partition_data=(part,)),),
        )
        _until(lambda: self._admin.ask(request, only=self._leader).responses[0].partition_responses[0])
        self._sequence += 1

    def abort(self) -> None:
        """End the transaction, and wait until its marker is in the partition: a batch before it would be aborted."""
        end = message(EndTxnRequest, transactional_id=self._name, committed=False, **self._identity)
        _until(lambda: self._admin.ask(end, only=self._coordinator))

        def lacking() -> str:
            return "it is open" if open_transactions(self._admin, self._topic, self._partition) else ""

        assert still_lacking(lacking, _DEADLINE_S) == ""


def leave_open(admin: Admin, topic: str, partition: int) -> None:
    """Write a record, abort its transaction, and write another record of it."""
    old = OldProducer(admin, "late-produce", topic, partition)
    old.add_partition()
    old.produce(b"aborted")
    old.abort()
    old.produce(b"late")


def _until(ask: Callable[[], Any]) -> Any:
    """Return the answer to a request, which is repeated while a coordinator is busy; any other error fails."""
    give_up_s = time.monotonic() + _DEADLINE_S
    while True:
        answer = ask()
        code = getattr(answer, "error_code", None) or getattr(answer, "partition_error_code", ErrorCode.none)
        if code not in PASSING or time.monotonic() > give_up_s:
            assert code is ErrorCode.none, f"Kafka answers {code.name}"
            return answer
        time.sleep(0.2)
