"""A plain asyncio client: it sends the frames it is told to and gives back what comes."""

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
SILENCE_S = 0.3  # for what must not come


class Asker:
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
        """Send a request; its correlation id."""
        request = make(load_request_schema(KEYS[api], version), fields)
        self._number += 1
        self._kinds[self._number] = response_type(type(request))
        self.writer.write(encode_frame(request, self._number, self._client_id))
        return self._number

    async def frame(self) -> bytes:
        """The next message; IncompleteReadError where the connection ends before or within it."""
        async with asyncio.timeout(ANSWER_S):
            size = int.from_bytes(await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def answer(self, number: int) -> Any:
        """The next answer, which must be to that request."""
        return decode_response(self._kinds[number], await self.frame(), number)

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        return await self.answer(self.send(api, version, **fields))

    def send_produce(self, topic: str, records: bytes, *, version: int = 12, acks: int = -1, partition: int = 0) -> int:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        return self.send("Produce", version, acks=acks, topic_data=data)

    async def produce(self, topic: str, records: bytes, **told: Any) -> Any:
        """What the answer says of the partition."""
        response = await self.answer(self.send_produce(topic, records, **told))
        return response.responses[0].partition_responses[0]

    async def is_silent(self) -> bool:
        """Whether nothing comes, not even an end."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    async def rest(self) -> bytes:
        """All that comes until the connection ends."""
        async with asyncio.timeout(ANSWER_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def ask_moved(self, topic: str) -> Any:
        """The whole answer to a Produce to a node that leads no more."""
        return await self.answer(self.send_produce(topic, batch()))
