"""A plain asyncio client that sends given frames and returns the responses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from kio.index import load_request_schema

from aftershock.tests.scripted.messages import KEYS, make
from aftershock.tests.unit.scripted.client import batch
from aftershock.workloads.kafka.wire.codec import decode_response, encode_frame, response_type

if TYPE_CHECKING:
    from aftershock.workloads.kafka.wire.connection import Address


ANSWER_S = 10.0
SILENCE_S = 0.3  # wait for a response that must not arrive


class FrameClient:
    """One connection under one client id."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None) -> None:
        self._reader = reader
        self.writer = writer
        self._client_id = client_id
        self._number = 0
        self._kinds: dict[int, Any] = {}

    @classmethod
    async def open(cls, address: Address, client_id: str | None) -> Self:
        return cls(*await asyncio.open_connection(*address), client_id)

    async def close(self) -> None:
        self.writer.close()

    def send(self, api: str, version: int, **fields: Any) -> int:
        """Send a request and return its correlation id."""
        request = make(load_request_schema(KEYS[api], version), fields)
        self._number += 1
        self._kinds[self._number] = response_type(type(request))
        self.writer.write(encode_frame(request, self._number, self._client_id))
        return self._number

    async def frame(self) -> bytes:
        """Return the next message; raise IncompleteReadError if the connection ends before or within it."""
        async with asyncio.timeout(ANSWER_S):
            size = int.from_bytes(await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def answer(self, number: int) -> Any:
        """Return the next response, which must have this correlation id."""
        return decode_response(self._kinds[number], await self.frame(), number)

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        return await self.answer(self.send(api, version, **fields))

    def send_produce(self, topic: str, records: bytes, *, version: int = 12, acks: int = -1, partition: int = 0) -> int:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        return self.send("Produce", version, acks=acks, topic_data=data)

    async def produce(self, topic: str, records: bytes, **fields: Any) -> Any:
        """Return the partition's part of the response."""
        response = await self.answer(self.send_produce(topic, records, **fields))
        return response.responses[0].partition_responses[0]

    async def is_silent(self) -> bool:
        """Return whether neither data nor the end of the connection arrives."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    async def rest(self) -> bytes:
        """Return all bytes until the connection ends."""
        async with asyncio.timeout(ANSWER_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def ask_moved(self, topic: str) -> Any:
        """Return the whole response of a Produce request to a node that is no longer the leader."""
        return await self.answer(self.send_produce(topic, batch()))
