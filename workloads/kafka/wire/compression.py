"""The codecs of record batches: gzip by zlib; snappy, lz4 and zstd by cramjam, where that is installed.

Two traps, both from the field. The Java broker reads no LZ4 frame whose blocks are linked, and that is what LZ4
libraries write unless told otherwise. Java's producers wrap snappy in the blocks of snappy-java ("xerial"), librdkafka
doesn't: both are read, the first is written.

A decompressor never gets more memory than the caller allows, whatever the data says of itself.
"""

import importlib.util
import struct
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from aftershock.errors import ProtocolError, UnsupportedError

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's ``compression.type``, each at its number in a batch's attributes."""

Buffer = bytes | memoryview

_GZIP_WBITS = 31
_XERIAL_HEADER = struct.pack(">b6sbii", -126, b"SNAPPY", 0, 1, 1)  # magic, version, lowest compatible version
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024  # snappy-java's own
_LENGTH = struct.Struct(">i")


def available(name: str) -> bool:
    """Whether this installation can compress and decompress ``name``."""
    return name in {"none", "gzip"} or importlib.util.find_spec("cramjam") is not None


def compress(name: str, data: bytes) -> bytes:
    """``data`` as the codec ``name`` has it; UnsupportedError when the codec isn't installed."""
    return _COMPRESS[name](data)


def decompress(name: str, data: Buffer, limit: int) -> Buffer:
    """What ``compress`` was given, at most ``limit`` bytes of it.

    Raises:
        ProtocolError: no valid data of that codec, or more than ``limit`` bytes come out of it.
        UnsupportedError: the codec isn't installed.
    """
    try:
        return _DECOMPRESS[name](data, limit)
    except UnsupportedError:
        raise
    except (zlib.error, struct.error, _decompression_error(name)) as error:
        raise ProtocolError(f"{len(data)} bytes are no {name} data of up to {limit} bytes: {error}") from error


def _cramjam(name: str) -> Any:
    return getattr(_module(name), name)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module("cramjam")
    except ImportError:
        raise UnsupportedError(
            f"{name} compression needs the package cramjam, which isn't installed: pip install aftershock[compression]"
        ) from None


def _decompression_error(name: str) -> type[Exception]:
    error: type[Exception] = zlib.error if name == "gzip" else _module(name).DecompressionError
    return error


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, wbits=_GZIP_WBITS)


def _snappy(data: bytes) -> bytes:
    snappy = _cramjam("snappy")
    blocks = [
        bytes(snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        for at in range(0, len(data), _XERIAL_BLOCK_BYTES)
    ]
    return _XERIAL_HEADER + b"".join(_LENGTH.pack(len(block)) + block for block in blocks)


def _lz4(data: bytes) -> bytes:
    compressor = _cramjam("lz4").Compressor(level=1, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(_cramjam("zstd").compress(data))


def _gunzip(data: Buffer, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    plain = stream.decompress(data, max_length=limit + 1)
    _check(len(plain), limit)
    if not stream.eof or stream.unused_data:
        raise zlib.error("it ends too early or too late")
    return plain


def _unsnappy(data: Buffer, limit: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(data, limit)
    blocks, at, left = [], len(_XERIAL_HEADER), limit
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < length <= len(data) - at:
            raise struct.error(f"a snappy block of {length} bytes where {len(data) - at} are left")
        blocks.append(_unsnappy_block(data[at : at + length], left))
        at += length
        left -= len(blocks[-1])
    return b"".join(blocks)


def _unsnappy_block(data: Buffer, limit: int) -> bytes:
    snappy = _cramjam("snappy")
    _check(snappy.decompress_raw_len(data), limit)
    return bytes(snappy.decompress_raw(data))


def _into_room(name: str) -> Callable[[Buffer, int], bytes]:
    """A decompressor into ``limit`` bytes of address space, of which the system gives the pages that are written."""

    def decompress_into_room(data: Buffer, limit: int) -> bytes:
        room = np.empty(limit, np.uint8)
        size = _cramjam(name).decompress_into(data, room)
        return room[:size].tobytes()

    return decompress_into_room


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise zlib.error(f"more than {limit} bytes come out of it")


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd}
_DECOMPRESS: dict[str, Callable[[Buffer, int], Buffer]] = {
    "gzip": _gunzip,
    "snappy": _unsnappy,
    "lz4": _into_room("lz4"),
    "zstd": _into_room("zstd"),
}
