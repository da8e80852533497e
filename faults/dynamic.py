"""Dynamic settings of brokers, topics and clients: put in force, read back, and put back as they were.

What a fault restores is the dynamic value of the very resource, or that it had none (KIP-226): the values below it, of
the server's file or Kafka's own, are then in force again by themselves.
"""

from collections.abc import Mapping

from aftershock.faults.values import Resource, Setting
from aftershock.faults.world import World

Values = Mapping[str, str | None]
NONE = Setting(None, None)


def agree(one: str | None, other: str | None) -> bool:
    """Whether two values are the same to Kafka, which writes numbers in its own way."""
    return one == other or _number(one) == _number(other) is not None


async def lacking(of: Resource, name: str, wanted: Values, world: World) -> list[str]:
    """The settings that are not in force as wanted, by what the resource itself says."""
    now = await world.config(of, name)
    return sorted(key for key, value in wanted.items() if not agree(now.get(key, NONE).value, value))


async def restored(of: Resource, name: str, before: Values, world: World) -> str | None:
    """Ask for the dynamic values of before where they differ; None once none does, else what is missing."""
    now = await world.config(of, name)
    others = {key: value for key, value in before.items() if not agree(now.get(key, NONE).dynamic, value)}
    if not others:
        return None
    await world.alter_config(of, name, others)
    return f"{', '.join(sorted(others))} of {of} {name} should be as before and not {_shown(others, now)}"


def _shown(others: Values, now: Mapping[str, Setting]) -> str:
    return ", ".join(str(now.get(key, NONE).dynamic) for key in sorted(others))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
