"""Share of a plan's time in which clients will owe progress, from the compiled timeline alone.

The run is imagined without a cluster: each fault takes effect at its planned time and is healed within the time that
the compiler reserves for it, and leaders move as Kafka moves them. From that the obligations follow as in a judged run
(``results/checks/obligations``). Which broker leads what is drawn up in the simplest way: partition p has its replicas
on the brokers p + 1, p + 2, …, the first of them leads, and the voter with the highest id is the active controller.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.kafka.consumers import CoordinatorMove, MoveCoordinator
from aftershock.faults.kinds.kafka.transactions import FenceProducer, MoveTransactionCoordinator
from aftershock.faults.kinds.link.cut import all_links
from aftershock.faults.kinds.protocol.base import TamperFault
from aftershock.faults.plan.check import CheckedPlan
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import Problem, format_problems
from aftershock.faults.targets import clients, links, roles
from aftershock.faults.targets.values import BrokerId, ClientProcess, Link, PartitionState
from aftershock.faults.targets.world import World
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Marks, Step, Timeline, phases
from aftershock.faults.wire_proxy.rules import rule_from
from aftershock.harness.cluster.topology import PROFILES, topology
from aftershock.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, key_partition
from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.checks.obligations.leaders import Reign
from aftershock.results.checks.obligations.reach import PARTITIONS_DEFAULT, PARTITIONS_SETTINGS
from aftershock.results.checks.obligations.waits import quorum, session, total_us
from aftershock.results.checks.progress import SHARE_ADVISED, share_advice
from aftershock.results.evidence.evidence import Client, Evidence, client_of
from aftershock.results.evidence.phases import Phase
from aftershock.results.model.check import percent

_MS = 1000
_LOOK_US = 1_000_000  # leaders are read once a second
_IMBALANCE_CHECK_DEFAULT_S = "300"  # leader.imbalance.check.interval.seconds
_INJECTION_MS = 100
_HANDOVER_US = 500_000  # a broker that is stopped cleanly hands its leaderships over before it exits
_CLEAN = ("stop", "restart", "rolling_restart", "rolling_upgrade")


def share_warnings(checked: CheckedPlan) -> list[str]:
    """Return a warning for each client that owes progress for less than the advised share of the plan's time."""
    problems = [
        Problem(
            ("timing",),
            f"progress is required of `{lane.client.key}` ({lane.side}) during {percent(lane.share)} of the time after "
            f"warm-up only, so a client that stands still may go unnoticed: {share_advice(lane)}",
        )
        for lane in planned_lanes(checked)
        if lane.share < SHARE_ADVISED
    ]
    return format_problems(problems, checked.source_map)


def planned_lanes(checked: CheckedPlan) -> list[Lane]:
    """Return the lanes of a plan's clients as they will be if everything takes its planned time; none if attached."""
    cluster = checked.plan.cluster
    if cluster.attach is not None:
        return []
    timeline = compile_checked(checked, seed=0)
    imagined = _Imagined(timeline, cluster, checked.draft)
    for step in timeline.steps:
        asyncio.run(imagined.play(step))
    return lanes(imagined.evidence(), {place: tuple(reigns) for place, reigns in imagined.reigns.items()})


