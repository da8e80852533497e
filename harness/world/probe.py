"""A connection of our own over a link, over which harmless questions show what the link does to traffic.

The question is ApiVersions, which every listener answers. One with ballast is Metadata of topics that don't exist and
that nobody may create by asking: their names go there and come back, and the broker does next to nothing for it. A
controllers' listener knows no Metadata and hangs up.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, Self, cast

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.static.protocol import RequestPayload

from aftershock.errors import ClientError, FaultError
from aftershock.faults.values import Exchange
from aftershock.workloads.wire.codec import decode_response, encode_frame, response_type
from aftershock.workloads.wire.connection import Address
from aftershock.workloads.wire.frames import PREFIX
from aftershock.workloads.wire.login import login
from aftershock.workloads.wire.security import PLAINTEXT, Security

_DIAL_TIMEOUT_S = 2.0
_NAME_BYTES_MAX = 249  # Topic.java: what a topic's name may have
_READ_BYTES = 1 << 16


class LinkProbe:
    """See `faults.world.Probe`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received_bytes = 0
        self._asked = 0

    @classmethod
    async def dial(cls, address: Address, security: Security = PLAINTEXT) -> Self:
        """OSError if it is refused, or not open in time."""
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            probe = cls(*await asyncio.open_connection(*address, ssl=security.tls))
            await probe._log_in(security)
        return probe

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        """See `faults.world.Probe`."""
        self._asked += 1
        question = encode_frame(_question(ballast_bytes), self._asked, "aftershock")
        before_bytes, began_s = self._received_bytes, time.perf_counter()
        end: Any = "answered"
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._exchanged(question)
        except TimeoutError:
            end = "silent"
        except EOFError:
            end = "closed"
        except OSError as error:
            end = "reset" if error.errno else "closed"  # asyncio raises one of its own, without errno, for the latter
        ms = (time.perf_counter() - began_s) * 1000
        return Exchange(end, ms, len(question), self._received_bytes - before_bytes)

    async def close_ms(self, limit_ms: int) -> float:
        """See `faults.world.Probe`."""
        if not self._writer.can_write_eof():
            raise FaultError("a TLS connection has no half that could be closed by itself")
        began_s = time.perf_counter()
        with suppress(OSError):  # a reset is an end, too, and a timeout the longest there is
            async with asyncio.timeout(limit_ms / 1000):
                self._writer.write_eof()
                while await self._reader.read(_READ_BYTES):
                    pass
        return min(float(limit_ms), (time.perf_counter() - began_s) * 1000)

    async def hang_up(self) -> None:
        """See `faults.world.Probe`."""
        self._writer.transport.abort()

    async def _log_in(self, security: Security) -> None:
        steps, answer = login(security), None
        try:
            while True:
                request = steps.send(answer)
                self._asked += 1
                message = await self._exchanged(encode_frame(request, self._asked, "aftershock"))
                answer = decode_response(response_type(type(request)), message, self._asked)
        except StopIteration:
            return
        except (EOFError, ClientError) as error:
            await self.hang_up()
            raise ConnectionError(str(error) or "the broker hung up") from error

    async def _exchanged(self, question: bytes) -> bytes:
        self._writer.write(question)
        await self._writer.drain()
        (length,) = PREFIX.unpack(await self._read(PREFIX.size))
        return await self._read(length)

    async def _read(self, count: int) -> bytes:
        buffer = bytearray()
        while len(buffer) < count:
            chunk = await self._reader.read(min(count - len(buffer), _READ_BYTES))
            if not chunk:
                raise EOFError
            self._received_bytes += len(chunk)
            buffer += chunk
        return bytes(buffer)


def _question(ballast_bytes: int) -> RequestPayload:
    if not ballast_bytes:
        return ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
    names = [f"{number:06d}".ljust(_NAME_BYTES_MAX, "x") for number in range(-(-ballast_bytes // _NAME_BYTES_MAX))]
    names[-1] = names[-1][: max(6, ballast_bytes - _NAME_BYTES_MAX * (len(names) - 1))]
    topics = tuple(MetadataRequestTopic(topic_id=None, name=cast("Any", name)) for name in names)
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
