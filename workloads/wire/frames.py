"""Framing: a signed 32-bit length before each message, and nothing else between them."""

import struct

from aftershock.errors import ProtocolError

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's own default for socket.request.max.bytes. A longer message is a broken or hostile peer's."""

PREFIX = struct.Struct(">i")
_MESSAGE_BYTES_MIN = 4  # a correlation id


def checked_length(prefix: bytes | bytearray | memoryview, position: int, bytes_max: int) -> int:
    """The length that the prefix at ``position`` announces. Raises ProtocolError for one that no message has."""
    length: int = PREFIX.unpack_from(prefix, position)[0]
    if not _MESSAGE_BYTES_MIN <= length <= bytes_max:
        raise ProtocolError(f"a message of {length} bytes was announced, {_MESSAGE_BYTES_MIN} to {bytes_max} may be")
    return length


class Frames:
    """Cuts a stream of bytes into messages, whatever pieces it comes in.

    Messages are views of what came in; only what is left over between two calls is kept, and it grows with the bytes
    that came, never with the length that was announced.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._partial = bytearray()
        self._wanted = PREFIX.size  # fewer bytes than this in _partial hold no whole message

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that ``data`` completes, without their prefixes. Raises ProtocolError: give the stream up."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return []
            return self._cut(memoryview(self._partial).toreadonly())
        return self._cut(memoryview(data))

    def _cut(self, data: memoryview) -> list[memoryview]:
        messages = []
        begin = 0
        self._wanted = PREFIX.size
        while len(data) - begin >= PREFIX.size:
            end = begin + PREFIX.size + checked_length(data, begin, self._bytes_max)
            if end > len(data):
                self._wanted = end - begin
                break
            messages.append(data[begin + PREFIX.size : end])
            begin = end
        # a new one, never the old one shortened: the messages are views of that
        self._partial = bytearray(data[begin:])
        return messages
