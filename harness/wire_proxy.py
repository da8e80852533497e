"""The wire proxy of a cluster, as whoever drives the cluster sees it: started with it, found again, told its rules.

It is a process of its own that outlives us, as the cluster may (it is kept, or warm in a pool), and ends by itself when
the cluster's Toxiproxy is gone. Its card in the cluster's home says where it is.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.wire_proxy.proxy import LOOPBACK, Way
from aftershock.harness import labels
from aftershock.results.files import write_whole
from aftershock.workloads.wire.connection import Address

CARD = "wire_proxy.json"
LOG = "wire_proxy.log"
_DEADLINE_S = 5.0
_LINE_BYTES_MAX = 1 << 20


class WireProxy:
    """A proxy that was started. ``process``: as `labels.owner` writes it; ``ports``: by the way's name."""

    def __init__(self, process: str, control: int, ports: Mapping[str, int]) -> None:
        self._process = process
        self._control = Address(LOOPBACK, control)
        self.addresses = {name: Address(LOOPBACK, port) for name, port in ports.items()}

    @classmethod
    def start(cls, ways: Iterable[Way], guard: Address, home: Path) -> Self:
        """Start one that leads these ways and lives as long as somebody listens at ``guard``.

        Raises:
            ClusterError: it did not come up; its log says why.
        """
        told = {"ways": list(ways), "guard": guard}
        pid, line = _spawned(json.dumps(told), home / "logs" / LOG)
        try:
            said = json.loads(line)
        except ValueError:
            raise ClusterError(f"the wire proxy did not come up; see {home / 'logs' / LOG}") from None
        card = {"process": labels.owner(pid), "control": said["control"], "ports": said["ports"]}
        write_whole(home / CARD, json.dumps(card, indent=1) + "\n")
        return cls(**card)

    @classmethod
    def found(cls, home: Path) -> Self:
        """The one that was started for the cluster of this home. ClusterError if there is none."""
        try:
            return cls(**json.loads((home / CARD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(f"{home / CARD} can't be read ({error!r}), so its wire proxy is lost") from error

    @property
    def lives(self) -> bool:
        """Whether its process is there."""
        return labels.lives(self._process)

    async def watch(self) -> NoReturn:
        """Never returns. Raises ClusterError when its process has ended: no client can reach the cluster any more."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(int(self._process.partition(":")[0]))
        except ProcessLookupError:
            raise self._gone() from None
        try:
            loop.add_reader(descriptor, ended.set)
            if self.lives:  # the id may have been used again before it was opened
                await ended.wait()
            raise self._gone()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Put a rule in force. FaultError if the proxy refuses it, or is gone."""
        self._ask(do="add", rule=rule)

    def remove_rule(self, name: str) -> None:
        """Take a rule away; no error if it is gone, or the proxy is."""
        if self.lives:
            self._ask(do="remove", name=name)

    def rules(self) -> dict[str, dict[str, int]]:
        """The counters of each rule in force. FaultError if the proxy is gone."""
        counters: dict[str, dict[str, int]] = self._ask(do="rules")
        return counters

    def _ask(self, **order: Any) -> Any:
        try:
            with socket.create_connection(self._control, _DEADLINE_S) as connection:
                connection.sendall(json.dumps(order).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline(_LINE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise FaultError(f"the wire proxy does not answer at {self._control}: {error}") from error
        if "error" in answer:
            raise FaultError(f"the wire proxy refused to {order['do']}: {answer['error']}")
        return answer["is"]

    def _gone(self) -> ClusterError:
        pid = self._process.partition(":")[0]
        return ClusterError(f"the wire proxy (process {pid}) has ended, and no client reaches the cluster without it")


def _spawned(told: str, log: Path) -> tuple[int, bytes]:
    """Start the process in a session of its own; gives its id and the first line that it says."""
    log.parent.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
    ]
    command = [sys.executable, "-P", "-m", "aftershock.faults.wire_proxy", told]
    try:
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as said:
        return pid, said.readline(_LINE_BYTES_MAX)
