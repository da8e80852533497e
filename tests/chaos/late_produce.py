"""A hanging transaction, made on a running cluster: a transactional batch that arrives after its transaction's end.

The client speaks the first protocol of transactions (Produce 11, EndTxn 4). With
``transaction.partition.verification.enable=false`` the leader appends the late batch, and no coordinator knows of the
transaction that it opens: it is never ended (KAFKA-14402).
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.add_partitions_to_txn.v3 import request as add
from kio.schema.end_txn.v4.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.produce.v11 import request as produce
from kio.static.primitive import i32Timedelta

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import Admin, message
from aftershock.results.evidence.files import document
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.connection import Address

NAME = "late-produce"
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=10))
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


def leave_open(admin: Admin, topic: str, partition: int) -> str:
    """Write a record, abort its transaction, and write another record of it; return Kafka's answer to the latter."""
    leader = next(state.leader for state in admin.partitions([topic]) if state.partition == partition)
    assert leader is not None

    def coordinator() -> Any:
        (found,) = admin.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=(NAME,))).coordinators  # type: ignore[arg-type]
        return found

    node = BrokerId(int(_until(coordinator).node_id))
    begin = message(
        InitProducerIdRequest,
        transactional_id=NAME,
        transaction_timeout=_TIMEOUT,
        producer_id=-1,
        producer_epoch=-1,
    )
    producer = _until(lambda: admin.ask(begin, only=node))
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}

    def batch(sequence: int) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        return build([b"late"], timestamps_ms=[now_ms], base_sequence=sequence, transactional=True, **identity)

    def send(sequence: int) -> Any:
        part = message(produce.PartitionProduceData, index=partition, records=batch(sequence))
        topics = (message(produce.TopicProduceData, name=topic, partition_data=(part,)),)
        request = message(produce.ProduceRequest, transactional_id=NAME, acks=-1, timeout=_TIMEOUT, topic_data=topics)
        return admin.ask(request, only=leader).responses[0].partition_responses[0]

    topics = (message(add.AddPartitionsToTxnTopic, name=topic, partitions=(partition,)),)
    prefixed = {f"v3_and_below_{name}": value for name, value in identity.items()}
    join = message(
        add.AddPartitionsToTxnRequest,
        v3_and_below_transactional_id=NAME,
        v3_and_below_topics=topics,
        **prefixed,
    )
    _until(lambda: admin.ask(join, only=node).results_by_topic_v3_and_below[0].results_by_partition[0])
    _until(lambda: send(0))
    end = message(EndTxnRequest, transactional_id=NAME, committed=False, **identity)
    _until(lambda: admin.ask(end, only=node))
    time.sleep(1.0)  # until the marker is written: a batch before it would be part of the aborted transaction
    answer: ErrorCode = send(1).error_code
    return answer.name


def _until(ask: Callable[[], Any]) -> Any:
    """Repeat a request until its answer has no error."""
    give_up_s = time.monotonic() + _DEADLINE_S
    while True:
        answer = ask()
        code = getattr(answer, "error_code", None) or getattr(answer, "partition_error_code", ErrorCode.none)
        if code is ErrorCode.none:
            return answer
        assert time.monotonic() < give_up_s, f"Kafka answers {code.name}"
        time.sleep(0.2)


if __name__ == "__main__":
    print(leave_open(admin_of(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
