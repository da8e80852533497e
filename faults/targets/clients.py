"""Client targets of faults, which are all workers of an arm, or some of them.

An arm (client variant) has a worker (client process) for each operation of each workload in which the arm takes part,
or several (``producers`` and ``members`` in a plan). A client selector is one of

* ``ARM`` or ``WORKLOAD/ARM``; an operation (``produce``, ``consume``, ``commit`` or ``pipe``) restricts the selector to
the
  workers of this operation,
* ``ARM member 3`` or ``ARM producer 3``, the third consumer (or process of a service) or producer,
* ``any member of ARM``, a consumer that the compiler draws,
* ``member of ARM that owns TOPIC/PARTITION``, the consumer to which the group's coordinator has assigned the partition.

Arm names are checked when the plan is read; workers are looked up when the fault is injected.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, WithJsonSchema

from aftershock.errors import FaultError
from aftershock.faults.sections.services import Pipe
from aftershock.faults.sections.workloads import Consume, Produce
from aftershock.faults.targets.values import ClientProcess, TopicPartition
from aftershock.faults.targets.world import World
from aftershock.names import worker_names

Op = Literal["produce", "consume", "commit", "pipe"]
OPS: tuple[Op, ...] = ("produce", "consume", "commit", "pipe")
_ARM = r"(?:(?P<workload>[a-z0-9][a-z0-9_.-]{0,39})/)?(?P<arm>[a-z0-9][a-z0-9_.-]{0,39})"
_CLIENT = re.compile(rf"{_ARM}(?: (?P<op>{'|'.join(OPS)}))?")
_NUMBERED = re.compile(rf"{_ARM} (?P<what>member|producer) (?P<number>[1-9]\d{{0,2}})")
_ANY = re.compile(rf"any member of {_ARM}")
_OWNER = re.compile(rf"member of {_ARM} that owns (?P<topic>[A-Za-z0-9._-]{{1,249}})/(?P<partition>\d{{1,6}})")


class HasArms(Protocol):
    """Workload with a name, the names of its arms (client variants) and its operations, which client selectors need."""

    @property
    def name(self) -> str: ...

    @property
    def arms(self) -> Iterable[str]: ...

    @property
    def produce(self) -> Produce | None: ...

    @property
    def consume(self) -> Consume | None: ...

    @property
    def commit(self) -> object | None: ...

    @property
    def pipe(self) -> Pipe | None: ...


@dataclass(frozen=True)
class Selector:
    """Selector of an arm's workers (client processes); None stands for all workloads, operations or workers.

    ``number`` selects one worker of several. ``drawn`` is True if the compiler draws one worker. ``owns`` selects the
    member of the arm's group that owns the partition.
    """

    workload: str | None
    arm: str
    op: Op | None
    number: int | None = None
    drawn: bool = False
    owns: TopicPartition | None = None

    @property
    def label(self) -> str:
        return f"{self.workload}/{self.arm}" if self.workload else self.arm

    @property
    def certain(self) -> bool:
        """True if the plan alone determines the workers."""
        return not self.drawn and self.owns is None

    def matches(self, workload: str, arm: str, op: str) -> bool:
        # the members of a pipe are members of a group
        ops = (None, op, "consume") if op == "pipe" else (None, op)
        return arm == self.arm and self.workload in (None, workload) and self.op in ops


def parse(text: str) -> Selector:
    """Parse a client selector, such as ``orders/baseline`` or ``any member of baseline``; raise ValueError else."""
    text = " ".join(text.split())
    if match := _ANY.fullmatch(text):
        return Selector(match["workload"], match["arm"], "consume", drawn=True)
    if match := _OWNER.fullmatch(text):
        return Selector(match["workload"], match["arm"], "consume", owns=(match["topic"], int(match["partition"])))
    if match := _NUMBERED.fullmatch(text):
        op: Op = "consume" if match["what"] == "member" else "produce"
        return Selector(match["workload"], match["arm"], op, number=int(match["number"]))
    if match := _CLIENT.fullmatch(text):
        return Selector(match["workload"], match["arm"], next((op for op in OPS if op == match["op"]), None))
    raise ValueError(text)


def with_op(text: str, op: Op | None) -> str:
    """Restrict a selector to an operation, unless the selector names workers of one operation already."""
    return text if op is None or parse(text).op else f"{text} {op}"


def planned_workers(selector: Selector, workloads: Iterable[HasArms]) -> set[str]:
    """Return the names of the workers of these workloads that the client selector includes, or may include."""
    result: set[str] = set()
    for workload in workloads:
        counts = {
            "produce": workload.produce.producers if workload.produce else 0,
            "consume": workload.consume.members if workload.consume else 0,
            "commit": 1 if workload.commit else 0,
            "pipe": workload.pipe.members if workload.pipe else 0,
        }
        for arm in workload.arms:
            for op, count in counts.items():
                if count and selector.matches(workload.name, arm, op):
                    names, number = worker_names(workload.name, arm, op, count), selector.number
                    result |= {*(names if number is None else names[number - 1 : number])}
    return result


async def select_clients(text: str, world: World, draws: Mapping[str, object] = {}) -> list[ClientProcess]:
    """Return the workers that match a client selector, except those in reserve; raise FaultError if there are none.

    ``draws["client"]`` selects the member of ``any member of ARM``.
    """
    clients, selector = await world.clients(), parse(text)
    if not clients:
        raise FaultError(
            "no run drives this cluster, so there are no clients to target: start one with `aftershock run --keep`, "
            "and inject while it is running"
        )
    matches = [client for client in clients if selector.matches(client.workload, client.arm, client.op)]
    matches = [client for client in matches if not client.reserve or client.state != "exited"]
    if selector.number is not None:
        matches = [client for client in matches if client.number == selector.number]
    elif selector.drawn:
        draw = draws.get("client", 0.0)
        running = [client for client in matches if client.state == "running"]
        matches = running and [running[int((draw if isinstance(draw, float) else 0.0) * len(running))]]
    elif selector.owns is not None:
        topic, partition = selector.owns
        owners = {
            member.client
            for client in matches[:1]
            for member in await world.group_members(client.name)
            if selector.owns in member.partitions
        }
        matches = [client for client in matches if client.name in owners]
        if not matches:
            raise FaultError(f"no member of {selector.label} owns {topic}/{partition} now, so the fault has no target")
    if not matches:
        names = ", ".join(client.name for client in clients)
        raise FaultError(f"no client matches `{text}`; the clients are: {names}")
    return matches


GRAMMAR = (
    "`ARM` or `WORKLOAD/ARM`, one process as `ARM member 3` or `ARM producer 3`, `any member of ARM`, or "
    "`member of ARM that owns TOPIC/PARTITION`"
)


def _validate(value: object) -> str:
    try:
        selector = parse(value) if isinstance(value, str) else None
    except ValueError:
        selector = None
    if selector is None or (selector.op and selector.number is None and selector.certain):
        raise ValueError(f"write a client as {GRAMMAR}; its operation belongs in `op`")
    return " ".join(str(value).split())


ClientText = Annotated[
    str,
    BeforeValidator(_validate),
    WithJsonSchema({"type": "string", "description": f"the target clients: {GRAMMAR}"}),
]
"""The target clients in a plan, kept as text."""
