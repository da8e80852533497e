"""The requests that commit one offset, plainly or in a transaction, in whichever version a broker speaks."""

from datetime import timedelta
from typing import Any

from aftershock.errors import ProtocolError
from aftershock.workloads.reference.speak import Dialect
from aftershock.workloads.rules.commits import Target
from aftershock.workloads.rules.transactions import Identity
from aftershock.workloads.rules.values import UNKNOWN
from aftershock.workloads.wire.versions import Api

OFFSET_COMMIT = Dialect(Api.OFFSET_COMMIT, 8, 9)
"""10 names topics by id alone."""

TXN_OFFSET_COMMIT = Dialect(Api.TXN_OFFSET_COMMIT, 3, 4)
ADD_OFFSETS_TO_TXN = Dialect(Api.ADD_OFFSETS_TO_TXN, 3, 4)
END_TXN = Dialect(Api.END_TXN, 3, 4)
"""5 of TxnOffsetCommit and EndTxn are KIP-890's second part: another protocol."""

INIT_TRANSACTIONS = Dialect(Api.INIT_PRODUCER_ID, 3, 5)


def offset_commit(messages: Any, target: Target, offset: int, metadata: str = "") -> Any:
    """OffsetCommit of a group without members."""
    topic = messages.OffsetCommitRequestTopic(
        name=target.topic, partitions=(_partition(messages.OffsetCommitRequestPartition, target, offset, metadata),)
    )
    return messages.OffsetCommitRequest(
        group_id=target.group, generation_id_or_member_epoch=UNKNOWN, member_id="", topics=(topic,)
    )


def txn_offset_commit(messages: Any, target: Target, offset: int, *, transactional_id: str, identity: Identity) -> Any:
    """TxnOffsetCommit of a group without members."""
    topic = messages.TxnOffsetCommitRequestTopic(
        name=target.topic, partitions=(_partition(messages.TxnOffsetCommitRequestPartition, target, offset),)
    )
    return messages.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=target.group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=UNKNOWN,
        member_id="",
        topics=(topic,),
    )


def _partition(kind: Any, target: Target, offset: int, metadata: str = "") -> Any:
    return kind(
        partition_index=target.partition,
        committed_offset=offset,
        committed_leader_epoch=UNKNOWN,
        committed_metadata=metadata,
    )


def commit_error(response: Any) -> int:
    """The code that either response has for its one partition; ProtocolError when it speaks of none."""
    answers = [partition for topic in response.topics for partition in topic.partitions]
    if not answers:
        raise ProtocolError("a commit was answered without a word about its partition")
    return int(answers[0].error_code)


def init_transactions(messages: Any, transactional_id: str, timeout_ms: int) -> Any:
    """InitProducerId of a transactional id: a new epoch, and an end to what was left open."""
    return messages.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        producer_id=UNKNOWN,
        producer_epoch=UNKNOWN,
    )


def add_offsets(messages: Any, transactional_id: str, identity: Identity, group: str) -> Any:
    """AddOffsetsToTxn: the offsets of ``group`` are to be part of the transaction."""
    return messages.AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )


def end_transaction(messages: Any, transactional_id: str, identity: Identity, *, commit: bool) -> Any:
    """EndTxn: commit or abort."""
    return messages.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )
