"""Abort conditions of a plan, such as ``in_sync_replicas == 0 for 5s``, which end a run early while the load is on.

A condition compares a measure with a number by ``==``, ``<``, ``<=``, ``>`` or ``>=``.

* The measure ``in_sync_replicas`` is the size of the smallest ISR of any partition of the plan's topics.
* The measure ``offline_partitions`` is the number of partitions of the plan's topics without a leader.
* The measure ``registered_brokers`` is the number of brokers that are registered and unfenced.

An abort condition is met when all polls of the cluster during its ``for`` satisfy the comparison. A poll that Kafka
doesn't answer restarts the ``for`` of every abort condition.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn

from pydantic import AfterValidator

from aftershock.errors import AftershockError
from aftershock.faults.runtime.record import Clock
from aftershock.faults.sections.units import format_duration, parse_duration_ms
from aftershock.faults.targets.world import Administered

POLL_US = 500_000
MEASURES = ("in_sync_replicas", "offline_partitions", "registered_brokers")
_OPERATORS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_GRAMMAR = re.compile(rf"({'|'.join(MEASURES)}) *(==|<=|>=|<|>) *(\d{{1,6}})(?: +for +(\S+))?")


@dataclass(frozen=True)
class Condition:
    """Abort condition, met when the comparison of ``measure`` with ``number`` holds for ``lasting_ms``."""

    measure: str
    operator: str
    number: int
    lasting_ms: int

    def holds(self, value: int) -> bool:
        return _OPERATORS[self.operator](value, self.number)

    def __str__(self) -> str:
        lasting = f" for {format_duration(self.lasting_ms)}" if self.lasting_ms else ""
        return f"{self.measure} {self.operator} {self.number}{lasting}"


def parse(text: str) -> Condition:
    """Parse an abort condition; raise ValueError with the grammar of abort conditions if the text is invalid."""
    match = _GRAMMAR.fullmatch(" ".join(text.split()))
    if match is None:
        form = f"one of {', '.join(MEASURES)}, then ==, <, <=, > or >=, a number, and `for 5s` if it must last"
        raise ValueError(f"invalid abort condition `{text}`: write {form}")
    return Condition(match[1], match[2], int(match[3]), parse_duration_ms(match[4]) if match[4] else 0)


class AbortConditionMet(Exception):  # noqa: N818 -- not an error: the plan asks for it
    """Raised when an abort condition is met; the text has the condition and the measured value."""


class AbortWatch:
    """Polls the cluster for the plan's abort conditions; ``looks`` counts the polls that Kafka answered."""

    def __init__(
        self, conditions: Sequence[Condition], topics: Sequence[str], world: Administered, clock: Clock
    ) -> None:
        self.looks = 0
        self._conditions = conditions
        self._topics = topics
        self._world = world
        self._clock = clock
        self._since_us: dict[Condition, int] = {}

    async def keep(self) -> NoReturn:
        """Poll the cluster until an abort condition is met, then raise AbortConditionMet."""
        while True:
            try:
                states = await self._world.partitions(self._topics)
                registered = await self._world.registered()
            except AftershockError:
                self._since_us.clear()
            else:
                self.looks += 1
                measured = {
                    "in_sync_replicas": min((len(state.isr) for state in states), default=0),
                    "offline_partitions": sum(state.leader is None for state in states),
                    "registered_brokers": len(registered),
                }
                now_us = self._clock.now_us()
                for condition in self._conditions:
                    value = measured[condition.measure]
                    if not condition.holds(value):
                        self._since_us.pop(condition, None)
                    elif now_us - self._since_us.setdefault(condition, now_us) >= condition.lasting_ms * 1000:
                        raise AbortConditionMet(f"{condition}: {condition.measure} was {value}")
            await self._clock.sleep_until_us(self._clock.now_us() + POLL_US)


ConditionText = Annotated[str, AfterValidator(lambda text: str(parse(text)))]
