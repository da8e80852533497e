"""Variable-length integers as records have them: zigzag first, then seven bits a byte, the lowest first."""

from functools import lru_cache

from aftershock.errors import ProtocolError

_BYTES_MAX = 10  # a 64-bit number; an eleventh byte is no varint
_BITS_MAX = 64
_MORE = 0x80  # the bit of a byte that says another follows


@lru_cache(maxsize=1 << 16)
def encode(number: int) -> bytes:
    """The varint of a signed number of up to 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest >= _MORE:
        encoded.append(rest % _MORE | _MORE)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def read(buffer: memoryview, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends.

    Raises:
        ProtocolError: more than ten bytes, or more than 64 bits.
        IndexError: the buffer ends within it.
    """
    byte = buffer[at]
    if byte < _MORE:  # nearly all of them
        return (byte >> 1) ^ -(byte & 1), at + 1
    rest, shift = byte % _MORE, 7
    for place in range(at + 1, at + _BYTES_MAX):
        byte = buffer[place]
        rest |= (byte % _MORE) << shift
        if byte < _MORE:
            if rest >> _BITS_MAX:
                break
            return (rest >> 1) ^ -(rest & 1), place + 1
        shift += 7
    raise ProtocolError(f"a varint at byte {at} of the records is longer than {_BITS_MAX} bits: the batch is corrupt")
