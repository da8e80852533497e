"""The requests that producers and all clients send, in whichever version a broker speaks."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from aftershock.workloads.reference.speak import Dialect
from aftershock.workloads.wire.versions import Api

METADATA = Dialect(Api.METADATA, 10, 12)
"""Before 10 there are no topic ids (and before 9 leader epochs can't be relied on); 13 brings nothing for us."""

PRODUCE = Dialect(Api.PRODUCE, 3, 12)
"""Record batches of format v2 since 3; 13 names topics by id alone."""

INIT_PRODUCER_ID = Dialect(Api.INIT_PRODUCER_ID, 0, 5)
"""6 isn't stable in Kafka 4.3."""

_NO_TRANSACTION = timedelta(milliseconds=2**31 - 1)


def metadata_request(messages: Any, topics: Iterable[str]) -> Any:
    """Ask for these topics and all nodes. Kafka's clients let the broker create a topic; ours don't."""
    old = {} if messages.MetadataRequest.__version__ > 10 else {"include_cluster_authorized_operations": False}  # noqa: PLR2004  # the last version that had it
    return messages.MetadataRequest(
        topics=tuple(messages.MetadataRequestTopic(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **old,
    )


def produce_request(
    messages: Any, acks: int, timeout: timedelta, topics: Mapping[str, Sequence[tuple[int, bytes]]]
) -> Any:
    """``topics``: by name, each partition and its one record batch. ``timeout`` is for the acknowledgement."""
    partition = messages.PartitionProduceData
    return messages.ProduceRequest(
        acks=acks,
        timeout=timeout,
        topic_data=tuple(
            messages.TopicProduceData(
                name=name,
                partition_data=tuple([partition(index=index, records=records) for index, records in batches]),
            )
            for name, batches in topics.items()
        ),
    )


def init_producer_id_request(messages: Any) -> Any:
    """Ask for a new producer id, without transactions."""
    return messages.InitProducerIdRequest(transactional_id=None, transaction_timeout=_NO_TRANSACTION)
