"""Transactions: their offsets are the group's when they end, and their partitions get a marker."""

from dataclasses import dataclass, field
from typing import Any

from aftershock.tests.scripted import metadata
from aftershock.tests.scripted.call import Answer, Call, named, naming
from aftershock.tests.scripted.cluster import Partition
from aftershock.tests.scripted.groups import Group
from aftershock.workloads.kafka.wire.batch import AFTER_CRC, TRANSACTIONAL, UNTIL_CRC

NOT_COORDINATOR = 16
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTION_VERSION_2_SINCE = 5
PRODUCE_ADDS_SINCE = 12


@dataclass
class Transaction:
    """A transactional id: who may use it, and what its open transaction holds."""

    producer_id: int
    epoch: int = -1
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    ended: bool | None = None
    """Whether the producer itself has committed (or aborted) the latest transaction; None if it has not ended it."""

    def clear(self) -> None:
        self.groups.clear()
        self.offsets.clear()
        self.partitions.clear()

    def mark(self, *, commit: bool, epoch: int) -> None:
        """Write the markers of the transaction, at once."""
        for partition in self.partitions.values():
            partition.log.end_transaction(self.producer_id, epoch, partition.leader.epoch, commit=commit)


async def init_producer_id(call: Call) -> Answer:
    """A new epoch of a transactional id, which ends what was open; without one a new id."""
    name = call.body.transactional_id
    if name is None:
        return await metadata.init_producer_id(call)
    if call.cluster.coordinator(name) != call.node.node_id:
        return {"error_code": NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
    call.cluster.producer_ids += 1
    transaction = call.cluster.transactions.setdefault(name, Transaction(call.cluster.producer_ids))
    transaction.epoch += 1
    transaction.ended = None
    transaction.mark(commit=False, epoch=transaction.epoch)
    transaction.clear()
    call.cluster.wake()
    return {"producer_id": transaction.producer_id, "producer_epoch": transaction.epoch}


def _known(call: Call) -> tuple[Transaction | None, int]:
    """The transaction that a request is of, or the error code for one who may not."""
    transaction = call.cluster.transactions.get(call.body.transactional_id)
    if transaction is None or transaction.producer_id != call.body.producer_id:
        return None, INVALID_PRODUCER_ID_MAPPING
    if transaction.epoch != call.body.producer_epoch:
        return None, INVALID_PRODUCER_EPOCH
    return transaction, 0


def _at_coordinator(call: Call) -> tuple[Transaction | None, int]:
    if call.cluster.coordinator(call.body.transactional_id) != call.node.node_id:
        return None, NOT_COORDINATOR
    return _known(call)


def refusal(call: Call, records: bytes, topic: Any, number: int, partition: Partition) -> int:
    """Error code for a batch that is not part of its producer's transaction; 0 if it is, or has no transaction."""
    attributes, *_, producer_id, epoch, _, _ = AFTER_CRC.unpack_from(records, UNTIL_CRC.size)
    if not attributes & TRANSACTIONAL:
        return 0
    transaction = call.cluster.transactions.get(call.body.transactional_id)
    if transaction is None or transaction.producer_id != producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    if transaction.epoch != epoch:
        return INVALID_PRODUCER_EPOCH
    place = call.name_of(topic), number
    if call.request.version >= PRODUCE_ADDS_SINCE:
        transaction.partitions[place] = partition
    return 0 if place in transaction.partitions else INVALID_TXN_STATE


async def add_partitions_to_txn(call: Call) -> Answer:
    known = call.cluster.transactions.get(call.body.v3_and_below_transactional_id)
    error = 0
    if call.cluster.coordinator(call.body.v3_and_below_transactional_id) != call.node.node_id:
        error = NOT_COORDINATOR
    elif known is None or known.producer_id != call.body.v3_and_below_producer_id:
        error = INVALID_PRODUCER_ID_MAPPING
    elif known.epoch != call.body.v3_and_below_producer_epoch:
        error = INVALID_PRODUCER_EPOCH
    topics = []
    for topic in call.body.v3_and_below_topics:
        parts = []
        for number in topic.partitions:
            wrong = call.error_of(topic.name, number) or error
            if not wrong:
                known.partitions[topic.name, number] = call.cluster.partition(topic.name, number)
            parts.append({"partition_index": number, "partition_error_code": wrong})
        topics.append({"name": topic.name, "results_by_partition": parts})
    return {"error_code": 0, "results_by_transaction": [], "results_by_topic_v3_and_below": topics}


async def add_offsets_to_txn(call: Call) -> Answer:
    transaction, error = _at_coordinator(call)
    if transaction:
        transaction.groups.add(call.body.group_id)
    return {"error_code": error}


async def txn_offset_commit(call: Call) -> Answer:
    transaction, error = _known(call)
    if call.cluster.coordinator(call.body.group_id) != call.node.node_id:
        transaction, error = None, NOT_COORDINATOR
    elif transaction and call.request.version >= TRANSACTION_VERSION_2_SINCE:
        transaction.groups.add(call.body.group_id)
    elif transaction and call.body.group_id not in transaction.groups:
        transaction, error = None, INVALID_TXN_STATE
    return {
        "topics": [
            naming(topic)
            | {"partitions": [_hold(call, transaction, error, topic, entry) for entry in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _hold(call: Call, transaction: Transaction | None, refused: int, topic: Any, entry: Any) -> Answer:
    scripted = call.error_of(named(topic), entry.partition_index)
    if transaction and (scripted is None or call.script.applied):
        place = call.body.group_id, call.name_of(named(topic)), entry.partition_index
        transaction.offsets[place] = entry.committed_offset
    return {"partition_index": entry.partition_index, "error_code": scripted or refused}


async def end_txn(call: Call) -> Answer:
    """With version 2 of the transactions the end raises the epoch, and a repeated end is known by the epoch before."""
    transaction, error = _at_coordinator(call)
    if transaction and not (transaction.partitions or transaction.groups or transaction.ended is None):
        error = 0 if transaction.ended == call.body.committed else INVALID_TXN_STATE
        transaction = transaction if not error else None
    if call.request.version >= TRANSACTION_VERSION_2_SINCE:
        if error == INVALID_PRODUCER_EPOCH:
            known = call.cluster.transactions[call.body.transactional_id]
            if known.epoch == call.body.producer_epoch + 1 and known.ended == call.body.committed:
                return {"producer_id": known.producer_id, "producer_epoch": known.epoch}
        if transaction:
            transaction.epoch += 1
    if transaction:
        for (group, topic, number), offset in transaction.offsets.items() if call.body.committed else ():
            call.groups.setdefault(group, Group()).committed[topic, number] = (offset, -1, "")
        transaction.ended = call.body.committed
        transaction.mark(commit=call.body.committed, epoch=transaction.epoch)
        transaction.clear()
        call.cluster.wake()
        return {"producer_id": transaction.producer_id, "producer_epoch": transaction.epoch}
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
