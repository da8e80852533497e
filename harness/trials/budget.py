"""Which parts a budget pays for, and how long each may be. Pure.

Rules. Only blocks are saved, and never below six: with fewer no test can say anything. The parts that decide a trial
come first, the most telling of each KIP before the second of any, and they are lengthened up to what is wanted before
anything is spent on what is only reported. A part that is read only beside one that was left out is left out as well.
A part that doesn't fit at its shortest is left out, and those after it are still tried; what is left over lengthens all
that were taken alike. The same budget gives the same answer, whatever was already run.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from aftershock.errors import AftershockError
from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.comparing.comparison import BLOCKS_MIN

_STEPS = 200


@dataclass(frozen=True)
class Allotted:
    """``blocks`` of each part that is run; ``left_out``: why others are not."""

    blocks: Mapping[Planned, int | None]
    left_out: Mapping[Planned, str]
    takes_s: float


def afforded(trials: Sequence[Trial], budget_s: float | None) -> Allotted:
    """What to run of these trials within ``budget_s``; None: all of it. AftershockError where no part fits."""
    deciding = _in_turn([[part for part in trial.parts if trial.hangs_on(part)] for trial in trials])
    others = _in_turn([[part for part in trial.parts if not trial.hangs_on(part)] for trial in trials])
    first = _worth_it(trials, deciding, budget_s)
    then = _worth_it(trials, others, None if budget_s is None else budget_s - first.takes_s, first.blocks)
    blocks = {**first.blocks, **then.blocks}
    if budget_s is not None and not blocks:
        raise AftershockError(_too_small(budget_s, [*deciding, *others]))
    left_out = {part: f"budget {_minutes(budget_s or 0)}" for part in [*deciding, *others] if part not in blocks}
    return Allotted(blocks, left_out, first.takes_s + then.takes_s)


def _worth_it(
    trials: Sequence[Trial], parts: Sequence[Planned], budget_s: float | None, there: Collection[Planned] = ()
) -> Allotted:
    """As ``allot``, without those that no claim could read beside what is ``there``; their time is the others'."""
    found = allot(parts, budget_s)
    taken = {*there, *found.blocks}
    idle = {part for part in found.blocks if not any(trial.reads(part, taken) for trial in trials)}
    return _worth_it(trials, [part for part in parts if part not in idle], budget_s, there) if idle else found


def allot(parts: Sequence[Planned], budget_s: float | None) -> Allotted:
    """The same of parts that are alike in what hangs on them, in order."""
    if budget_s is None:
        return _allotted(parts, 1.0)
    taken: list[Planned] = []
    for part in parts:
        if _takes_s([*taken, part], 0.0) <= budget_s:
            taken.append(part)
    shares = (step / _STEPS for step in range(_STEPS, -1, -1))
    return _allotted(taken, next((share for share in shares if _takes_s(taken, share) <= budget_s), 0.0))


def _in_turn(of_trials: Sequence[Sequence[Planned]]) -> list[Planned]:
    """The first of each, then the second of each, and so on."""
    return [part for each in zip_longest(*of_trials) for part in each if part is not None]


def _allotted(taken: Sequence[Planned], share: float) -> Allotted:
    return Allotted({part: _blocks(part, share) for part in taken}, {}, _takes_s(taken, share))


def _blocks(part: Planned, share: float) -> int | None:
    """From the fewest that can tell (share 0) to all that the trial wants (1)."""
    if part.blocks is None:
        return None
    fewest = min(part.blocks, BLOCKS_MIN)
    return fewest + math.floor((part.blocks - fewest) * share)


def _takes_s(parts: Iterable[Planned], share: float) -> float:
    return sum(part.around_s + part.block_s * (_blocks(part, share) or 0) for part in parts)


def _too_small(budget_s: float, parts: Sequence[Planned]) -> str:
    least_s = min(_takes_s([part], 0.0) for part in parts)
    what = f"a budget of {_minutes(budget_s)} pays for no part with {BLOCKS_MIN} blocks, and fewer can't tell anything"
    return f"{what}: give --budget {math.ceil(least_s / 60)}m or more"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g}m"
