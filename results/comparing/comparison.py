"""Whether one arm is better than another, judged by blocks: improved, regressed, equivalent or inconclusive.

Rules. A pair is one block in which both suffered the same fault at the same time. With fewer than six pairs no test
can say anything at one in twenty (the best of 2^5 signs is 1 in 16), so the answer is inconclusive, and so it is where
a block has too few records. Several metrics are several chances to be fooled: Holm's correction is over all that are
asked of a pair of arms, those that could not be tested counted too. What is shown to be within the margin is
equivalent, even where a difference is sure. A block without a value (nothing succeeded, no calm came) is slower than
any: it is counted, no ratio is estimated, and the signs alone may decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from aftershock.results.check import Status, holds
from aftershock.results.comparing.blocks import Blocks, Measure, of_slices
from aftershock.results.comparing.stats import Tested, geometric_mean, holm, paired, welch
from aftershock.results.facts import MAX, Facts
from aftershock.results.wanted import Cut

BLOCKS_MIN = 6
BLOCKS_ADVISED = 8
BLOCKS_MAX = 100
MARGIN = 1.25
LEVEL = 0.05

Word: TypeAlias = Literal["improved", "regressed", "equivalent", "inconclusive"]


@dataclass(frozen=True)
class Row:
    """One metric of a pair. Ratios are ours by theirs; values are geometric means in milliseconds, None if censored.

    ``p`` and ``p_equivalent`` are corrected for the number of metrics, ``p_flip`` and the interval are not.
    """

    metric: str
    verdict: Word
    blocks: int
    censored: int
    why: str
    next: str | None = None
    ours_ms: float | None = None
    theirs_ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_flip: float | None = None
    p_equivalent: float | None = None


@dataclass(frozen=True)
class Question:
    """A metric and its blocks on both sides. ``alike``: the same number is the same block, else only their kind is."""

    measure: Measure
    ours: Blocks
    theirs: Blocks
    alike: bool = True


@dataclass(frozen=True)
class Confident:
    """What blocks say of ``ratio op factor``. ``censored``: how many blocks had no value."""

    status: Status
    blocks: int
    censored: int
    why: str
    next: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def rows(questions: Sequence[Question], margin: float = MARGIN, seed: int = 0) -> tuple[Row, ...]:
    """The answers, in order. ``seed``: of the signs that are drawn where there are too many to try all."""
    asked = [_asked(question, margin, seed) for question in questions]
    ps = holm([tested.p if tested else None for _, tested in asked])
    margins = holm([tested.p_equivalent if tested else None for _, tested in asked])
    return tuple(
        _decided(row, tested, p, p_equivalent, margin) if tested else row
        for (row, tested), p, p_equivalent in zip(asked, ps, margins, strict=True)
    )


def worst(answers: Sequence[Row]) -> Word:
    """Regressed if any is, else inconclusive if any is or there are none, else equivalent if any is."""
    order: tuple[Word, ...] = ("regressed", "inconclusive", "equivalent", "improved")
    found = {row.verdict for row in answers} or {"inconclusive"}
    return next(word for word in order if word in found)


def confident(
    facts: Facts, cut: Cut, pair: tuple[str, str], q: float | None, op: str, factor: float, confidence: float = 0.95
) -> Confident:
    """Whether the ratio of two clients' quantiles (``q`` None: max) is ``op factor``, by the cut's blocks."""
    at = MAX if q is None else q
    ours, theirs = (of_slices(facts.slices(cut, client), at) for client in pair)
    question = Question(Measure(cut.metric, at, cut.window), ours, theirs)
    row = _counted(question)
    answer = Confident(Status.INCONCLUSIVE, row.blocks, row.censored, row.why, row.next)
    if row.why:
        return answer
    one, other = _values(question)
    scaled = [None if value is None else value * factor for value in other]
    tested = paired(one, scaled, MARGIN, confidence=confidence)
    if tested.interval is None:
        return _by_signs(answer, tested, op, confidence)
    ratio, low, high = (bound * factor for bound in (tested.interval.ratio, tested.interval.low, tested.interval.high))
    good = {holds(low, op, factor), holds(high, op, factor)}
    status = Status.INCONCLUSIVE if len(good) > 1 else Status.PASS if good == {True} else Status.FAIL
    band = f"with {100 * confidence:g} % confidence from {low:.3g} to {high:.3g}"
    why = f"the ratio is {ratio:.3g}, {band} ({row.blocks} blocks)"
    more = _more_blocks(row.blocks, high / low) if status is Status.INCONCLUSIVE else None
    return replace(answer, status=status, why=why, next=more, ratio=ratio, low=low, high=high)


def _by_signs(answer: Confident, tested: Tested, op: str, confidence: float) -> Confident:
    sure = tested.p <= 1 - confidence
    good = holds(tested.direction, op, 0)
    status = (Status.PASS if good else Status.FAIL) if sure else Status.INCONCLUSIVE
    why = (
        f"{answer.censored} of {2 * answer.blocks} values are censored: the signs alone say so with p = {tested.p:.2g}"
    )
    return replace(answer, status=status, why=why, next=None if sure else "see why records failed in these blocks")


def _asked(question: Question, margin: float, seed: int) -> tuple[Row, Tested | None]:
    """The row without a verdict yet, and what was tested: nothing where there was not enough to test."""
    row = _counted(question)
    if row.why:
        return row, None
    ours, theirs = _values(question)
    if question.alike:
        return row, paired(ours, theirs, margin, seed=seed)
    tested = welch(ours, theirs, margin)
    if tested is None:
        why = f"{row.censored} values are censored, and without pairs nothing can be said then"
        return replace(row, why=why, next="see why records failed in these blocks"), None
    return row, tested


def _counted(question: Question) -> Row:
    """How many blocks there are, and why they can't be tested (empty: they can)."""
    blocks = min(map(len, _numbers(question)))
    ours, theirs = _values(question)
    censored = [*ours, *theirs].count(None)
    row = Row(str(question.measure), "inconclusive", blocks, censored, "")
    row = replace(row, ours_ms=_mean_ms(ours), theirs_ms=_mean_ms(theirs))
    if not (question.ours or question.theirs):
        advice = "name a quantile and a window that every run with blocks is measured by, or ask for it in an SLO"
        return replace(row, why="it was not measured by block", next=advice)
    if question.alike and (question.ours.keys() ^ question.theirs.keys()):
        lone = min(question.ours.keys() ^ question.theirs.keys())
        return replace(row, why=f"block {lone} has a value on one side only", next="see why one saw no record there")
    if blocks < BLOCKS_MIN:
        advice = f"needs {BLOCKS_MIN} blocks, saw {blocks}: set blocks: {BLOCKS_ADVISED}"
        return replace(row, why=f"too few blocks: {blocks} of {BLOCKS_MIN}", next=advice)
    fewest = min(block.n for side in (question.ours, question.theirs) for block in side.values())
    if fewest < question.measure.needs:
        advice = f"needs {question.measure.needs} records a block, saw {fewest}: lengthen the fault or raise the rate"
        return replace(row, why=f"too few records in a block: {fewest} of {question.measure.needs}", next=advice)
    return row


