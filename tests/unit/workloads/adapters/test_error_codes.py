"""Names of errors, as clients in other languages have them."""

import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from aftershock.workloads.adapters.exec import error_code


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_of_kafka_by_kafkas_name(code: ErrorCode) -> None:
    """As ``org.apache.kafka.common.protocol.Errors`` names them."""
    assert error_code(code.name.upper()) == int(code)


@pytest.mark.parametrize("code", [-199, -195, -192, -185, -184, -150, 3, 6, 7, 10, 19, 45])
def test_librdkafkas_names(code: int) -> None:
    """Its own errors, and where its name of one of Kafka's differs, that as well."""
    assert error_code(KafkaError(code).name()) == code


def test_a_name_that_nobody_knows() -> None:
    """Kafka's own code for "unknown"; never that of success, and no attribute of a class."""
    assert {error_code(name) for name in ("whatever", "", "name", "__doc__", "UNKNOWN_SERVER_ERROR")} == {-1}
