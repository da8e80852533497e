"""The registry of planted defects: each is a function that spoils a run, and the checks that must notice.

``fails`` and ``unsure`` are ids of checks that FAIL or are INCONCLUSIVE by it. All other checks stay as they are
without the defect. ``says`` must stand in the ``why`` of some check: so that what is permitted is told nevertheless.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aftershock.tests.unit.results.planted.world import Run, good_run

Spoil = Callable[[Run], None]


@dataclass(frozen=True)
class Defect:
    """One defect. ``base`` makes the run that it is planted in; ``slos`` are asked of that run beside its own."""

    name: str
    what: str
    spoil: Spoil
    caught: Mapping[str, str]
    says: str = ""
    base: Callable[[], Run] = good_run


DEFECTS: dict[str, Defect] = {}


def defect(
    what: str,
    *,
    fails: tuple[str, ...] = (),
    unsure: tuple[str, ...] = (),
    error: bool = False,
    says: str = "",
    base: Callable[[], Run] = good_run,
) -> Callable[[Spoil], Spoil]:
    """Enters a function into the catalogue, under its own name."""
    caught = dict.fromkeys(fails, "FAIL") | dict.fromkeys(unsure, "INCONCLUSIVE")
    caught |= {"evidence": "ERROR"} if error else {}

    def enter(spoil: Spoil) -> Spoil:
        name = spoil.__name__.replace("_", "-")
        DEFECTS[name] = Defect(name, what, spoil, caught, says, base)
        return spoil

    return enter
