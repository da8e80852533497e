"""Faults on client processes, namely ``kill_client``, ``pause_client``, ``zombie`` and ``disconnect_client``.

``kill_client`` sends SIGKILL to the clients and their child processes. A restarted producer continues at the current
point of its schedule; records due while it was dead count as failed. The group keeps a killed consumer as a member
until its session times out, 45 s by default; only then the restarted consumer gets partitions and the heal ends.

``pause_client`` pauses the clients and their child processes with open sockets, like a long GC pause of a JVM. The
schedule of a paused producer continues, so after the resume the producer sends all overdue records at once.

``zombie`` pauses consumers for longer than their session timeouts, so that their group has expelled them when they
resume. A resumed consumer may process records of partitions that now belong to another member, and the group
coordinator must refuse the consumer's commits (KIP-62, KIP-848).

``disconnect_client`` duplicates each socket of the client's process (pidfd_getfd(2), Linux 5.6) and shuts it down in
both directions, so client and broker both see a connection that the other end has closed. The kernel lets only root
duplicate sockets of another user's process, such as a Java client's container.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.client.base import ClientFault, DownInjection, grouped_pipe, no_member, require_told
from aftershock.faults.kinds.fault import Band, Draws, Injection, InjectionContext, PlanContext, Report
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import format_duration
from aftershock.faults.targets.clients import Op, Selector

LONG_WAIT_MS = 15_000
SESSION_TIMEOUT_DEFAULT_MS = 45_000


def session_timeouts(selector: Selector, plan: PlanContext) -> Iterator[tuple[str, int]]:
    """Yield ``workload/arm`` and the session timeout in ms of each selected client that is a member of a group.

    Of a service, whose settings are its own, nobody knows it.

    The session timeout is the client's ``session.timeout.ms`` in a classic group, and the broker setting
    ``group.consumer.session.timeout.ms`` in a KIP-848 group, 45 s by default (KIP-735). Without ``protocol`` in the
    plan, reference clients form KIP-848 groups, and other clients the groups that ``group.protocol`` names.
    """
    for workload in plan.workloads.values():
        consume = workload.consume
        for name, arm in workload.arms.items():
            if workload.pipe and arm.client != "service" and selector.matches(workload.name, name, "pipe"):
                timeout = str(arm.settings.get("session.timeout.ms"))
                if workload.pipe.group:
                    yield f"{workload.name}/{name}", int(timeout) if timeout.isdecimal() else SESSION_TIMEOUT_DEFAULT_MS
            if consume is None or consume.group is None or not selector.matches(workload.name, name, "consume"):
                continue
            setting: object = arm.settings.get("session.timeout.ms")
            default = "consumer" if arm.client == "reference" else "classic"
            if str(consume.protocol or arm.settings.get("group.protocol", default)).lower() == "consumer":
                cluster_config = plan.cluster.config if plan.cluster else {}
                setting = cluster_config.get("group.consumer.session.timeout.ms")
            timeout_ms = int(str(setting)) if str(setting).isdecimal() else SESSION_TIMEOUT_DEFAULT_MS
            yield f"{workload.name}/{name}", timeout_ms


class KillClientInjection(DownInjection):
    down = "exited"
    verb = "start_clients"

    async def put_down(self, client: str) -> None:
        await self.context.world.kill_client(client)


class KillClient(ClientFault):
    """Kill an arm's clients with SIGKILL, and start the clients at the end."""

    band = Band("#8c564b", "kill client")
    unavailable = "members"
    proof = "The kernel lists no process of the clients (read each second). The clients write no heartbeat."
    remedy = "The clients are started and on schedule. Consumers have their partitions again."
    allowance_ms = 8_000  # Python, librdkafka or a JVM start in 1-4 s on a small machine

    drawn = ("{client: CLIENT, op: OP}",)
    kind: Literal["kill_client"] = "kill_client"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        return KillClientInjection(context, await self.target_clients(context, draws))

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        for arm, session_ms in session_timeouts(self.selector, plan):
            if self.for_ is not None and session_ms - self.for_ > LONG_WAIT_MS:
                message = (
                    f"the heal waits until the group expels the killed consumers of `{arm}`, "
                    f"{format_duration(session_ms)} after the kill: lower the arm's `session.timeout.ms`, "
                    "or kill only producers (`op: produce`)"
                )
                yield Problem(("for",), message)


