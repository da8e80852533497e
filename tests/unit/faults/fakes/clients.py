"""Clients in memory: two workers of one arm with heartbeats, and a group that expels silent members."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from aftershock.errors import FaultError
from aftershock.faults.targets.values import ClientProcess, GroupMember, Heartbeat

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


SIGN_US = 500_000
READY_US = 1_500_000
SESSION_US = 6_000_000
PRODUCER, CONSUMER = "orders-baseline-produce", "orders-baseline-consume"


def _worker(name: str, op: Literal["produce", "consume"]) -> ClientProcess:
    return ClientProcess(name, "orders", "baseline", op, "a", "running")


class FakeClients:
    """Fake of `faults.runtime.world.ClientControl`.

    A worker sends no heartbeat while it is down, and for READY_US after its start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crew = {
            PRODUCER: _worker(PRODUCER, "produce"),
            CONSUMER: _worker(CONSUMER, "consume"),
        }
        self.late_us: dict[str, int] = {}
        self.open: dict[str, frozenset[str]] = {name: frozenset({f"{name} 1", f"{name} 2"}) for name in self.crew}
        self.grouped = {CONSUMER}
        self.members: list[GroupMember] = []
        self.stopped: set[str] = set()
        self._silent_since_us: dict[str, int] = {}
        self._ready_us: dict[str, int] = {}

    async def clients(self: "FakeWorld") -> Sequence[ClientProcess]:
        await self._called("clients", None)
        return list(self.crew.values())

    async def kill_client(self: "FakeWorld", worker: str) -> None:
        await self._called("kill_client", worker)
        self._down(worker, "exited")

    async def start_client(self: "FakeWorld", worker: str) -> None:
        await self._called("start_client", worker)
        if self.crew[worker].state == "exited":
            self._up(worker, self.clock.now_us() + READY_US)

    async def leave_client(self: "FakeWorld", worker: str) -> None:
        await self._called("leave_client", worker)
        self._down(worker, "exited")
        self._silent_since_us[worker] = -2 * SESSION_US  # the group expels it at once

    async def stop_polling(self: "FakeWorld", worker: str) -> None:
        await self._called("stop_polling", worker)
        self.stopped.add(worker)

    async def resume_polling(self: "FakeWorld", worker: str) -> None:
        await self._called("resume_polling", worker)
        self.stopped.discard(worker)
        self._ready_us[worker] = self.clock.now_us() + READY_US

    async def pause_client(self: "FakeWorld", worker: str) -> None:
        await self._called("pause_client", worker)
        self._down(worker, "paused")

    async def resume_client(self: "FakeWorld", worker: str) -> None:
        await self._called("resume_client", worker)
        if self.crew[worker].state == "paused":
            self._up(worker, self.clock.now_us())

    async def last_heartbeat(self: "FakeWorld", worker: str) -> Heartbeat | None:
        await self._called("last_heartbeat", worker)
        last_us = min(self.clock.now_us(), self._silent_since_us.get(worker, self.clock.now_us()))
        if last_us < self._ready_us.get(worker, 0):
            return None
        polls = worker not in self.stopped
        return Heartbeat(last_us // SIGN_US * SIGN_US, last_us // SIGN_US, self.late_us.get(worker, 0), polls)

    async def in_group(self: "FakeWorld", worker: str) -> bool | None:
        await self._called("in_group", worker)
        if worker not in self.grouped:
            return None
        silent_us = self.clock.now_us() - self._silent_since_us.get(worker, self.clock.now_us())
        return (
            worker not in self.stopped
            and silent_us <= SESSION_US
            and self.clock.now_us() >= self._ready_us.get(worker, 0)
        )

    async def member_ids(self: "FakeWorld", worker: str) -> frozenset[str] | None:
        await self._called("member_ids", worker)
        listed = await self.in_group(worker)
        return None if listed is None else frozenset({f"{worker} id"} if listed else ())

    async def evict_client(self: "FakeWorld", worker: str) -> frozenset[str]:
        """Remove the member, which joins again under another id."""
        await self._called("evict_client", worker)
        ids = frozenset(member.id for member in self.members if member.client == worker)
        self.members = [replace(member, id=f"{member.id}+") if member.id in ids else member for member in self.members]
        return ids

    async def group_members(self: "FakeWorld", worker: str) -> Sequence[GroupMember]:
        await self._called("group_members", worker)
        return self.members

    async def connections(self: "FakeWorld", worker: str) -> frozenset[str]:
        await self._called("connections", worker)
        return self.open[worker]

    async def disconnect_client(self: "FakeWorld", worker: str) -> None:
        """Close the connections; the client reconnects at once from another port."""
        await self._called("disconnect_client", worker)
        self.open[worker] = frozenset({f"{worker} 3"})

    def _down(self: "FakeWorld", worker: str, state: Literal["paused", "exited"]) -> None:
        if self.crew[worker].state != "running":
            raise FaultError(f"the client {worker} does not run")
        self.crew[worker] = replace(self.crew[worker], state=state)
        self._silent_since_us[worker] = self.clock.now_us()

    def _up(self: "FakeWorld", worker: str, ready_us: int) -> None:
        self.crew[worker] = replace(self.crew[worker], state="running")
        self._silent_since_us.pop(worker, None)
        self._ready_us[worker] = ready_us