@dataclass
class _Imagined:
    """A cluster and its clients as far as targets depend on them; it stands in for a ``World``."""

    timeline: Timeline
    cluster: Cluster
    draft: Draft
    journal: list[dict[str, Any]] = field(default_factory=list)
    reigns: dict[tuple[str, int], list[Reign]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.homes = self.cluster.node_racks
        self.brokers = sorted(self.cluster.broker_racks)
        self.voters = [
            node.id for node in topology(self.cluster.racks, self.cluster.controllers).nodes if node.controller
        ]
        self.settings = {**PROFILES[self.cluster.profile].broker, **self.cluster.config}
        self.active = max(self.voters)
        self.away: set[int] = set()
        self.replicas: dict[tuple[str, int], list[int]] = {}
        self.leader: dict[tuple[str, int], int | None] = {}
        counts = {topic["name"]: (topic["partitions"], topic["replication"]) for topic in self.timeline.topics}
        for topic, setting in PARTITIONS_SETTINGS.items():
            counts[topic] = (int(self.settings.get(setting) or PARTITIONS_DEFAULT), min(3, len(self.brokers)))
        for topic, (count, replication) in counts.items():
            for number in range(count):
                order = [
                    self.brokers[(number + i) % len(self.brokers)] for i in range(min(replication, len(self.brokers)))
                ]
                self.replicas[topic, number] = order
                self.reigns[topic, number] = []
                self._elect((topic, number), order[0], 0)

    # --- the part of a world on which targets depend

    def racks(self) -> Mapping[BrokerId, str]:
        return {BrokerId(node): rack for node, rack in self.homes.items()}

    def links(self) -> Sequence[Link]:
        of_clients = [
            Link(f"client_{rack}-k{broker}", "client", rack, BrokerId(broker))
            for rack in self.cluster.racks
            for broker in self.brokers
        ]
        return [*of_clients, *all_links(self.homes, self.brokers)]

    def takes_toxics(self, link: Link) -> bool:  # noqa: ARG002 -- in a launched cluster, every link has a proxy
        return True

    async def partitions(self, topics: Sequence[str] | None = None) -> list[PartitionState]:
        return [
            PartitionState(topic, number, cast("Any", self.leader[topic, number]), 0, cast("Any", tuple(order)), ())
            for (topic, number), order in self.replicas.items()
            if topics is None or topic in topics
        ]

    async def controller(self) -> BrokerId:
        return BrokerId(self.active)

    async def coordinator(self, group: str) -> BrokerId:
        return BrokerId(self.leader[self._place_of(OFFSETS_TOPIC, group)] or self.brokers[0])

    async def transaction_coordinator(self, transactional_id: str) -> BrokerId:
        return BrokerId(self.leader[self._place_of(TRANSACTIONS_TOPIC, transactional_id)] or self.brokers[0])

    def _place_of(self, topic: str, key: str) -> tuple[str, int]:
        """Return the partition of a coordinators' topic to which a key belongs."""
        return topic, key_partition(key, sum(name == topic for name, _ in self.replicas))

    async def clients(self) -> list[ClientProcess]:
        found = []
        for client in self._clients():
            for op in client.topics:
                names = client.workers(op)
                section = next(w for w in self.timeline.workloads if w["name"] == client.workload)[op]
                members = int(section.get("members", 1)) if op in ("consume", "pipe") else len(names)
                for number, name in enumerate(names, 1):
                    reserve = number > members
                    state = "exited" if reserve else "running"
                    rack = str(section.get("rack"))
                    found.append(
                        ClientProcess(name, client.workload, client.arm, op, rack, cast("Any", state), number, reserve)
                    )
        return found

    def _clients(self) -> Iterator[Client]:
        for workload in self.timeline.workloads:
            yield from (client_of(workload, arm) for arm in workload["arms"])

    # --- what happens

    async def play(self, step: Step) -> None:
        """Let one fault happen: write its lines of the journal, and move the leaders."""
        fault = step.fault()
        start_us = (self.timeline.timing.steady_ms + step.at_ms) * _MS
        lasts_us = (step.for_ms or 0) * _MS
        end_us = start_us + lasts_us + fault.allowance_ms * _MS
        targets = await self._targets(fault, step.draws)
        times = {"intended": start_us, "injected": start_us + _INJECTION_MS * _MS}
        times |= {"healing": start_us + lasts_us} if lasts_us else {}
        undo = {"verb": "reopen_log_dir"} if fault.kind in ("disk_full", "log_dir_offline") else {}
        for state, at_us in {**times, "healed": end_us}.items():
            line = {
                "t_us": at_us,
                "fault": step.id,
                "kind": step.kind,
                "state": state,
                "targets": targets,
                "undo": undo,
            }
            self.journal.append(line)
        lost = set(targets["brokers"]) if step.takes in ("nodes", "one node") else set[int]()
        if step.takes == "links":
            lost = {node for node in self.homes if self._is_isolated(node, targets["links"])}
        if step.takes == "one node":
            each_us = (end_us - start_us) // max(1, len(lost))
            for number, node in enumerate(sorted(lost)):
                self._lose({node}, start_us + number * each_us, start_us + (number + 1) * each_us, clean=True)
        elif lost:
            self._lose(lost, start_us, end_us, clean=step.kind in _CLEAN)
        elif step.takes == "leaders":
            self._rotate(fault, start_us, start_us + lasts_us if lasts_us else None)

    def _is_isolated(self, node: int, cut: Sequence[str]) -> bool:
        """Return True if no data crosses between a node's rack and the voters of other racks."""
        rack = self.homes[node]
        others = [voter for voter in self.voters if self.homes[voter] != rack]
        return bool(others) and all(f"controller_{rack}-k{voter}" in cut for voter in others)

    def _lose(self, nodes: set[int], start_us: int, end_us: int, *, clean: bool) -> None:
        fence_us = _HANDOVER_US if clean else total_us(session(self.settings))
        if self.active in nodes:
            if not clean:
                fence_us += total_us(quorum(self.settings))
            self.active = next((voter for voter in self.voters if voter not in nodes), self.active)
        for place, order in self.replicas.items():
            if self.leader[place] in nodes:
                left = [node for node in order if node not in nodes | self.away]
                self._elect(place, left[0] if left else None, start_us + fence_us)
                if not left:  # the first replica that is back leads again
                    self._elect(place, order[0], end_us)
        check_s = int(self.settings.get("leader.imbalance.check.interval.seconds") or _IMBALANCE_CHECK_DEFAULT_S)
        if self.settings.get("auto.leader.rebalance.enable", "true") == "true":
            for place, order in self.replicas.items():
                if order[0] in nodes and self.leader[place] != order[0] and check_s * 1_000_000 < self._length_us:
                    self._elect(place, order[0], end_us + check_s * 1_000_000)

    def _rotate(self, fault: Fault, start_us: int, undone_us: int | None) -> None:
        topics, moved = {*fault.topics().values()}, set[tuple[str, int]]()
        if isinstance(fault, MoveCoordinator):
            moved = {self._place_of(OFFSETS_TOPIC, fault.group)}
        elif isinstance(fault, MoveTransactionCoordinator):
            moved = {self._place_of(TRANSACTIONS_TOPIC, fault.transactional_id)}
        for place, order in self.replicas.items():
            if place not in moved and place[0] not in topics:
                continue
            former = list(order)
            if fault.kind != "elect":
                order.append(order.pop(0))
            self._elect(place, order[0], start_us)
            if undone_us is not None:
                self.replicas[place] = former
                self._elect(place, former[0], undone_us)

    def _elect(self, place: tuple[str, int], leader: int | None, at_us: int) -> None:
        if self.leader.get(place, -1) != leader:
            self.leader[place] = leader
            by_us = at_us if not self.reigns[place] else max(at_us, self.reigns[place][-1].by_us) + _LOOK_US // 2
            self.reigns[place].append(Reign(leader, by_us - (_LOOK_US if self.reigns[place] else 0), by_us))

    async def _targets(self, fault: Fault, draws: Mapping[str, Any]) -> dict[str, Any]:
        world = cast("World", self)
        found: dict[str, Any] = {
            "brokers": [],
            "links": [],
            "topics": [*fault.topics().values()],
            "clients": [],
            "roles": {},
        }
        if isinstance(fault, CoordinatorMove):
            found["topics"] = [OFFSETS_TOPIC if isinstance(fault, MoveCoordinator) else TRANSACTIONS_TOPIC]
        named = [] if fault.links() else [*fault.roles().values()]
        brokers = {await roles.resolve(text, world, draws, "broker") for text in named} | fault.nodes(self.draft)
        if fault.family in ("process", "disk", "clock", "rack and group") and not fault.links():
            found["brokers"] = sorted(brokers)
            found["roles"]["controller"] = self.active in brokers
        if hasattr(fault, "select"):
            streams, _ = await fault.select(world, draws)
            found["links"] = sorted({stream.link.proxy for stream in streams})
            found["brokers"] = []
        elif fault.links():
            for text in fault.links().values():
                found["links"] += sorted({stream.link.proxy for stream in await links.resolve(text, world, draws)})
        for text in fault.clients().values():
            found["clients"] += self._workers(text)
        if isinstance(fault, FenceProducer):
            found["clients"] = [client.name for client in await self.clients() if client.name == fault.transactional_id]
        if isinstance(fault, TamperFault):
            own = [fault.client_id] if fault.client_id else found["clients"]
            rule = {"name": fault.kind, "api": fault.named_api, "partition": fault.partition, "clients": own}
            rule |= {"topic": fault.topic, "topic_id": "" if fault.topic else None, "nth": fault.nth}
            rule |= {"chances": draws.get("chances", ""), **fault.rule_action(draws)}
            found["clients"] = own
            found["roles"]["rule"] = rule_from(rule).as_json()
        return found

    def _workers(self, text: str) -> list[str]:
        """Return the workers that a client selector names; of one that depends on the run, the first."""
        selector = clients.parse(text)
        found: list[str] = []
        for client in self._clients():
            for op in client.topics:
                if selector.matches(client.workload, client.arm, op):
                    names = client.workers(op)
                    if selector.number is not None:
                        names = names[selector.number - 1 : selector.number]
                    elif not selector.certain:
                        names = names[:1]
                    found += names
        return found

    @property
    def _length_us(self) -> int:
        return (self.timeline.timing.steady_ms + self.timeline.length_ms) * _MS

    def evidence(self) -> Evidence:
        """Return the evidence of the imagined run, without records; its load begins with the steady phase."""
        steady_us = self.timeline.timing.steady_ms * _MS
        end_us = max([self._length_us, *(line["t_us"] for line in self.journal)])
        rows = phases(self.journal, Marks(0, 0, steady_us, end_us), self.timeline)
        document = {"topics": [], "workloads": [], **vars(self.timeline)}
        document |= {"steps": [vars(step) for step in self.timeline.steps]}
        assignment: dict[str, dict[str, list[int]]] = {}
        for (topic, number), order in self.replicas.items():
            assignment.setdefault(topic, {})[str(number)] = sorted(order)
        return Evidence(
            home=Path(),
            run={
                "run_id": "planned",
                "status": "complete",
                "brokers": [{"id": node, "rack": rack} for node, rack in self.homes.items()],
                "voters": self.voters,
                "topics": [{"name": name, "assignment": numbers} for name, numbers in assignment.items()],
                "profile": dict(PROFILES[self.cluster.profile].broker),
            },
            timeline=document,
            clients=tuple(self._clients()),
            producers={},
            phases=tuple(
                Phase(row.name, row.fault, row.start_us, row.end_us, row.block, row.entry)
                for row in rows
                if row.start_us < row.end_us and row.name != "warmup"
            ),
            objectives=(),
            journal=tuple(sorted(self.journal, key=lambda line: line["t_us"])),
            events=(),
            parquet={},
            manifested=True,
        )
