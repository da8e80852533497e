"""Compression codecs of record batches (gzip by zlib; snappy, lz4 and zstd by the optional package cramjam).

The Java broker can't read LZ4 frames with linked blocks, the default of LZ4 libraries, so blocks are independent. Java
producers wrap snappy in the block format of snappy-java ("xerial"), librdkafka doesn't, so ``decompress`` reads both
formats and ``compress`` writes snappy-java's. Decompression never uses more memory than the argument ``limit``.
"""

import importlib.util
import struct
import zlib
from typing import Any

import numpy as np

from aftershock.errors import ProtocolError, UnsupportedError

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Values of Kafka's ``compression.type``; the index is the codec's number in the attributes of a batch."""

Buffer = bytes | memoryview

_GZIP_WBITS = 31
_XERIAL_HEADER = struct.pack(">b6sbii", -126, b"SNAPPY", 0, 1, 1)  # magic, version, lowest compatible version
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024  # block size of snappy-java
_LENGTH = struct.Struct(">i")


def available(name: str) -> bool:
    return name in {"none", "gzip"} or importlib.util.find_spec("cramjam") is not None


def compress(name: str, data: bytes) -> bytes:
    """Compress the records of a batch; raise UnsupportedError if the codec ``name`` isn't installed."""
    if name == "gzip":
        return zlib.compress(data, wbits=_GZIP_WBITS)
    cramjam = _import_cramjam(name)
    if name == "snappy":
        blocks = [
            bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
            for at in range(0, len(data), _XERIAL_BLOCK_BYTES)
        ]
        return _XERIAL_HEADER + b"".join(_LENGTH.pack(len(block)) + block for block in blocks)
    if name == "lz4":
        compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data))


def decompress(name: str, data: Buffer, limit: int) -> Buffer:
    """Decompress the records of a batch to at most ``limit`` bytes.

    Raises ProtocolError if the data is invalid or larger than ``limit`` when decompressed, UnsupportedError if the
    codec isn't installed.
    """
    cramjam = None if name == "gzip" else _import_cramjam(name)
    errors = (zlib.error, struct.error, *([cramjam.DecompressionError] if cramjam else []))
    try:
        if cramjam is None:
            stream = zlib.decompressobj(wbits=_GZIP_WBITS)
            plain = stream.decompress(data, max_length=limit + 1)
            _check_limit(len(plain), limit)
            if not stream.eof or stream.unused_data:
                raise zlib.error("the gzip stream is cut off, or is followed by other data")
            return plain
        if name == "snappy":
            return _decompress_snappy(cramjam.snappy, data, limit)
        # The system assigns memory pages to the buffer only when they are written.
        buffer = np.empty(limit, np.uint8)
        return buffer[: getattr(cramjam, name).decompress_into(data, buffer)].tobytes()
    except errors as error:
        raise ProtocolError(f"invalid {name} data ({len(data)} bytes, limit {limit}): {error}") from error


def _import_cramjam(name: str) -> Any:
    try:
        return importlib.import_module("cramjam")
    except ImportError:
        raise UnsupportedError(
            f"{name} compression needs the package cramjam, which isn't installed: pip install cramjam"
        ) from None


def _decompress_snappy(snappy: Any, data: Buffer, limit: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _check_limit(snappy.decompress_raw_len(data), limit)
        return bytes(snappy.decompress_raw(data))
    blocks, at, room = [], len(_XERIAL_HEADER), limit
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < length <= len(data) - at:
            raise struct.error(f"a snappy block has {length} bytes, but only {len(data) - at} bytes of data remain")
        block = data[at : at + length]
        _check_limit(snappy.decompress_raw_len(block), room)
        blocks.append(bytes(snappy.decompress_raw(block)))
        at += length
        room -= len(blocks[-1])
    return b"".join(blocks)


def _check_limit(size: int, limit: int) -> None:
    if size > limit:
        raise zlib.error(f"the decompressed records exceed {limit} bytes")
