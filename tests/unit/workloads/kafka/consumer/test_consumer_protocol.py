"""The bytes of subscriptions and assignments, compared with kafka-python's."""

import importlib
import warnings
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.consumer.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from aftershock.workloads.kafka.rules.assignors import Subscription
from aftershock.workloads.kafka.rules.values import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PARTITIONS = st.lists(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "é"]), st.integers(0, 2**31 - 1)), unique=True, max_size=6
)


def test_a_subscription_has_the_bytes_of_version_3() -> None:
    """Topics sorted, no user data, owned partitions by topic, generation, rack (ConsumerProtocolSubscription.json)."""
    encoded = encode_subscription("range", Subscription(("b", "a"), (B0, A1, A0), 5, "i", "r"), (), -1)
    assert (
        bytes.fromhex(
            "0003 00000002 0001 61 0001 62 ffffffff"
            "00000002 0001 61 00000002 00000000 00000001 0001 62 00000001 00000000"
            "00000005 0001 72"
        )
        == encoded
    )


def test_an_assignment_has_the_bytes_of_version_3() -> None:
    """ConsumerProtocolAssignment.json: partitions by topic, no user data."""
    assert bytes.fromhex("0003 00000001 0001 61 00000002 00000000 00000001 ffffffff") == encode_assignment([A1, A0])


@settings(max_examples=100, deadline=None)
@given(PARTITIONS, st.integers(-1, 2**31 - 1), st.sampled_from([None, "r"]))
def test_what_was_encoded_is_decoded(owned: list[TopicPartition], generation: int, rack: str | None) -> None:
    said = Subscription(("a", "b"), tuple(sorted(owned)), generation, "i", rack)
    for assignor in ("range", "roundrobin", "cooperative-sticky"):
        assert said == decode_subscription(assignor, encode_subscription(assignor, said, (), -1), "i")
    assert tuple(sorted(owned)) == decode_assignment(encode_assignment(owned))


@settings(max_examples=50, deadline=None)
@given(PARTITIONS, st.integers(0, 2**31 - 2))
def test_sticky_sends_its_previous_assignment(previous: list[TopicPartition], generation: int) -> None:
    """It has revoked all partitions by then: what it had is in the user data, with the generation of that time."""
    encoded = encode_subscription("sticky", Subscription(("a",), (), generation + 1), previous, generation)
    assert Subscription(("a",), tuple(sorted(previous)), generation) == decode_subscription("sticky", encoded, None)


def test_a_new_sticky_member_has_no_previous_assignment() -> None:
    assert Subscription(("a",)) == decode_subscription(
        "sticky", encode_subscription("sticky", Subscription(("a",)), (), -1), None
    )


def test_cooperative_sticky_sends_its_generation_twice() -> None:
    """As user data for leaders that read no more than version 1, whose field of its own would be -1."""
    version_1 = bytes.fromhex("0001 00000001 0001 61 00000004 00000007 00000001 0001 61 00000001 00000000")
    assert Subscription(("a",), (A0,), 7) == decode_subscription("cooperative-sticky", version_1, None)
    version_3 = encode_subscription("cooperative-sticky", Subscription(("a",), (A0,), -1), (A0,), 7)
    assert Subscription(("a",), (A0,), -1) == decode_subscription("cooperative-sticky", version_3, None)
    assert bytes.fromhex("00000004 00000007") in version_3


def test_old_and_future_versions_are_read() -> None:
    """Version 0 has topics only; a version from the future is read as version 3."""
    assert Subscription(("a",)) == decode_subscription("range", bytes.fromhex("0000 00000001 0001 61 ffffffff"), None)
    known = encode_subscription("range", Subscription(("a",), (A0,), 3, None, "r"), (), -1)
    assert decode_subscription("range", known, None) == decode_subscription(
        "range", b"\x00\x09" + known[2:] + b"x", None
    )
    assert (A0,) == decode_assignment(b"\x00\x09" + encode_assignment([A0])[2:])


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00\x00", b"\x00\x03\x00\x00\x00\x01"])
def test_invalid_bytes_are_an_error(data: bytes) -> None:
    """Another member's bytes, or the leader's, may be anything."""
    with pytest.raises(ProtocolError):
        decode_subscription("range", data, None)
    with pytest.raises(ProtocolError):
        decode_assignment(data)


def test_unreadable_sticky_user_data_counts_as_none() -> None:
    """As in Kafka: the member takes part, without its previous assignment."""
    garbled = bytes.fromhex("0000 00000001 0001 61 00000003 ffffff")
    assert Subscription(("a",)) == decode_subscription("sticky", garbled, None)


def test_kafka_python_reads_our_bytes_and_we_read_its() -> None:
    """An independent implementation of the same schemas."""
    said = Subscription(("a", "b"), (A0, A1, B0), -1)
    with warnings.catch_warnings():
        # it reads its definitions with importlib.resources.read_text
        warnings.simplefilter("ignore", DeprecationWarning)
        kind = importlib.import_module("kafka.protocol.consumer.metadata").ConsumerProtocolSubscription
    theirs = kind.decode(BytesIO(encode_subscription("range", said, (), -1)))
    assert ["a", "b"] == list(theirs.topics)
    assert said == decode_subscription("range", theirs.encode(), None)
