import pytest
from confluent_kafka import KafkaError

from aftershock.workloads.load.spool import CERTAINLY_NOT_WRITTEN, Status, error_name, status_of_code

CASES = [
    ("NO_ERROR", Status.OK),
    ("MSG_SIZE_TOO_LARGE", Status.FAILED),
    ("TOPIC_AUTHORIZATION_FAILED", Status.FAILED),
    ("RECORD_LIST_TOO_LARGE", Status.FAILED),
    ("_MSG_TIMED_OUT", Status.IN_DOUBT),
    ("_TIMED_OUT", Status.IN_DOUBT),
    ("REQUEST_TIMED_OUT", Status.IN_DOUBT),
    ("_TRANSPORT", Status.IN_DOUBT),
    ("_PURGE_QUEUE", Status.IN_DOUBT),
    ("_FATAL", Status.IN_DOUBT),
    ("NETWORK_EXCEPTION", Status.IN_DOUBT),
    ("NOT_LEADER_FOR_PARTITION", Status.IN_DOUBT),
    ("NOT_ENOUGH_REPLICAS", Status.IN_DOUBT),
    ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Status.IN_DOUBT),
    ("OUT_OF_ORDER_SEQUENCE_NUMBER", Status.IN_DOUBT),
]


@pytest.mark.parametrize(("name", "status"), CASES)
def test_errors_of_delivery_reports(name: str, status: Status) -> None:
    """Only errors that every attempt meets alike promise that a record is nowhere."""
    assert status_of_code(getattr(KafkaError, name)) is status


def test_an_error_nobody_has_heard_of_leaves_doubt() -> None:
    """An unknown error of a newer broker must not be read as a promise."""
    assert status_of_code(9999) is Status.IN_DOUBT


def test_no_certain_error_is_retriable() -> None:
    """librdkafka's own flag: a retriable error may follow an attempt that was written."""
    assert not [error_name(code) for code in CERTAINLY_NOT_WRITTEN if KafkaError(code).retriable()]


def test_names_are_kafkas() -> None:
    """The evidence uses Kafka's error names; librdkafka's own errors keep their underscore."""
    assert error_name(KafkaError.NOT_ENOUGH_REPLICAS) == "NOT_ENOUGH_REPLICAS"
    assert error_name(KafkaError._MSG_TIMED_OUT) == "_MSG_TIMED_OUT"
    assert error_name(KafkaError.NO_ERROR) is None
    assert [status.text for status in (Status.OK, Status.FAILED, Status.IN_DOUBT)] == ["ok", "failed", "in_doubt"]
