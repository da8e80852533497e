"""The requests that producers and all clients send, in whichever version a broker speaks."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from kio.static.protocol import RequestPayload

from aftershock.workloads.reference.speak import Dialect
from aftershock.workloads.wire.primitives import uvarint
from aftershock.workloads.wire.versions import Api

METADATA = Dialect(Api.METADATA, 10, 12)
"""Before 10 there are no topic ids (and before 9 leader epochs can't be relied on); 13 brings nothing for us."""

PRODUCE = Dialect(Api.PRODUCE, 3, 12)
"""Record batches of format v2 since 3; 13 names topics by id alone."""

INIT_PRODUCER_ID = Dialect(Api.INIT_PRODUCER_ID, 0, 5)
"""6 isn't stable in Kafka 4.3."""

_NO_TRANSACTION = timedelta(milliseconds=2**31 - 1)
_COMPACT_SINCE = 9  # the first version of Produce with compact lengths and tagged fields
_SHORT, _INT = struct.Struct(">h").pack, struct.Struct(">i").pack
_ACKS_AND_TIMEOUT = struct.Struct(">hi").pack


def metadata_request(messages: Any, topics: Iterable[str]) -> Any:
    """Ask for these topics and all nodes. Kafka's clients let the broker create a topic; ours don't."""
    old = {} if messages.MetadataRequest.__version__ > 10 else {"include_cluster_authorized_operations": False}  # noqa: PLR2004  # the last version that had it
    return messages.MetadataRequest(
        topics=tuple(messages.MetadataRequestTopic(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **old,
    )


class ProduceWriter:
    """Writes the bodies of one version of Produce, the one message whose dataclasses would cost more than its bytes.

    ``timeout_ms`` is for the acknowledgement.
    """

    def __init__(self, kind: type[RequestPayload], acks: int, timeout_ms: int) -> None:
        self.kind = kind
        compact = kind.__version__ >= _COMPACT_SINCE
        self._length = _compact_length if compact else _INT
        self._name_length = _compact_length if compact else _SHORT
        self._tags = bytes(compact)
        no_transaction = _compact_length(-1) if compact else _SHORT(-1)
        self._head = no_transaction + _ACKS_AND_TIMEOUT(acks, timeout_ms)

    def body(self, topics: Mapping[str, Sequence[tuple[int, bytes]]]) -> list[bytes]:
        """The bytes, in parts; ``topics``: by name, each partition and its one record batch."""
        parts = [self._head, self._length(len(topics))]
        for name, batches in topics.items():
            text = name.encode()
            parts += (self._name_length(len(text)), text, self._length(len(batches)))
            for index, records in batches:
                parts += (_INT(index), self._length(len(records)), records, self._tags)
            parts.append(self._tags)
        parts.append(self._tags)
        return parts


@lru_cache(maxsize=1024)
def _compact_length(length: int) -> bytes:
    return uvarint(length + 1)


def init_producer_id_request(messages: Any) -> Any:
    """Ask for a new producer id, without transactions."""
    return messages.InitProducerIdRequest(transactional_id=None, transaction_timeout=_NO_TRANSACTION)
