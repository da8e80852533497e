import pytest

from aftershock.workloads.kafka.wire import codes


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (codes.HOPELESS, {"INVALID_TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"}),
        (codes.COORDINATOR_MOVED, {"COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"}),
        ({codes.OFFSET_OUT_OF_RANGE}, {"OFFSET_OUT_OF_RANGE"}),
        (
            codes.INVALID_METADATA,
            {
                "UNKNOWN_TOPIC_OR_PARTITION",
                "LEADER_NOT_AVAILABLE",
                "NOT_LEADER_OR_FOLLOWER",
                "REPLICA_NOT_AVAILABLE",
                "NETWORK_EXCEPTION",
                "KAFKA_STORAGE_ERROR",
                "FENCED_LEADER_EPOCH",
                "LISTENER_NOT_FOUND",
                "PREFERRED_LEADER_NOT_AVAILABLE",
                "ELIGIBLE_LEADERS_NOT_AVAILABLE",
                "ELECTION_NOT_NEEDED",
                "UNKNOWN_TOPIC_ID",
                "INCONSISTENT_TOPIC_ID",
            },
        ),
        (
            codes.RETRIABLE - codes.INVALID_METADATA,
            {
                "CORRUPT_MESSAGE",
                "REQUEST_TIMED_OUT",
                "COORDINATOR_LOAD_IN_PROGRESS",
                "COORDINATOR_NOT_AVAILABLE",
                "NOT_COORDINATOR",
                "NOT_ENOUGH_REPLICAS",
                "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
                "NOT_CONTROLLER",
                "CONCURRENT_TRANSACTIONS",
                "FETCH_SESSION_ID_NOT_FOUND",
                "INVALID_FETCH_SESSION_EPOCH",
                "UNKNOWN_LEADER_EPOCH",
                "OFFSET_NOT_AVAILABLE",
                "UNSTABLE_OFFSET_COMMIT",
                "THROTTLING_QUOTA_EXCEEDED",
                "FETCH_SESSION_TOPIC_ID_ERROR",
                "SHARE_SESSION_NOT_FOUND",
                "INVALID_SHARE_SESSION_EPOCH",
                "SHARE_SESSION_LIMIT_REACHED",
            },
        ),
    ],
)
def test_numbers_are_those_of_the_names(family: frozenset[int], names: set[str]) -> None:
    """The exceptions of Kafka 4.3's Errors that extend InvalidMetadataException, and RetriableException besides."""
    assert names == {codes.name(code) for code in family}


def test_an_unknown_code_has_a_name() -> None:
    """The name has the number."""
    assert "CODE_9999" == codes.name(9999)
