"""How long the windows that an SLO names last by plan. Real ones last longer: faults take time to heal."""

from collections.abc import Sequence

from aftershock.faults.draft import Draft
from aftershock.faults.fault import Fault
from aftershock.faults.lasting import length_ms, window_ms
from aftershock.faults.plan import Timing


def window(draft: Draft, name: str | None, timing: Timing) -> tuple[str, int | None]:
    """What the window is called, and how long it lasts in all, in ms; None if that can't be told."""
    if name == "steady":
        return "steady", timing.steady
    if name == "warmup":
        return "warmup", timing.warmup.min
    called = name or "the run"
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return called, None
    faults = _all(draft)
    if name is not None and name.startswith("fault"):
        return called, covered_ms(_meant(draft, name), timing, allowances=False)
    if name == "recovery":
        began = min((fault.at for fault in faults), default=0)
        return called, length_ms(faults, timing) - began - covered_ms(faults, timing, allowances=True)
    return called, timing.steady + length_ms(faults, timing)


def longest_ms(draft: Draft, name: str | None, timing: Timing) -> int | None:
    """The longest stretch of the window without a break, and at its most: with all that healing may take."""
    if name is None or not name.startswith("fault"):
        return None if name == "warmup" else window(draft, name, timing)[1]
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return None
    return max((end - begin for begin, end in _stretches(_meant(draft, name), timing, allowances=True)), default=None)


def covered_ms(faults: Sequence[Fault], timing: Timing, *, allowances: bool) -> int:
    """The length of the union of the faults' windows."""
    return sum(end - begin for begin, end in _stretches(faults, timing, allowances=allowances))


def _all(draft: Draft) -> list[Fault]:
    return [each.fault for each in draft.faults.expansion.placed]


def _meant(draft: Draft, name: str) -> list[Fault]:
    """The faults of ``fault`` or ``fault/<id>``; an id means every round and block of it."""
    fault = name.removeprefix("fault").removeprefix("/")
    return [each.fault for each in draft.faults.expansion.placed if fault in ("", each.id, each.entry)]


def _stretches(faults: Sequence[Fault], timing: Timing, *, allowances: bool) -> list[tuple[int, int]]:
    """The faults' windows, those that meet joined."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((f.at, f.at + window_ms(f, timing) + f.allowance_ms * allowances) for f in faults):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
