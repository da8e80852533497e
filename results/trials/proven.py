"""A claim on a run without blocks is as good as its faults: one that was not witnessed or met leaves it open."""

from collections.abc import Callable
from typing import TypeAlias

from aftershock.results.trials.claim import Parts
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Judged, unknown

Judge: TypeAlias = Callable[[Parts], Judged]


def proven(judge: Judge, part: str, *faults: str) -> Judge:
    """``judge``, asked only if these faults of a part took hold."""

    def judged(parts: Parts) -> Judged:
        doubt = next((doubt for fault in faults if (doubt := _doubt(parts[part], fault))), None)
        return judge(parts) if doubt is None else Judged(unknown(), "inconclusive", doubt)

    return judged


def _doubt(part: Part, fault: str) -> str | None:
    unproven = part.run.unproven()
    if fault in unproven:
        return f"{fault}: {unproven[fault]}"
    return None if part.phases(fault) else f"{fault} never struck"
