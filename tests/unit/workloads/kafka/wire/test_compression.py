"""The codecs: round trips, size limits, and the formats of snappy and LZ4."""

import contextlib
import gzip
import sys
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import compression

CODECS = compression.NAMES[1:]
LIMIT = 1 << 20
LZ4_LINKED = 1 << 5  # of the frame's flags, where set bits mean that blocks do not depend on each other


@pytest.mark.parametrize("name", CODECS)
@given(data=st.binary(max_size=3000) | st.integers(1, 100_000).map(bytes))
def test_round_trip(name: str, data: bytes) -> None:
    """Any data, from bytes or a view of a larger buffer."""
    packed = compression.compress(name, data)
    assert data == bytes(compression.decompress(name, packed, LIMIT))
    assert data == bytes(compression.decompress(name, memoryview(b"x" + packed)[1:], LIMIT))


@pytest.mark.parametrize("name", [*CODECS, "raw snappy"])
def test_a_bomb_gets_no_memory(name: str) -> None:
    """8 MiB of zeros in less than the limit are refused, and cost no more than that on the way."""
    zeros = bytes(8 << 20)
    bomb = bytes(cramjam.snappy.compress_raw(zeros)) if name == "raw snappy" else compression.compress(name, zeros)
    name = name.removeprefix("raw ")
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"invalid {name} data .*limit {LIMIT}"):
            compression.decompress(name, bomb, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CODECS)
def test_exactly_the_limit_is_allowed(name: str) -> None:
    """The limit is the largest size that passes; one byte less room is too little."""
    packed = compression.compress(name, bytes(5000))
    assert bytes(5000) == bytes(compression.decompress(name, packed, 5000))
    with pytest.raises(ProtocolError):
        compression.decompress(name, packed, 4999)


@pytest.mark.parametrize("name", CODECS)
@given(data=st.binary(max_size=60))
def test_junk_is_a_protocol_error(name: str, data: bytes) -> None:
    """Bytes that no codec wrote give our error or, by chance, data: nothing else."""
    with contextlib.suppress(ProtocolError):
        assert len(compression.decompress(name, data, LIMIT)) <= LIMIT


@pytest.mark.parametrize("name", CODECS)
def test_data_that_ends_early_or_late(name: str) -> None:
    """A cut stream is refused, not read as far as it goes."""
    packed = compression.compress(name, bytes(range(256)) * 40)
    for broken in (packed[:-1], packed[: len(packed) // 2], packed + b"\x01\x02\x03"):
        with pytest.raises(ProtocolError):
            compression.decompress(name, broken, LIMIT)


def test_gzip_is_what_gzip_reads_and_writes() -> None:
    """Python's own gzip module is the oracle."""
    assert b"kafka" == gzip.decompress(compression.compress("gzip", b"kafka"))
    assert b"kafka" == compression.decompress("gzip", gzip.compress(b"kafka"), LIMIT)


def test_lz4_blocks_are_independent() -> None:
    """A Java broker reads no frame with linked blocks: the frame's flag says that they are independent."""
    assert compression.compress("lz4", bytes(200_000))[4] & LZ4_LINKED


def test_lz4_with_linked_blocks_is_read_all_the_same() -> None:
    """What other clients' libraries write by default."""
    assert bytes(200_000) == compression.decompress("lz4", bytes(cramjam.lz4.compress(bytes(200_000))), LIMIT)


def test_snappy_is_written_in_java_blocks_and_read_with_and_without() -> None:
    """snappy-java's header and 32 KiB blocks when writing; raw snappy, which librdkafka writes, when reading."""
    data = bytes(range(256)) * 300
    assert compression.compress("snappy", data).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert data == compression.decompress("snappy", bytes(cramjam.snappy.compress_raw(data)), LIMIT)


def test_without_cramjam_gzip_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional: without it three codecs say what to install, and the fourth needs nothing."""
    packed = compression.compress("zstd", b"x")
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for name in ("snappy", "lz4", "zstd"):
        assert not compression.available(name)
        with pytest.raises(UnsupportedError, match=rf"{name}.*pip install cramjam"):
            compression.compress(name, b"x")
    with pytest.raises(UnsupportedError, match="zstd"):
        compression.decompress("zstd", packed, LIMIT)
    assert b"x" == compression.decompress("gzip", compression.compress("gzip", b"x"), LIMIT)
    assert compression.available("gzip")
