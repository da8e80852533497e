"""Keys: the hash is Kafka's, bit for bit."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.partitioner import murmur2, partition_for_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas with importlib's old functions
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), VECTORS.items())
def test_agrees_with_kafkas_own_vectors(key: bytes, hashed: int) -> None:
    """The vectors of Kafka's UtilsTest, with Java's sign."""
    assert hashed == murmur2(key)


@given(st.binary(max_size=70))
def test_agrees_with_an_independent_implementation(key: bytes) -> None:
    """Any key, of every length modulo four, hashes as kafka-python has it."""
    assert kafka_python_murmur2(key) == murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_key_finds_its_partition_by_the_hash_without_its_sign(key: bytes, count: int) -> None:
    """``toPositive`` cuts the sign bit off; it is no absolute value, which differs for every negative hash."""
    assert (kafka_python_murmur2(key) & 0x7FFFFFFF) % count == partition_for_key(key, count)
