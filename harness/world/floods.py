"""Floods by processes of the harness (`flood_process.py`), which are no arms of a workload."""

import asyncio
import json
import sys
from dataclasses import asdict
from subprocess import DEVNULL

from aftershock.faults.targets.values import FloodLoad
from aftershock.harness.cluster.cluster import Cluster

_END_S = 5.0


class FloodsWorld:
    """Start and end of floods, by the protocol `faults.targets.world.FloodControl`."""

    _cluster: Cluster

    def __init__(self) -> None:
        self._floods: dict[str, asyncio.subprocess.Process] = {}

    async def start_flood(self, fault: str, flood: FloodLoad) -> None:
        order = json.dumps({"bootstrap": self._cluster.bootstrap(None), "fault": fault, **asdict(flood)})
        command = (sys.executable, "-P", "-m", "aftershock.harness.world.flood_process", order)
        self._floods[fault] = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=DEVNULL, stderr=DEVNULL
        )

    async def end_flood(self, fault: str) -> None:
        process = self._floods.pop(fault, None)
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
