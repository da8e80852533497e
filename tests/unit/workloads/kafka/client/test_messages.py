"""The Produce requests that are written by hand: byte for byte what kio's dataclasses come to."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.client.requests import PRODUCE, ProduceWriter
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.encoder import encode

VERSIONS = range(PRODUCE.least, PRODUCE.most + 1)
BATCHES = st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300))
TOPICS = st.dictionaries(st.text(max_size=140), st.lists(BATCHES, max_size=3), max_size=3)


def encoded_by_class(messages: Any, acks: int, timeout_ms: int, topics: dict[str, list[tuple[int, bytes]]]) -> bytes:
    partition, topic = messages.PartitionProduceData, messages.TopicProduceData
    data = tuple(
        topic(name=name, partition_data=tuple(partition(index=index, records=records) for index, records in batches))
        for name, batches in topics.items()
    )
    timeout = timedelta(milliseconds=timeout_ms)
    return encode(messages.ProduceRequest(acks=acks, timeout=timeout, topic_data=data))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None)
@given(acks=st.sampled_from((-1, 0, 1)), timeout_ms=st.integers(0, 2**31 - 1), topics=TOPICS)
def test_a_produce_request_is_what_its_class_encodes_to(
    version: int, acks: int, timeout_ms: int, topics: dict[str, list[tuple[int, bytes]]]
) -> None:
    """In every version that we speak, for any number of topics and partitions, with lengths of one byte and of two."""
    messages = PRODUCE.messages(Versions({PRODUCE.api: (0, version)}))
    writer = ProduceWriter(messages.ProduceRequest, acks, timeout_ms)
    assert version == writer.kind.__version__
    assert encoded_by_class(messages, acks, timeout_ms, topics) == b"".join(writer.body(topics))
