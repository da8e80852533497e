"""A cluster in memory that implements the protocols of ``faults/targets/world.py``, and a clock that jumps.

Time moves only when every task waits for it, so a minute of faults takes milliseconds and nothing depends on the host.
The cluster behaves like a small Kafka cluster: dead or paused brokers lose their leaderships and their place in the
ISR, return after ``BOOT_US``, and refuse requests that a real broker would refuse. Tests plant defects by setting
``broken[verb]`` to an error, or by changing the state from outside during a fault.
"""

import asyncio
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aftershock.errors import AdminError, ClusterError, FaultError
from aftershock.faults.runtime.record import Entry, Witness
from aftershock.faults.targets.values import BrokerId, BrokerState, Link, Outcome, PartitionState, TopicPartition, Toxic
from aftershock.tests.unit.faults.fakes.clients import FakeClients
from aftershock.tests.unit.faults.fakes.floods import FakeFloods
from aftershock.tests.unit.faults.fakes.kafka import FakeKafka
from aftershock.tests.unit.faults.fakes.links import FakeLinks
from aftershock.tests.unit.faults.fakes.machine import FakeMachine
from aftershock.tests.unit.faults.fakes.quorum import FakeQuorum
from aftershock.tests.unit.faults.fakes.rules import FakeRules
from aftershock.tests.unit.faults.fakes.transactions import FakeTransactions
from aftershock.tests.unit.faults.fakes.upgrades import FakeUpgrades

BOOT_US = 3_000_000
SETTLED = 200  # iterations of the event loop after which every runnable task waits
RACKS = {BrokerId(1): "a", BrokerId(2): "b", BrokerId(3): "c"}


