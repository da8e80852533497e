"""Where a consumer begins, settled before anything is produced that it must not miss."""

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aftershock.workloads.assignment import ConsumeAssignment
from aftershock.workloads.clients.patience import ASK_TIMEOUT_S, until_answered
from aftershock.workloads.settings import consumer_config


def settle_starts(told: ConsumeAssignment) -> dict[int, int]:
    """Each partition's first offset to read: what the group has committed, else as ``from`` says, as it is now.

    A group that begins at the end of the log has that committed for it: else it would begin wherever the end is when
    its members are assigned their partitions. Asks for as long as it takes, and from the start each time: a group
    that has got its first member meanwhile takes no commit from us any more (UNKNOWN_MEMBER_ID), and needs none.
    """
    plain = told.model_copy(update={"settings": {}})  # what another library's settings mean is not for us to say
    with closing(Consumer(consumer_config(plain))) as consumer:
        return until_answered(lambda: _settle(consumer, told))


def _settle(consumer: Consumer, told: ConsumeAssignment) -> dict[int, int]:
    known = _committed(consumer, told)
    fresh = [_fresh(consumer, told, each.partition) for each in known if each.offset < 0]
    if told.group is not None and told.from_ == "latest" and fresh:
        consumer.commit(offsets=fresh, asynchronous=False)
    return {start.partition: start.offset for start in [*known, *fresh] if start.offset >= 0}


def _committed(consumer: Consumer, told: ConsumeAssignment) -> list[TopicPartition]:
    """Every partition, with an offset where the group has committed one."""
    partitions = [TopicPartition(told.topic, number) for number in range(told.partitions)]
    return partitions if told.group is None else consumer.committed(partitions, timeout=ASK_TIMEOUT_S)


def _fresh(consumer: Consumer, told: ConsumeAssignment, number: int) -> TopicPartition:
    """The end or the beginning of the log, as it is now."""
    marks = consumer.get_watermark_offsets(TopicPartition(told.topic, number), timeout=ASK_TIMEOUT_S)
    if marks is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  # librdkafka's own errors
    return TopicPartition(told.topic, number, marks[1] if told.from_ == "latest" else marks[0])
