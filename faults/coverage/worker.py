"""The clients of a plan, one for each operation of each arm: what they are in a cell, and which faults they meet.

Whether a fault was met at all is the judge's to say (``exposure/…``). Of a fault that was, this says whom it can have
met: a client that neither uses the link, the topic nor the API has exercised nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from aftershock.faults import links
from aftershock.faults.coverage.role import api_of
from aftershock.faults.crew import OPS, Op
from aftershock.faults.crew import parse as parse_client
from aftershock.faults.fault import Fault
from aftershock.faults.parts import Consume, Workload
from aftershock.faults.plan import Plan

_OF_PRODUCERS = {"Produce", "InitProducerId", "AddPartitionsToTxn", "EndTxn"}
_OF_READERS = {"Fetch", "ListOffsets"}
_OF_GROUPS = {"OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "FindCoordinator"}


@dataclass(frozen=True)
class Worker:
    """One. ``label`` is its coordinate in a cell; ``grouped``: it commits, alone or as the member of a group."""

    workload: str
    arm: str
    op: Op
    topic: str
    rack: str
    grouped: bool
    label: str


def workers_of(plan: Plan) -> tuple[Worker, ...]:
    """All of them, in the order of the plan."""
    return tuple(worker for workload in plan.workloads for worker in _of(workload, plan))


def meets(fault: Fault, worker: Worker) -> bool:
    """Whether a fault can meet it, by the words of both."""
    named = [parse_client(text).takes(worker.workload, worker.arm, worker.op) for text in fault.clients().values()]
    topics = fault.topics().values()
    own = not named or any(named)
    return own and (not topics or worker.topic in topics) and _crosses(fault, worker) and _asks(fault, worker)


def _of(workload: Workload, plan: Plan) -> Iterator[Worker]:
    for arm, said in workload.arms.items():
        for op in OPS:
            if (part := getattr(workload, op)) is not None:
                rack = part.rack or next(iter(plan.cluster.racks))
                topic = part.topic or plan.topics[0].name
                grouped = op == "commit" or (isinstance(part, Consume) and part.group is not None)
                label = f"{said.client} {op}{_promise(workload, op)}"
                yield Worker(workload.name, arm, op, topic, rack, grouped, label)


def _promise(workload: Workload, op: Op) -> str:
    if op == "produce" and workload.produce:
        return f" acks={workload.produce.acks}{' idempotent' if workload.produce.idempotence else ''}"
    return " in a group" if op == "consume" and workload.consume and workload.consume.group else ""


def _crosses(fault: Fault, worker: Worker) -> bool:
    """Clients cross their own rack's links; what is late or lost between brokers is felt by who waits for replicas."""
    selectors = [links.parse(text) for text in fault.links().values()]
    own = [one for one in selectors if isinstance(one, links.ToBroker) and one.channel == "client"]
    if own:
        return any(one.source in ("*", worker.rack) for one in own)
    return not selectors or worker.op == "produce"


def _asks(fault: Fault, worker: Worker) -> bool:
    api = api_of(fault) if fault.meeting() == "requests" else None
    if api in _OF_PRODUCERS:
        return worker.op == "produce"
    if api in _OF_READERS:
        return worker.op == "consume"
    return worker.grouped if api in _OF_GROUPS else True