class JumpingClock:
    """A run's clock that jumps to the next awaited time as soon as every task waits."""

    def __init__(self) -> None:
        self.t_us = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tickets = 0
        self._pump: asyncio.Task[None] | None = None

    def now_us(self) -> int:
        return self.t_us

    async def sleep_until_us(self, t_us: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._tickets += 1
        heapq.heappush(self._waiting, (t_us, self._tickets, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        await future

    async def _run(self) -> None:
        while self._waiting:
            for _ in range(SETTLED):
                await asyncio.sleep(0)
                if not asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]  # every other task waits
                    break
            t_us, _, future = heapq.heappop(self._waiting)
            if not future.done():
                self.t_us = max(self.t_us, t_us)
                future.set_result(None)


@dataclass(frozen=True, kw_only=True)
class Line(Entry):
    t_us: int


@dataclass
class ListJournal:
    """A journal that keeps its lines in memory; writing a state in ``full_at`` raises as on a full disk."""

    clock: JumpingClock
    lines: list[Line] = field(default_factory=list)
    full_at: frozenset[str] = frozenset()

    def record(self, entry: Entry) -> None:
        if entry.state in self.full_at:
            raise OSError(28, "No space left on device")
        self.lines.append(Line(t_us=self.clock.now_us(), **vars(entry)))

    def states(self, fault: str) -> list[str]:
        """Return the states of one fault in order, with repeated witnesses once."""
        states = [line.state for line in self.lines if line.fault == fault]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]

    def witnesses(self, fault: str) -> list[Witness]:
        return [line.witness for line in self.lines if line.fault == fault and line.witness]

    def as_json(self) -> list[dict[str, object]]:
        return [{"t_us": line.t_us, "fault": line.fault, "state": line.state} for line in self.lines]


class FakeWorld(
    FakeClients, FakeLinks, FakeUpgrades, FakeMachine, FakeKafka, FakeQuorum, FakeRules, FakeTransactions, FakeFloods
):
    """Three racks with one broker each, and one topic ``orders`` whose replica lists rotate."""

    def __init__(self, clock: JumpingClock, partitions: int = 6) -> None:
        super().__init__()
        self.clock = clock
        self.broken: dict[str, Exception] = {}
        self.calls: list[tuple[int, str, object]] = []
        self.states: dict[BrokerId, BrokerState] = dict.fromkeys(RACKS, "running")
        self.back_us: dict[BrokerId, int] = dict.fromkeys(RACKS, 0)
        self.contained = False
        self.homes = {BrokerId(1): "m1", BrokerId(2): "m1", BrokerId(3): "m2"}
        self.cordons: dict[str, str] = {}
        self.proxies: dict[str, dict[str, Toxic]] = {link.proxy: {} for link in self.links()}
        self.updated_us: dict[str, list[int]] = {}
        self.active_controller = BrokerId(3)
        self.stuck_moves = False
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.active_groups: set[str] = set()
        self.unnoticed = False  # True until the cluster notices that a broker is gone
        self.silent_links: set[str] = set()
        self.shut: set[str] = set()
        self.hosts = True
        self.pods = False
        self.controlled = False  # True if a controller makes deleted pods again
        self.refusing: set[BrokerId] = set()  # dead nodes whose host stays
        self.vanished: set[BrokerId] = set()  # dead nodes that closed no connection
        self.fragile_hosts = False  # True if no host survives its node, and if a dying node closes its connections
        self._moving: set[TopicPartition] = set()
        ids = tuple(RACKS)
        self._partitions = {
            ("orders", p): PartitionState("orders", p, turned[0], 0, turned, turned)
            for p in range(partitions)
            for turned in [ids[p % 3 :] + ids[: p % 3]]
        }

    async def kill(self, broker: BrokerId) -> None:
        await self._called("kill", broker)
        self._lose(broker, "exited")

    def has_hosts(self) -> bool:
        return self.hosts

    def has_pods(self) -> bool:
        return self.pods

    def pods_return(self) -> bool:
        return self.controlled

    async def delete_pod(self, broker: BrokerId, grace_ms: int | None, *, evict: bool = False) -> int:
        """Move the leaders, as a graceful shutdown does; the pod is forgotten at once."""
        await self._called("delete_pod", (broker, grace_ms, *(("evicted",) if evict else ())))
        self._lose(broker, "exited")
        return 30_000 if grace_ms is None else grace_ms

    async def machines(self) -> Mapping[BrokerId, str]:
        return self.homes

    async def cordon(self, machine: str, fault: str) -> None:
        await self._called("cordon", machine)
        if machine in self.cordons:
            raise ClusterError(f"the Kubernetes node {machine} is cordoned already")
        self.cordons[machine] = fault

    async def uncordon(self, machine: str, fault: str) -> None:
        await self._called("uncordon", machine)
        if self.cordons.get(machine) == fault:
            del self.cordons[machine]

    async def cordoned(self, machine: str, fault: str) -> bool:
        return self.cordons.get(machine) == fault

    async def dial_node(self, broker: BrokerId) -> Outcome:
        return "closed" if broker in self.refusing else "silent" if self.states[broker] == "exited" else "answered"

    async def crash(self, broker: BrokerId) -> None:
        await self._called("crash", broker)
        self._lose(broker, "exited")
        if not self.fragile_hosts:
            self.refusing.add(broker)

    async def vanish(self, broker: BrokerId) -> None:
        await self._called("vanish", broker)
        self._lose(broker, "exited")
        if not self.fragile_hosts:
            self.vanished.add(broker)

    async def stop(self, broker: BrokerId) -> None:
        """Move the leaders, then end the process; both happen before this returns."""
        await self._called("stop", broker)
        self._lose(broker, "exited")

    async def start(self, broker: BrokerId) -> None:
        await self._called("start", broker)
        self.refusing.discard(broker)
        self.vanished.discard(broker)
        self._regain(broker)

    async def pause(self, broker: BrokerId) -> None:
        await self._called("pause", broker)
        self._lose(broker, "paused")

    async def resume(self, broker: BrokerId) -> None:
        await self._called("resume", broker)
        self._regain(broker)

    def contain(self) -> None:
        """Become an attached cluster whose brokers run in containers, without proxies before them."""
        self.contained = True
        self.proxies = {link.proxy: {} for link in self.links()}

    def takes_toxics(self, link: Link) -> bool:  # noqa: ARG002 -- the interface of a world
        return not self.contained

    def links(self) -> Sequence[Link]:
        if self.contained:
            pairs = [(source, target) for source in RACKS for target in RACKS if source != target]
            return [
                *(Link(f"client_a-k{broker}", "client", "a", broker) for broker in RACKS),
                *(Link(f"replication_k{s}-k{t}", "replication", RACKS[s], t, s) for s, t in pairs),
            ]
        into = [(source, broker, home) for source in "abc" for broker, home in RACKS.items()]
        client = [Link(f"client_{source}-k{broker}", "client", source, broker) for source, broker, _ in into]
        inner = [
            Link(f"{channel}_{source}-k{broker}", channel, source, broker)
            for channel in ("replication", "controller")
            for source, broker, home in into
            if source != home
        ]
        return [*client, *inner]

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        await self._called("add_toxic", (proxy, toxic.name))
        if toxic.name in self.proxies[proxy]:
            raise FaultError(f"{proxy} has a toxic {toxic.name} already")
        self.proxies[proxy][toxic.name] = toxic

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        await self._called("update_toxic", (proxy, toxic.attributes["latency"]))
        if toxic.name not in self.proxies[proxy]:
            raise FaultError(f"{proxy} has no toxic {toxic.name}")
        self.proxies[proxy][toxic.name] = toxic
        self.updated_us.setdefault(proxy, []).append(self.clock.now_us())

    async def remove_toxic(self, proxy: str, name: str) -> None:
        await self._called("remove_toxic", (proxy, name))
        toxic = self.proxies[proxy].pop(name, None)
        if toxic is not None and toxic.type == "timeout":
            self.close_through(proxy)

    async def toxics(self) -> Mapping[str, tuple[Toxic, ...]]:
        await self._called("toxics", None)
        return {proxy: tuple(toxics.values()) for proxy, toxics in self.proxies.items()}

    async def disable(self, proxy: str) -> None:
        await self._called("disable", proxy)
        self.shut.add(proxy)
        self.close_through(proxy)

    async def enable(self, proxy: str) -> None:
        await self._called("enable", proxy)
        self.shut.discard(proxy)

    async def disabled(self) -> frozenset[str]:
        await self._called("disabled", None)
        return frozenset(self.shut)

    async def probe_ms(self, link: Link) -> float:
        """Return a round trip of 1 ms plus the delay of toxics, and advance the clock by it.

        As in Toxiproxy, an update of a toxic releases held bytes early.
        """
        if link.channel != "client" and link.source is None:
            raise FaultError(f"there is no way into {link.proxy}")
        if link.proxy in self.shut:
            raise FaultError(f"connection refused by {link.proxy}")
        if self.states[link.broker] == "running" and not self._serves(link.broker):
            raise FaultError(f"connection closed by {link.proxy}: its broker is booting")
        if any(toxic.type == "reset_peer" for toxic in self.proxies[link.proxy].values()):
            raise FaultError(f"connection reset by {link.proxy}")
        silent = self._silent(link)
        wait_ms = (
            2000.0
            if self.states[link.broker] == "paused" or silent
            else self._trip_ms(link) + self.packet_delay_ms(link.proxy)
        )
        began_us = self.clock.now_us()
        await self.clock.sleep_until_us(began_us + int(wait_ms * 1000))
        if self.states[link.broker] != "running" or silent:
            raise FaultError(f"no answer through {link.proxy}")
        early = [at_us for at_us in self.updated_us.get(link.proxy, ()) if began_us < at_us < self.clock.now_us()]
        return (early[0] - began_us) / 1000 if early else wait_ms

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        await self._called("partitions", topics)
        self._catch_up()
        return [state for state in self._partitions.values() if topics is None or state.topic in topics]

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        await self._called("reassign", dict(assignment))
        if self.stuck_moves:
            self._moving |= assignment.keys()
            return
        if not self.hold_back(assignment):
            for where, replicas in assignment.items():
                self._place(where, replicas)

    async def reassigning(self) -> frozenset[TopicPartition]:
        return frozenset(self._moving)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        await self._called("cancel_reassign", partitions)
        self._moving -= set(partitions)
        self.held_moves = {where: to for where, to in self.held_moves.items() if where not in partitions}
        self.stuck_moves = False
        self.unnoticed = False  # True until the cluster notices that a broker is gone

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        await self._called("elect_preferred", partitions)
        self._catch_up()
        for where in partitions:
            state = self._partitions[where]
            if state.replicas[0] in state.isr:
                self._lead(where, state.replicas[0])

    async def controller(self) -> BrokerId:
        await self._called("controller", None)
        return self.active_controller

    async def coordinator(self, group: str) -> BrokerId:
        await self._called("coordinator", group)
        state = self._partitions.get(("__consumer_offsets", 0))
        return state.leader if state and state.leader is not None else BrokerId(2)

    async def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        await self._called("group_offsets", group)
        return dict(self.offsets.get(group, {}))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        await self._called("delete_group_offsets", group)
        if group in self.active_groups:
            raise AdminError("Kafka refuses: GROUP_SUBSCRIBED_TO_TOPIC", "GROUP_SUBSCRIBED_TO_TOPIC")
        for place in partitions:
            self.offsets[group].pop(place)

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """Return the registered brokers; a fenced broker does not receive metadata and answers with its
        outdated view.
        """
        await self._called("registered", excluding)
        told = self.fenced() if excluding else set()
        return frozenset(broker for broker in RACKS if self._serves(broker) or self.unnoticed) - told

    def racks(self) -> Mapping[BrokerId, str]:
        return dict(RACKS)

    async def state(self, broker: BrokerId) -> BrokerState:
        await self._called("state", broker)
        return self.states[broker]

    def called(self, verb: str) -> list[object]:
        """Return the arguments of every call of one verb, in order."""
        return [args for _, name, args in self.calls if name == verb]

    def leaders(self) -> list[int | None]:
        return [state.leader for state in self._partitions.values()]

    def replicas(self) -> list[tuple[BrokerId, ...]]:
        return [state.replicas for state in self._partitions.values()]

    def healthy(self) -> bool:
        """Return whether all nodes run, no link has a toxic, and no replica moves."""
        links = not self.shut and self.straight() and not any(self.proxies.values())
        quiet = links and not self._moving and not self.in_force
        return quiet and all(state == "running" for state in self.states.values())

    async def _called(self, verb: str, args: object) -> None:
        self.calls.append((self.clock.now_us(), verb, args))
        await asyncio.sleep(0)  # a real call also yields to other tasks
        if verb in self.broken:
            raise self.broken[verb]

    def _serves(self, broker: BrokerId) -> bool:
        return self.states[broker] == "running" and self.clock.now_us() >= self.back_us[broker]

    def _lose(self, broker: BrokerId, state: BrokerState) -> None:
        if self.states[broker] != "running":
            raise FaultError(f"container k{broker} is not running")
        self.states[broker] = state
        for where, partition in () if self.unnoticed else self._partitions.items():
            isr = tuple(other for other in partition.isr if other != broker)
            self._partitions[where] = replace(partition, isr=isr)
            if partition.leader == broker:
                self._lead(where, next((other for other in partition.replicas if other in isr), None))

    def _regain(self, broker: BrokerId) -> None:
        if self.states[broker] != "running":
            self.states[broker] = "running"
            self.back_us[broker] = self.clock.now_us() + BOOT_US
            self.booted(broker)

    def _place(self, where: TopicPartition, replicas: tuple[BrokerId, ...]) -> None:
        state = self._partitions[where]
        isr = tuple(broker for broker in replicas if self._serves(broker))
        leader = state.leader if state.leader in isr else next(iter(isr), None)
        epoch = state.leader_epoch + (leader != state.leader)
        self._partitions[where] = replace(state, replicas=replicas, isr=isr, leader=leader, leader_epoch=epoch)

    def _catch_up(self) -> None:
        for where in self._partitions:
            if self._partitions[where].leader is None and not self._led_again(where):
                continue  # without a leader no replica can catch up
            state = self._partitions[where]
            isr = tuple(broker for broker in state.replicas if broker in state.isr or self._serves(broker))
            self._partitions[where] = replace(state, isr=isr)

    def _led_again(self, where: TopicPartition) -> bool:
        """Elect a live replica of the ISR."""
        state = self._partitions[where]
        back = (broker for broker in state.replicas if self._serves(broker) and broker in (state.isr or state.replicas))
        self._lead(where, next(back, None))
        return self._partitions[where].leader is not None

    def _lead(self, where: TopicPartition, leader: BrokerId | None) -> None:
        state = self._partitions[where]
        if state.leader != leader:
            self._partitions[where] = replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)

    def _silent(self, link: Link) -> bool:
        toxics = self.proxies[link.proxy].values()
        swallowed = any(toxic.type == "timeout" or toxic.attributes.get("rate") == 0 for toxic in toxics)
        if self.drops(link):
            return True
        return link.proxy in self.silent_links or (swallowed and self.states[link.broker] != "exited")

    def _trip_ms(self, link: Link) -> float:
        return 1.0 + sum(toxic.attributes.get("latency", 0) for toxic in self.proxies[link.proxy].values())