def _numbers(question: Question) -> tuple[list[int], list[int]]:
    """The blocks that are compared; of pairs those that both sides have."""
    ours, theirs = sorted(question.ours), sorted(question.theirs)
    both = [number for number in ours if number in question.theirs]
    return (both, both) if question.alike else (ours, theirs)


def _values(question: Question) -> tuple[list[float | None], list[float | None]]:
    ours, theirs = _numbers(question)
    return [question.ours[one].value_us for one in ours], [question.theirs[one].value_us for one in theirs]


def _mean_ms(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None where there is nothing to take it of."""
    known = [value for value in values if value]
    return geometric_mean(known) / 1e3 if known and len(known) == len(values) else None


def _decided(row: Row, tested: Tested, p: float | None, p_equivalent: float | None, margin: float) -> Row:
    """The row with its verdict; ``p`` and ``p_equivalent`` are the corrected ones."""
    said = replace(row, p=p, p_flip=tested.p_flip, p_equivalent=p_equivalent)
    if tested.interval is None:
        return _signs(said, tested)
    interval = tested.interval
    said = replace(said, ratio=interval.ratio, low=interval.low, high=interval.high)
    if p_equivalent is not None and p_equivalent <= LEVEL:
        return replace(said, verdict="equivalent", why=f"within {1 / margin:.3g} to {margin:.3g} times the other")
    if p is not None and p <= LEVEL:
        verdict: Word = "improved" if tested.direction < 0 else "regressed"
        return replace(said, verdict=verdict, why=f"{interval.ratio:.3g} times the other")
    why = (
        f"from {interval.low:.3g} to {interval.high:.3g} times the other: neither a difference nor its absence is shown"
    )
    return replace(said, why=why, next=_more_blocks(row.blocks, interval.high / interval.low, margin))


def _signs(row: Row, tested: Tested) -> Row:
    """Where some blocks have no value: only which side was slower, block by block."""
    why = f"{row.censored} of {2 * row.blocks} values are censored, so there is no ratio"
    if row.p is not None and row.p <= LEVEL:
        verdict: Word = "improved" if tested.direction < 0 else "regressed"
        return replace(row, verdict=verdict, why=f"{why}; the signs of the {row.blocks} blocks alone decide")
    return replace(row, why=why, next="see why records failed in these blocks")


def _more_blocks(blocks: int, spread: float, margin: float = MARGIN) -> str:
    """About as many as make the interval as wide as the margin; ``spread``: its upper end by its lower."""
    enough = math.ceil(blocks * (math.log(spread) / (2 * math.log(margin))) ** 2)
    if enough > BLOCKS_MAX:
        return f"too noisy for {BLOCKS_MAX} blocks to tell {margin:.3g}: compare a steadier metric, or a wider margin"
    return f"set blocks: {max(enough, blocks + 1)}, which at this noise would tell {margin:.3g}"
