"""Settings changed for a while, by one fault, of one or several resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftershock.faults.dynamic import NONE, Values, lacking, restored
from aftershock.faults.fault import Scene
from aftershock.faults.record import Undo, Witness
from aftershock.faults.values import Resource
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until
from aftershock.faults.world import World

CHANGED_DEADLINE_MS = 10_000  # a change is read back within 0.1 s, measured


@dataclass(frozen=True)
class Change:
    """What the settings of a resource are to be, and the dynamic values that they had before (None: none)."""

    of: Resource
    name: str
    wanted: Mapping[str, str]
    before: Values

    def undo(self) -> Undo:
        """Puts the values of before back."""
        return Undo("restore_settings", {"of": self.of, "name": self.name, "settings": dict(self.before)})


async def planned(of: Resource, name: str, wanted: Mapping[str, str], world: World) -> Change:
    """The change, by what is in force now."""
    now = await world.config(of, name)
    return Change(of, name, wanted, {key: now.get(key, NONE).dynamic for key in wanted})


async def make(changes: Sequence[Change], scene: Scene) -> None:
    """Ask for all of them, and see them in force."""
    for change in changes:
        await to_the_end(scene.world.alter_config(change.of, change.name, change.wanted))
    await until(lambda: _missing(changes, scene.world), scene.clock, CHANGED_DEADLINE_MS)


async def read_back(changes: Sequence[Change], scene: Scene) -> Witness:
    """How many of the settings are in force as asked, by what each resource itself says."""
    asked = sum(len(change.wanted) for change in changes)
    off = await patiently(lambda: _off(changes, scene.world), scene.clock, READ_DEADLINE_MS)
    what = "settings read back from whoever runs with them" + (f"; {off[0]} is not as asked" if off else "")
    return Witness(what, asked, asked - len(off), "settings", asked, not off)


async def confirm_restored(changes: Sequence[Change], scene: Scene) -> None:
    """Return once each resource says that its values of before are in force; FaultError after a deadline."""
    for change in changes:
        await until(lambda it=change: _put_back(it, scene.world), scene.clock, CHANGED_DEADLINE_MS)  # type: ignore[misc]


async def _put_back(change: Change, world: World) -> str | None:
    return await restored(change.of, change.name, change.before, world)


async def _missing(changes: Sequence[Change], world: World) -> str | None:
    off = await _off(changes, world)
    return f"{len(off)} settings are not in force, {off[0]} first" if off else None


async def _off(changes: Sequence[Change], world: World) -> list[str]:
    return [
        f"{key} of {change.of} {change.name}"
        for change in changes
        for key in await lacking(change.of, change.name, change.wanted, world)
    ]
