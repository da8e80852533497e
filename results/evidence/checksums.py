"""Checksum at the end of a journal line: the CRC-32 of the bytes before ``, "crc"``. Version 0.1 wrote none."""

import re
import zlib

PATTERN = re.compile(rb', "crc": "[0-9a-f]{8}"\}')
_LENGTH = len(', "crc": "89abcdef"}')


def framed(body: bytes) -> bytes:
    """Return a line, of which ``body`` is all but the closing brace, with its checksum."""
    return body + b', "crc": "%08x"}' % zlib.crc32(body)


def body_of(text: bytes) -> bytes | None:
    """Return the bytes of a line before its checksum; None for a line without one."""
    start = max(0, len(text) - _LENGTH)
    return text[:start] if PATTERN.fullmatch(text, start) else None
