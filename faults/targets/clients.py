"""Which clients are to be hit: all that an arm has, or one of them.

::

    CLIENT = ARM | WORKLOAD/ARM           with `op`: only what produces, consumes or commits there

An arm has one worker, a process of its own, for each operation of each workload that it is in. Its name is
``<workload>-<arm>-<op>``. Arms are judged when the plan is read; their workers are found when the fault is injected.

How long a consumer may be silent before its group goes on without it, as far as a plan says it.

In a classic group that is the client's own ``session.timeout.ms`` (45 s in Kafka since KIP-735, and in librdkafka); in
one of KIP-848 the broker's ``group.consumer.session.timeout.ms``, which is 45 s as well. The reference client knows
only those. What the program of an ``exec`` client does with its settings is its own; it is taken at its word.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Rest
from aftershock.faults.targets.values import ClientProcess

if TYPE_CHECKING:
    from aftershock.faults.plan.workloads import Arm


Op = Literal["produce", "consume", "commit"]
OPS: tuple[Op, ...] = ("produce", "consume", "commit")
_NAME = r"[a-z0-9][a-z0-9_.-]{0,39}"
_CLIENT = re.compile(rf"(?:({_NAME})/)?({_NAME})(?: ({'|'.join(OPS)}))?")


class HasArms(Protocol):
    """A workload, as far as it matters here; what it produces, consumes and commits are attributes of these names."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def arms(self) -> Iterable[str]:
        """Their names."""


@dataclass(frozen=True)
class Selector:
    """An arm's workers; None: whatever the workload or the operation."""

    workload: str | None
    arm: str
    op: Op | None

    @property
    def named(self) -> str:
        """``orders/baseline`` or ``baseline``, as a plan writes it."""
        return f"{self.workload}/{self.arm}" if self.workload else self.arm

    def takes(self, workload: str, arm: str, op: str) -> bool:
        """Whether it means this one."""
        return arm == self.arm and self.workload in (None, workload) and self.op in (None, op)


def parse(text: str) -> Selector:
    """``baseline``, ``orders/baseline`` or ``baseline produce``. ValueError if it is none of these."""
    match = _CLIENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    op = next((op for op in OPS if op == match[3]), None)
    return Selector(match[1], match[2], op)


def planned(selector: Selector, workloads: Iterable[HasArms]) -> set[str]:
    """The names of the workers that a plan with these workloads would give it."""
    return {
        f"{workload.name}-{arm}-{op}"
        for workload in workloads
        for arm in workload.arms
        for op in OPS
        if getattr(workload, op) is not None and selector.takes(workload.name, arm, op)
    }


def chosen(selector: Selector, crew: Sequence[ClientProcess]) -> list[ClientProcess]:
    """Those of the workers there are. FaultError, which says who is there, if it is none of them."""
    if not crew:
        raise FaultError(
            "no run drives this cluster, so there is no client to hit: start one with `aftershock run --keep`, and "
            "inject while it is under way"
        )
    hit = [client for client in crew if selector.takes(client.workload, client.arm, client.op)]
    if not hit:
        there = ", ".join(client.name for client in crew)
        raise FaultError(f"no client is {selector.named}{f' {selector.op}' if selector.op else ''}; there are: {there}")
    return hit


def _text(value: object) -> str:
    match = _CLIENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[3]:
        raise PydanticCustomError("refused", "a client is an arm, `ARM` or `WORKLOAD/ARM`; an operation goes to `op`")
    return str(value)


ClientText = Annotated[
    str,
    BeforeValidator(_text),
    WithJsonSchema({"type": "string", "description": "the clients to hit: an arm, `ARM` or `WORKLOAD/ARM`"}),
]
"""The clients in a plan, kept as written."""


DEFAULT_MS = 45_000


def sessions_of(selector: Selector, rest: Rest) -> Iterator[tuple[str, int]]:
    """The consumers in groups that it means: ``workload/arm``, and the timeout of its session in ms."""
    for workload in rest.workloads.values():
        for name, arm in workload.arms.items():
            grouped = workload.consume is not None and workload.consume.group is not None
            if grouped and selector.takes(workload.name, name, "consume"):
                yield f"{workload.name}/{name}", _session_ms(arm, rest)


def _session_ms(arm: "Arm", rest: Rest) -> int:
    if arm.client == "reference" or str(arm.settings.get("group.protocol", "classic")).lower() == "consumer":
        brokers = rest.cluster.config if rest.cluster else {}
        return _ms(brokers.get("group.consumer.session.timeout.ms"))
    return _ms(arm.settings.get("session.timeout.ms"))


def _ms(said: object) -> int:
    return int(str(said)) if str(said).isdecimal() else DEFAULT_MS
