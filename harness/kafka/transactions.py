"""Administration of transactions: fence a producer, find and end transactions that no coordinator will end.

A transaction *hangs* if the leader of a partition has it open (DescribeProducers) while no coordinator will write its
marker, because none knows it as ongoing or as about to end there (KIP-664, ``kafka-transactions find-hanging``). It is
ended by a marker that the harness writes itself (WriteTxnMarkers). Such a marker is forged: in a transaction that a
coordinator knows, it would tear the transaction.
"""

import time
from datetime import timedelta

from kio.schema.describe_producers.v0 import request as describe_producers
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.write_txn_markers.v2 import request as write_markers
from kio.static.primitive import i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, OpenTransaction, TransactionState
from aftershock.harness.kafka.admin import Admin, message, raise_for

_FENCE_TIMEOUT_S = 30.0
_RETRY_S = 0.05
_ENDING = i32Timedelta.parse(timedelta(milliseconds=1))
"""Timeout of transactions of the id, which the harness begins none of, as Kafka's ``FenceProducersHandler`` sets it."""
PASSING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}
"""Errors of a coordinator that is busy with the transactional id, or not there yet: the request is repeated."""
_MARKED_AS = 1
"""Version of the transactions of the marker: a marker of version 2 must have a higher epoch than the open transaction,
and only transactions of version 1 hang (``ProducerAppendInfo.checkProducerEpoch``)."""
_UNKNOWN = -1


def fence_producer(admin: Admin, transactional_id: str) -> tuple[int, int]:
    """Raise the epoch of a transactional id (InitProducerId); return the producer id and epoch that Kafka gave out.

    An open transaction of the id is aborted first, during which Kafka refuses further requests
    (CONCURRENT_TRANSACTIONS); as ``Admin.fenceProducers``, this is repeated, for 30 s at most.
    """
    request = message(
        InitProducerIdRequest,
        transactional_id=transactional_id,
        transaction_timeout=_ENDING,
        producer_id=_UNKNOWN,
        producer_epoch=_UNKNOWN,
    )
    give_up_s = time.monotonic() + _FENCE_TIMEOUT_S
    while True:
        response = admin.ask(request, only=admin.transaction_coordinator(transactional_id))
        if response.error_code not in PASSING or time.monotonic() > give_up_s:
            raise_for(response.error_code, f"fence the producer {transactional_id}")
            return int(response.producer_id), int(response.producer_epoch)
        time.sleep(_RETRY_S)


def transaction_state(admin: Admin, transactional_id: str) -> TransactionState | None:
    """Return what the coordinator of a transactional id says of it; None if it does not know the id."""
    request = message(DescribeTransactionsRequest, transactional_ids=(transactional_id,))
    (state,) = admin.ask(request, only=admin.transaction_coordinator(transactional_id)).transaction_states
    if state.error_code is ErrorCode.transactional_id_not_found:
        return None
    raise_for(state.error_code, f"describe the transaction of {transactional_id}")
    places = frozenset((topic.topic, number) for topic in state.topics for number in topic.partitions)
    return TransactionState(
        transactional_id, state.transaction_state, int(state.producer_id), int(state.producer_epoch), places
    )


def transaction_states(admin: Admin, producer_id: int) -> tuple[TransactionState, ...]:
    """Return the states of the transactional ids of a producer id; raise AdminError unless every broker answers.

    Each broker lists the ids that it coordinates, so the silence of one proves nothing.
    """
    names = set()
    request = message(ListTransactionsRequest, state_filters=(), producer_id_filters=(producer_id,))
    for broker in admin.addresses:
        response = admin.ask(request, only=broker)
        raise_for(response.error_code, f"list the transactions of broker {broker}")
        names |= {state.transactional_id for state in response.transaction_states}
    states = (transaction_state(admin, name) for name in sorted(names))
    return tuple(state for state in states if state is not None)


def open_transactions(admin: Admin, topic: str, partition: int) -> tuple[OpenTransaction, ...]:
    """Return the transactions that the leader of a partition has open, in the order of their first offsets."""
    wanted = message(describe_producers.TopicRequest, name=topic, partition_indexes=(partition,))
    request = message(describe_producers.DescribeProducersRequest, topics=(wanted,))
    response = admin.ask(request, only=_leader(admin, topic, partition))
    (answer,) = response.topics[0].partitions
    raise_for(answer.error_code, f"describe the producers of {topic}/{partition}", answer.error_message)
    found = (
        OpenTransaction(
            int(state.producer_id), state.producer_epoch, state.coordinator_epoch, int(state.current_txn_start_offset)
        )
        for state in answer.active_producers
        if state.current_txn_start_offset >= 0
    )
    return tuple(sorted(found, key=lambda transaction: transaction.first_offset))


def write_abort_marker(admin: Admin, topic: str, partition: int, transaction: OpenTransaction) -> None:
    """End an open transaction in a partition by an ABORT marker, without its coordinator, as ``abortTransaction``."""
    marker = message(
        write_markers.WritableTxnMarker,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_result=False,
        topics=(message(write_markers.WritableTxnMarkerTopic, name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(0, transaction.coordinator_epoch),  # -1 before the first marker of the producer
        transaction_version=_MARKED_AS,
    )
    request = message(write_markers.WriteTxnMarkersRequest, markers=(marker,))
    response = admin.ask(request, only=_leader(admin, topic, partition))
    what = f"abort the transaction of producer id {transaction.producer_id} in {topic}/{partition}"
    for result in response.markers:
        for name in result.topics:
            for place in name.partitions:
                raise_for(place.error_code, what)


def _leader(admin: Admin, topic: str, partition: int) -> BrokerId:
    state = next((state for state in admin.partitions([topic]) if state.partition == partition), None)
    if state is None or state.leader is None:
        raise AdminError(f"partition {topic}/{partition} has no leader now", "LEADER_NOT_AVAILABLE")
    return state.leader
