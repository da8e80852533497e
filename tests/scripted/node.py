"""One broker's listener: requests are received, recorded, and answered in order as the scripts say."""

import asyncio
import contextlib
import struct
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from aftershock.tests.scripted import consumer_groups, coordination, data, metadata, transactions
from aftershock.tests.scripted.call import Answer, Call, Node
from aftershock.tests.scripted.journal import Journal
from aftershock.tests.scripted.messages import KEYS, Request, decode, encode, head
from aftershock.tests.scripted.script import Script

Handler = Callable[[Call], Awaitable[Answer]]

HANDLERS: dict[int, Handler] = {
    KEYS["Produce"]: data.produce,
    KEYS["Fetch"]: data.fetch,
    KEYS["ListOffsets"]: metadata.list_offsets,
    KEYS["Metadata"]: metadata.metadata,
    KEYS["OffsetCommit"]: coordination.offset_commit,
    KEYS["OffsetFetch"]: coordination.offset_fetch,
    KEYS["FindCoordinator"]: coordination.find_coordinator,
    KEYS["JoinGroup"]: coordination.join_group,
    KEYS["Heartbeat"]: coordination.heartbeat,
    KEYS["LeaveGroup"]: coordination.leave_group,
    KEYS["SyncGroup"]: coordination.sync_group,
    KEYS["ApiVersions"]: metadata.api_versions,
    KEYS["InitProducerId"]: transactions.init_producer_id,
    KEYS["OffsetForLeaderEpoch"]: metadata.offset_for_leader_epoch,
    KEYS["AddPartitionsToTxn"]: transactions.add_partitions_to_txn,
    KEYS["AddOffsetsToTxn"]: transactions.add_offsets_to_txn,
    KEYS["EndTxn"]: transactions.end_txn,
    KEYS["TxnOffsetCommit"]: transactions.txn_offset_commit,
    KEYS["ConsumerGroupHeartbeat"]: consumer_groups.consumer_group_heartbeat,
}
#: these put a scripted error where it belongs themselves
OWN_ERRORS = {
    KEYS[name]
    for name in (
        "Produce",
        "Fetch",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "OffsetForLeaderEpoch",
        "TxnOffsetCommit",
        "AddPartitionsToTxn",
    )
}
UNSUPPORTED_VERSION = 35
DISCONNECT = (ConnectionError, asyncio.IncompleteReadError)


class Listener:
    """One node's socket. ``make_call`` gives the world that a handler sees."""

    def __init__(self, node: Node, journal: Journal, make_call: Callable[[Node, Request, Script], Call]) -> None:
        self.node = node
        self.port = 0
        self._journal = journal
        self._make_call = make_call
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Listen, again on the same port if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Neither accept nor serve."""
        if self._server:
            self._server.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Reset all that are open."""
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not (self._server and self._server.is_serving()):  # accepted just before the listener was closed
            writer.transport.abort()
            return
        self._connections.add(writer)
        connection = Connection(self.node, writer, self._journal.next_connection(), self._make_call)
        worker = asyncio.create_task(connection.answer_all())
        with contextlib.suppress(*DISCONNECT):
            while not connection.is_over:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                connection.take(await reader.readexactly(length), self._journal)
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError, *DISCONNECT):
            await worker
        self._connections.discard(writer)
        writer.close()


class Connection:
    """Requests of one client, answered one after the other."""

    def __init__(
        self,
        node: Node,
        writer: asyncio.StreamWriter,
        number: int,
        make_call: Callable[[Node, Request, Script], Call],
    ) -> None:
        self.is_over = False
        self._number = number
        self._node = node
        self._writer = writer
        self._make_call = make_call
        self._waiting: asyncio.Queue[bytes | tuple[Request, Script]] = asyncio.Queue()
        self._held: list[bytes] = []

    def take(self, message: bytes, journal: Journal) -> None:
        """Write a request down and put it in line; one whose version isn't offered is put in line as it is."""
        key, version, _ = head(message)
        low, high = self._node.versions.get(key, (0, -1))
        if not low <= version <= high:
            self._waiting.put_nowait(message)
            return
        request = decode(message)
        script = journal.take(self._node.node_id, request, self._number, len(message) + 4)
        self._waiting.put_nowait((request, script))

    async def answer_all(self) -> None:
        try:
            while not self.is_over:
                waiting = await self._waiting.get()
                if isinstance(waiting, bytes):
                    self._refuse(waiting)
                else:
                    await self._answer(*waiting)
        except Exception:
            traceback.print_exc()  # ours, not the client's, which only sees the connection close
            self._end()
            raise

    def _refuse(self, message: bytes) -> None:
        """A version that isn't offered: KIP-511's answer for ApiVersions, no answer for any other."""
        key, _, correlation_id = head(message)
        if key != KEYS["ApiVersions"]:
            self._end()
            return
        ranges = metadata.offered(self._node.versions)
        self._writer.write(encode(key, 0, correlation_id, ranges | {"error_code": UNSUPPORTED_VERSION}))

    async def _answer(self, request: Request, script: Script) -> None:
        answer = await self._carry_out(request, script)
        if script.delay_ms:
            await asyncio.sleep(script.delay_ms / 1000)
        if script.answer in {"close", "refuse"}:
            self._end()
        elif script.answer in {"sent", "swapped"} and not self._is_settled_without_answer(request, answer):
            self._write(encode(request.key, request.version, request.correlation_id, answer), script)

    async def _carry_out(self, request: Request, script: Script) -> Answer:
        if script.answer in {"lost", "refuse"}:
            return {}
        call = self._make_call(self._node, request, script)
        error = script.top_error if request.key in OWN_ERRORS else script.top_error or script.error
        answer = {} if error and not script.applied else await HANDLERS[request.key](call)
        if error:
            answer["error_code"] = error
        return {"throttle_time": script.throttle_ms} | answer

    def _is_settled_without_answer(self, request: Request, answer: Answer) -> bool:
        """Produce with acks=0 has no answer; its errors close the connection."""
        if request.key != KEYS["Produce"] or request.body.acks:
            return False
        partitions: list[Any] = [each for topic in answer["responses"] for each in topic["partition_responses"]]
        if any(each["error_code"] for each in partitions):
            self._end()
        return True

    def _write(self, frame: bytes, script: Script) -> None:
        garbled = bytearray(frame)
        for at, byte in script.garble.items():
            garbled[at] = byte
        if script.answer == "swapped":
            self._held.append(bytes(garbled))
            return
        self._writer.write(bytes(garbled[: script.cut_bytes]) + b"".join(self._held))
        self._held.clear()
        if script.cut_bytes is not None:
            self._end()

    def _end(self) -> None:
        """Close when what was written has gone out."""
        self.is_over = True
        self._writer.close()
