"""How long things last by plan, in ms: a fault's window, its effect, and the load as a whole."""

from collections.abc import Iterable

from aftershock.faults.fault import Fault
from aftershock.faults.plan import Timing


def window_ms(fault: Fault, timing: Timing) -> int:
    """How long the fault's window lasts by plan, its allowance for injecting and healing left out."""
    return timing.fault if fault.for_ is None else fault.for_


def end_ms(fault: Fault) -> int:
    """When its effect is over by plan; an action without ``for`` is over when it is done."""
    return fault.at + (fault.allowance_ms if fault.for_ is None else fault.for_)


def length_ms(faults: Iterable[Fault], timing: Timing) -> int:
    """The end of the load: the end of the last fault, with its allowance, and ``recovery`` after it."""
    ends = [fault.at + window_ms(fault, timing) + fault.allowance_ms for fault in faults]
    return max(ends, default=timing.fault) + timing.recovery
