"""Transactions, as far as offsets need them: what a transaction commits is the group's when it ends."""

from dataclasses import dataclass, field
from typing import Any

from aftershock.tests.scripted import metadata
from aftershock.tests.scripted.call import Answer, Call, named, naming
from aftershock.tests.scripted.groups import Group

NOT_COORDINATOR = 16
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTION_VERSION_2_SINCE = 5


@dataclass
class Transaction:
    """A transactional id: who may use it, and what its open transaction holds."""

    producer_id: int
    epoch: int = -1
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def clear(self) -> None:
        self.groups.clear()
        self.offsets.clear()


async def init_producer_id(call: Call) -> Answer:
    """A new epoch of a transactional id, which ends what was open; without one a new id."""
    name = call.body.transactional_id
    if name is None:
        return await metadata.init_producer_id(call)
    if call.cluster.coordinator(name) != call.node.node_id:
        return {"error_code": NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
    call.cluster.producer_ids += 1
    transaction = call.cluster.transactions.setdefault(name, Transaction(call.cluster.producer_ids))
    transaction.clear()
    transaction.epoch += 1
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
    if call.request.version >= TRANSACTION_VERSION_2_SINCE:
        if error == INVALID_PRODUCER_EPOCH:
            known = call.cluster.transactions[call.body.transactional_id]
            if known.epoch == call.body.producer_epoch + 1 and not known.groups:
                return {"producer_id": known.producer_id, "producer_epoch": known.epoch}
        if transaction:
            transaction.epoch += 1
    if transaction:
        for (group, topic, number), offset in transaction.offsets.items() if call.body.committed else ():
            call.groups.setdefault(group, Group()).committed[topic, number] = (offset, -1, "")
        transaction.clear()
        return {"producer_id": transaction.producer_id, "producer_epoch": transaction.epoch}
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
