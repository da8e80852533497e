"""When a run is to stop before its end: ``abort: "in_sync_replicas == 0 for 5s"``, watched while the load is on.

::

    CONDITION = MEASURE ==|<|<=|>|>= NUMBER [for DURATION]

==================== =========================================================================================
in_sync_replicas     the fewest that any partition of the plan's topics has
offline_partitions   how many partitions of the plan's topics have no leader
registered_brokers   how many brokers are registered and unfenced
==================== =========================================================================================

A condition is met once it has held at every look for its duration. While Kafka doesn't answer nothing is known, and a
condition that was about to be met starts anew.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from aftershock.errors import AftershockError
from aftershock.faults.plan.units import format_duration, parse_duration_ms
from aftershock.faults.runtime.record import Clock
from aftershock.faults.runtime.world import Administered

LOOK_US = 500_000
MEASURES = ("in_sync_replicas", "offline_partitions", "registered_brokers")
_OPERATORS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_GRAMMAR = re.compile(rf"({'|'.join(MEASURES)}) *(==|<=|>=|<|>) *(\d{{1,6}})(?: +for +(\S+))?")
_SHOWN = f"one of {', '.join(MEASURES)}, then ==, <, <=, > or >=, a number, and `for 5s` if it must last"


@dataclass(frozen=True)
class Condition:
    """One condition. ``lasting_ms``: how long it must hold."""

    measure: str
    operator: str
    number: int
    lasting_ms: int

    def holds(self, value: int) -> bool:
        """Whether it holds for what was measured."""
        return _OPERATORS[self.operator](value, self.number)

    def __str__(self) -> str:
        lasting = f" for {format_duration(self.lasting_ms)}" if self.lasting_ms else ""
        return f"{self.measure} {self.operator} {self.number}{lasting}"


def parse(text: str) -> Condition:
    """Raises ValueError with a sentence that shows the grammar."""
    match = _GRAMMAR.fullmatch(" ".join(text.split()))
    if match is None:
        raise ValueError(f"`{text}` is no condition: say {_SHOWN}")
    return Condition(match[1], match[2], int(match[3]), parse_duration_ms(match[4]) if match[4] else 0)


class Met(Exception):  # noqa: N818 -- no error: what the plan asked to be told
    """A condition was met; the text says which, and what was seen."""


class Watch:
    """Looks at the cluster for as long as it is awaited. ``looks``: how often it could tell."""

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
        """Raises Met when a condition is met."""
        while True:
            try:
                measured = await self._measured()
            except AftershockError:
                self._since_us.clear()
            else:
                self.looks += 1
                self._judge(measured)
            await self._clock.sleep_until_us(self._clock.now_us() + LOOK_US)

    def _judge(self, measured: Mapping[str, int]) -> None:
        now_us = self._clock.now_us()
        for condition in self._conditions:
            if not condition.holds(measured[condition.measure]):
                self._since_us.pop(condition, None)
            elif now_us - self._since_us.setdefault(condition, now_us) >= condition.lasting_ms * 1000:
                raise Met(f"{condition}: {condition.measure} was {measured[condition.measure]}")

    async def _measured(self) -> dict[str, int]:
        states = await self._world.partitions(self._topics)
        return {
            "in_sync_replicas": min((len(state.isr) for state in states), default=0),
            "offline_partitions": sum(state.leader is None for state in states),
            "registered_brokers": len(await self._world.registered()),
        }


def _checked(text: str) -> str:
    try:
        return str(parse(text))
    except ValueError as error:
        raise PydanticCustomError("refused", "{sentence}", {"sentence": str(error)}) from error


ConditionText = Annotated[str, AfterValidator(_checked)]
