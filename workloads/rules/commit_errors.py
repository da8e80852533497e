"""What an answer to OffsetCommit calls for, and which answers prove that nothing was written.

Kafka: ``CommitRequestManager.OffsetCommitRequestState.onResponse``; ``ConsumerCoordinator.OffsetCommitResponseHandler``
says the same.

=============================  =======================================================================
COORDINATOR_LOAD_IN_PROGRESS,  asked again: the coordinator, or its metadata, isn't there yet
UNKNOWN_TOPIC_OR_PARTITION
NOT_COORDINATOR,               asked again, of a coordinator that is looked for first
COORDINATOR_NOT_AVAILABLE,
REQUEST_TIMED_OUT
all else                       final: what the group, the topic or the request is won't change by asking
=============================  =======================================================================

A coordinator appends and waits for its replicas. A write that is under way when it loses its partition ends as
NOT_COORDINATOR, and one that is too slow as COORDINATOR_NOT_AVAILABLE (``CoordinatorOperationExceptionHelper``), yet it
may be kept: these two prove nothing. Nor does REQUEST_TIMED_OUT, or a code that is listed nowhere here.
"""

from kio.schema.errors import ErrorCode

from aftershock.workloads.wire.codes import COORDINATOR_MOVED

MOVED: frozenset[int] = COORDINATOR_MOVED | {ErrorCode.request_timed_out}
"""The coordinator has to be looked for."""

ASKED_AGAIN: frozenset[int] = MOVED | {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.unknown_topic_or_partition,
}
"""The same commit may succeed later."""

NOT_WRITTEN: frozenset[int] = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.invalid_group_id,
        ErrorCode.unknown_member_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.invalid_commit_offset_size,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.group_id_not_found,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.stale_member_epoch,
    }
)
"""What ``KafkaApis`` and the coordinator find before they write."""
