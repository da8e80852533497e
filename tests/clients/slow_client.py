"""The shipped program around aiokafka, but it sleeps before it reconnects: ``python slow_client.py SECONDS PROGRAM``.

A connection to an address counts as another one if the one before was lost, not if the client closed it by itself. With
0 seconds it is the harmless twin.
"""

import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

from aiokafka import client, conn

seconds, program = float(sys.argv[1]), Path(sys.argv[2])
lost: set[tuple[str, int]] = set()
plain_close, plain_create = conn.AIOKafkaConnection.close, client.create_conn


def close(connection: Any, reason: Any = None, exc: BaseException | None = None) -> Any:
    if reason not in (None, conn.CloseReason.SHUTDOWN, conn.CloseReason.IDLE_DROP):
        lost.add((connection.host, connection.port))
    return plain_close(connection, reason, exc)


async def create(host: str, port: int, **options: Any) -> Any:
    if (host, port) in lost:
        await asyncio.sleep(seconds)
    made = await plain_create(host, port, **options)
    lost.discard((host, port))
    return made


conn.AIOKafkaConnection.close, client.create_conn = close, create
sys.path.insert(0, str(program.parent))
sys.argv = [str(program), *sys.argv[3:]]
runpy.run_path(str(program), run_name="__main__")
