"""Which answers to a Produce prove that *this attempt* was not written.

1. An error that a broker finds before it appends proves it, if the answer names no base offset.
2. With ``acks=all`` a batch that was appended waits for its replicas. When it loses its leader meanwhile it gets the
   same error as if it had never been appended, but its base offset is in the answer (``DelayedProduce`` replaces the
   error code alone). So an answer with a base offset proves nothing.
3. All else proves nothing either: no answer, a broken connection, KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT,
   NOT_ENOUGH_REPLICAS_AFTER_APPEND, and every code that isn't listed here.

A record has surely *failed* if each attempt that was sent was refused like this; else it is in doubt.
"""

from kio.schema.errors import ErrorCode

from aftershock.workloads.rules.values import UNKNOWN

NOT_APPENDED = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_producer_id,
        ErrorCode.unsupported_compression_type,
        ErrorCode.invalid_record,
        ErrorCode.producer_fenced,
        ErrorCode.unknown_topic_id,
    }
)
"""What brokers find before they append (``KafkaApis``, ``ReplicaManager``, ``UnifiedLog.append``)."""


def surely_refused(error: int, base_offset: int) -> bool:
    """Whether an attempt that was answered like this is nowhere in any log."""
    return error in NOT_APPENDED and base_offset == UNKNOWN
