"""The registry of planted defects: functions that spoil a run, with the checks that must report the defect.

``fails``, ``unsure`` and ``contradicts`` are ids of checks that become FAIL, INCONCLUSIVE or ERROR. All other checks
keep their status.
``says`` must be part of the ``why`` of some check, so that permitted events are reported too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aftershock.tests.unit.results.planted.world import Run, good_run

Spoil = Callable[[Run], None]


@dataclass(frozen=True)
class Defect:
    """One defect. ``base`` creates the run to spoil; ``slos`` are judged in addition to the run's own."""

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
    contradicts: tuple[str, ...] = (),
    error: bool = False,
    says: str = "",
    base: Callable[[], Run] = good_run,
) -> Callable[[Spoil], Spoil]:
    """Register a function in the catalogue under its own name."""
    caught = dict.fromkeys(fails, "FAIL") | dict.fromkeys(unsure, "INCONCLUSIVE")
    caught |= dict.fromkeys(contradicts, "ERROR")
    caught |= {"evidence": "ERROR"} if error else {}

    def enter(spoil: Spoil) -> Spoil:
        name = spoil.__name__.replace("_", "-")
        DEFECTS[name] = Defect(name, what, spoil, caught, says, base)
        return spoil

    return enter