class PauseClientInjection(DownInjection):
    down = "paused"
    verb = "resume_clients"

    async def put_down(self, client: str) -> None:
        await self.context.world.pause_client(client)


class PauseClient(ClientFault):
    """Pause the processes of an arm's clients; the clients' connections stay open."""

    band = Band("#c49c94", "pause client")
    unavailable = "members"
    proof = "The kernel reports the clients' processes as stopped (read each second). The clients write no heartbeat."
    remedy = "The clients are resumed, write heartbeats, and have sent their backlog."
    allowance_ms = 3_000  # the backlog is sent at once

    drawn = ("{client: CLIENT, op: OP}",)
    kind: Literal["pause_client"] = "pause_client"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        return PauseClientInjection(context, await self.target_clients(context, draws))


class ZombieInjection(PauseClientInjection):
    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the consumers are paused, and that their group has expelled them at the end of the pause."""
        await super().hold(until_us, report)

        async def membership() -> list[bool | None]:
            return [await self.context.world.in_group(client) for client in self.targets.clients]

        members = await retry_refused(membership, self.context.clock, READ_DEADLINE_MS)
        expelled, count = sum(member is False for member in members), len(members)
        what = "consumers that their group's coordinator has expelled from the group"
        report(Witness(what, count, expelled, "clients", count, ok=expelled == count))


class Zombie(ClientFault):
    """Pause an arm's consumers until their group has expelled them, and resume the consumers."""

    band = Band("#7f7f7f", "zombie")
    unavailable = "members"
    proof = "The kernel reports the consumers as stopped (read each second). The group coordinator has expelled them."
    remedy = "The consumers are resumed and are members of their group again."
    allowance_ms = 8_000  # it learns that it was expelled with its next heartbeat, and joins again
    needs_members = True

    drawn = ("{client: CLIENT, for: 10s}",)
    kind: Literal["zombie"] = "zombie"
    op: Op | None = "consume"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        await require_told(targets.clients, context)
        for client in targets.clients:
            if not await context.world.in_group(client):
                raise FaultError(f"the client {client} is a member of no group; start the fault after it has joined")
        return ZombieInjection(context, targets)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if self.op not in ("consume", "pipe"):
            yield Problem(("op",), "only consumers and services have group sessions and can be zombies: omit `op`")
            return
        sessions = list(session_timeouts(self.selector, plan))
        services = any(
            grouped_pipe(self, load) and self.selector.matches(load.name, arm, "pipe")
            for load in plan.workloads.values()
            for arm in load.arms
        )
        if not sessions and not services and not plan.unreadable_workloads:
            yield no_member(self, plan)
        for arm, session_ms in sessions:
            if self.for_ is not None and self.for_ < session_ms:
                message = (
                    f"the group of `{arm}` expels a paused consumer only after {format_duration(session_ms)}: lengthen "
                    f"`for` to {format_duration(session_ms + 3000)}, or lower the arm's `session.timeout.ms`"
                )
                yield Problem(("for",), message)


@dataclass(eq=False)
class DisconnectInjection(Injection):
    """Close of the clients' TCP connections; ``before`` lists the connections of each client before the fault."""

    before: Mapping[str, frozenset[str]]

    async def inject(self) -> None:
        for client in self.targets.clients:
            await run_to_completion(self.context.world.disconnect_client(client))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of TCP connections from before the fault that are no longer established."""
        open_ = [await self.context.world.connections(client) & before for client, before in self.before.items()]
        count, still_open = sum(map(len, self.before.values())), sum(map(len, open_))
        what = f"connections of {', '.join(self.before)} that are no longer established, as the kernel reports"
        report(Witness(what, count, count - still_open, "connections", count, ok=still_open == 0))


class DisconnectClient(ClientFault):
    """Close all TCP connections of an arm's clients once."""

    drops_traffic = False
    exclusive_resources = ()
    band = Band("#e377c2", "disconnect client")
    unavailable = "connections"
    proof = "The kernel lists none of the clients' earlier connections as established."
    remedy = "Nothing needs to be restored: clients reconnect by themselves."
    for_rule = "refused"
    allowance_ms = 1_000

    closes_connections = True

    drawn = ("{client: CLIENT, op: OP}",)
    kind: Literal["disconnect_client"] = "disconnect_client"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        before = {client: await context.world.connections(client) for client in targets.clients}
        for client, connections in before.items():
            if not connections:
                raise FaultError(f"the client {client} has no TCP connection to close; look at the client's log")
        return DisconnectInjection(context, targets, before)
