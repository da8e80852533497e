"""Which errors prove that a record was *not* written, and which leave that open.

Rule: ``failed`` promises that the record is nowhere. A record that ``produce()`` itself refused (its queue is full,
say) was never sent: failed. In a delivery report only errors that lie in the record, the topic or its policies can
promise it, because every attempt meets them alike. Everything else (time-outs, connections, a leader that moved, too
few replicas, a fatal client) may follow an attempt that was written and whose answer was lost, and librdkafka's Python
binding doesn't tell whether a message was possibly persisted. So the default is ``in_doubt``: doubt costs a little
knowledge, a wrong ``failed`` would accuse Kafka of a phantom.
"""

from enum import IntEnum

from confluent_kafka import KafkaError


class Status(IntEnum):
    """What became of a record, as a number for the spool; ``text`` is what the evidence says."""

    IN_DOUBT = 0
    OK = 1
    FAILED = 2

    @property
    def text(self) -> str:
        """The status as it stands in the outcome row."""
        return self.name.lower()


CLIENT_DOWN = 32_000
"""Our own code, out of Kafka's reach: the record was due while its client had been killed, and nobody sent it."""

VALUE_CORRUPT = "VALUE_CORRUPT"
"""Our own name, in rows of what was read: it is a record of ours, and its value is not what was sent."""

CERTAINLY_NOT_WRITTEN = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


def reported(code: int) -> Status:
    """The status that the error code of a delivery report leaves a record in; code 0 is success."""
    if code == KafkaError.NO_ERROR:
        return Status.OK
    return Status.FAILED if code in CERTAINLY_NOT_WRITTEN else Status.IN_DOUBT


def error_name(code: int) -> str | None:
    """Kafka's name of an error code (librdkafka's own begin with an underscore), None for no error."""
    if code == CLIENT_DOWN:
        return "CLIENT_DOWN"
    return None if code == KafkaError.NO_ERROR else KafkaError(code).name()
