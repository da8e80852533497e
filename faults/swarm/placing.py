"""When each fault of a drawn plan strikes, so that it strikes in the phase that is wanted of it.

::

    first        ├──────for──────┤
    overlapping        ├─────for─────┤             at a third to two thirds of the one before
    recovering                         ├──for──┤   right after the one before must have healed

Times are the plan's; how long inject and heal really take is known afterwards, and so is the phase that counts.
"""

import random
from collections.abc import Sequence

from aftershock.faults.coverage.cell import Phase, struck
from aftershock.faults.fault import Fault
from aftershock.faults.lasting import window_ms
from aftershock.faults.parts import Timing

_STEP_MS = 100


def placed(faults: Sequence[tuple[Fault, Phase]], timing: Timing, source: random.Random) -> list[Fault]:
    """The faults with their times; the first strikes at once, whatever is wanted of it."""
    found: list[Fault] = []
    for fault, phase in faults:
        at_ms = _at_ms(found[-1], phase, timing, source) if found else 0
        found.append(fault.model_copy(update={"at": at_ms - at_ms % _STEP_MS}))
    return found


def planned(fault: Fault, others: Sequence[Fault], timing: Timing) -> Phase:
    """The phase in which a fault strikes by plan."""
    return struck(fault.at, [(other.at, _over_ms(other, timing)) for other in others])


def _at_ms(before: Fault, phase: Phase, timing: Timing, source: random.Random) -> int:
    if phase == "overlapping":
        return before.at + int(window_ms(before, timing) * source.uniform(1 / 3, 2 / 3))
    return _over_ms(before, timing) + source.randint(500, 2_000)


def _over_ms(fault: Fault, timing: Timing) -> int:
    return fault.at + window_ms(fault, timing) + fault.allowance_ms
