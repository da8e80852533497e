"""How a proxy is told its rules and asked what they did: JSON lines over a loopback port, one answer a question.

::

    {"do": "add", "rule": {...}}       {"do": "remove", "name": "..."}       {"do": "rules"}
    {"is": null}                       {"is": null}                          {"is": {name: {counter: number}}}

What can't be done is answered with ``{"error": "..."}``.
"""

import asyncio
import json
from typing import Any

from aftershock.faults.wire_proxy.proxy import LOOPBACK, Proxy
from aftershock.faults.wire_proxy.rule import rule_from

LINE_BYTES_MAX = 1 << 20


class Control:
    """Listens for orders to one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._server: asyncio.Server

    async def open(self) -> int:
        """Listen; gives the port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=LINE_BYTES_MAX)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # gone, or a line that is none
            return
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"is": self._obey(json.loads(line))}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": str(error)}

    def _obey(self, order: dict[str, Any]) -> object:
        match order["do"]:
            case "add":
                self._proxy.add_rule(rule_from(order["rule"]))
            case "remove":
                self._proxy.remove_rule(order["name"])
            case "rules":
                return self._proxy.book.counters()
            case other:
                raise ValueError(f"{other!r} is no order")
        return None
