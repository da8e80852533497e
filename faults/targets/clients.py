"""Client targets of faults, which are all workers of an arm, or only its workers of one workload or operation.

A client selector is ``ARM`` or ``WORKLOAD/ARM``; an operation (``produce``, ``consume`` or ``commit``) restricts the
selector to the workers of this operation. An arm (client variant) has one worker (client process)
``<workload>-<arm>-<op>`` for each operation of each workload in which the arm takes part. Arm names are checked when
the plan is read; workers are looked up when the fault is injected.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, WithJsonSchema

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import PlanContext
from aftershock.faults.targets.values import ClientProcess

Op = Literal["produce", "consume", "commit"]
OPS: tuple[Op, ...] = ("produce", "consume", "commit")
SESSION_TIMEOUT_DEFAULT_MS = 45_000
_NAME = r"[a-z0-9][a-z0-9_.-]{0,39}"
_CLIENT = re.compile(rf"(?:({_NAME})/)?({_NAME})(?: ({'|'.join(OPS)}))?")


class HasArms(Protocol):
    """Workload with a name and the names of its arms (client variants), which is all that client selectors need."""

    @property
    def name(self) -> str: ...

    @property
    def arms(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class Selector:
    """Selector of an arm's workers (client processes); None stands for all workloads or all operations."""

    workload: str | None
    arm: str
    op: Op | None

    @property
    def label(self) -> str:
        return f"{self.workload}/{self.arm}" if self.workload else self.arm

    def matches(self, workload: str, arm: str, op: str) -> bool:
        return arm == self.arm and self.workload in (None, workload) and self.op in (None, op)


def parse(text: str) -> Selector:
    """Parse a client selector, ``baseline``, ``orders/baseline`` or ``baseline produce``; raise ValueError else."""
    match = _CLIENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    op = next((op for op in OPS if op == match[3]), None)
    return Selector(match[1], match[2], op)


def planned_workers(selector: Selector, workloads: Iterable[HasArms]) -> set[str]:
    """Return the names of the workers of these workloads that the client selector includes."""
    return {
        f"{workload.name}-{arm}-{op}"
        for workload in workloads
        for arm in workload.arms
        for op in OPS
        if getattr(workload, op) is not None and selector.matches(workload.name, arm, op)
    }


def select_clients(selector: Selector, clients: Sequence[ClientProcess]) -> list[ClientProcess]:
    """Return the workers that match a client selector; raise FaultError if no worker matches."""
    if not clients:
        raise FaultError(
            "no run drives this cluster, so there are no clients to target: start one with `aftershock run --keep`, "
            "and inject while it is running"
        )
    matches = [client for client in clients if selector.matches(client.workload, client.arm, client.op)]
    if not matches:
        label = f"{selector.label} {selector.op}" if selector.op else selector.label
        names = ", ".join(client.name for client in clients)
        raise FaultError(f"no client matches {label}; the clients are: {names}")
    return matches


def _validate(value: object) -> str:
    match = _CLIENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[3]:
        raise ValueError("write a client as `ARM` or `WORKLOAD/ARM`, and put its operation in `op`")
    return str(value)


ClientText = Annotated[
    str,
    BeforeValidator(_validate),
    WithJsonSchema({"type": "string", "description": "the target clients: an arm, `ARM` or `WORKLOAD/ARM`"}),
]
"""The target clients in a plan, kept as text."""


def session_timeouts(selector: Selector, plan: PlanContext) -> Iterator[tuple[str, int]]:
    """Yield ``workload/arm`` and the session timeout in ms of each selected consumer that is a member of a group.

    The session timeout is the client's ``session.timeout.ms`` in a classic group, and the broker setting
    ``group.consumer.session.timeout.ms`` in a KIP-848 group; the reference client supports only KIP-848 groups. Both
    settings are 45 s by default (KIP-735).
    """
    for workload in plan.workloads.values():
        in_group = workload.consume is not None and workload.consume.group is not None
        for name, arm in workload.arms.items():
            if not in_group or not selector.matches(workload.name, name, "consume"):
                continue
            setting: object = arm.settings.get("session.timeout.ms")
            if arm.client == "reference" or str(arm.settings.get("group.protocol", "classic")).lower() == "consumer":
                cluster_config = plan.cluster.config if plan.cluster else {}
                setting = cluster_config.get("group.consumer.session.timeout.ms")
            timeout_ms = int(str(setting)) if str(setting).isdecimal() else SESSION_TIMEOUT_DEFAULT_MS
            yield f"{workload.name}/{name}", timeout_ms
