import pytest
from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.idempotence import NOT_APPENDED, surely_refused


@pytest.mark.parametrize("error", sorted(NOT_APPENDED))
def test_an_error_before_the_append_is_a_refusal(error: int) -> None:
    """Without a base offset such an answer proves that the attempt is nowhere; with one it proves nothing."""
    assert surely_refused(error, -1)
    assert not surely_refused(error, 0)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
        ErrorCode.leader_not_available,
        9999,
    ],
)
def test_any_other_error_proves_nothing(error: int) -> None:
    """An attempt that may have been appended is never taken for refused, nor is one with an error we don't know."""
    assert not surely_refused(error, -1)
