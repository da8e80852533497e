"""What two rows of numbers say of each other: a ratio, how sure it is, and whether it could be chance. Pure.

Numbers are a block's each (a quantile, a gap, a time to recover), lower is better, and None is slower than any. Rules:

* The unit is the block, never the record: the records of one stall are one event, and tests that count them raise
  false alarms in a third of all comparisons of a thing with itself.
* Everything is done on log-ratios, so that twice and half are as far from one. A ratio is ours by theirs.
* Paired blocks: Student's t, and beside it the exact test that flips signs, which assumes nothing but symmetry: all
  ``2^B`` flips up to 12 blocks, above that 100 000 drawn by a seed of the caller's.
* A pair with a None or a value that has no logarithm has no ratio, but may have a sign. Then nothing is estimated, and
  the signs alone are tested, where a pair without one speaks against whatever is claimed.
* Two groups without pairs: Welch's t on logarithms.
* "Equivalent" is shown by two one-sided tests (TOST) within a margin; that no difference was found shows nothing.

Whether one arm is better than another, judged by blocks: improved, regressed, equivalent or inconclusive.

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

import numpy as np
from scipy.special import stdtr, stdtrit

from aftershock.results.checks.check import Status, holds
from aftershock.results.compare.blocks import Blocks, Measure, of_slices
from aftershock.results.measure.facts import MAX, Cut, Facts

EXACT_BLOCKS_MAX = 12
FLIPS = 100_000
_ROUNDING = 1e-12

Values: TypeAlias = Sequence[float | None]


@dataclass(frozen=True)
class Interval:
    """A ratio (a geometric mean) and where it lies with the confidence asked for."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Tested:
    """What the numbers say. ``p``: of a difference; ``p_equivalent``: of its being outside the margin.

    ``flips``: how many assignments of signs ``p_flip`` comes from, None where no signs were flipped. ``interval`` is
    None where no ratio can be estimated; then ``p`` is of the signs alone. ``direction``: -1 where ours is lower.
    """

    p: float
    direction: int
    interval: Interval | None = None
    p_equivalent: float | None = None
    p_flip: float | None = None
    flips: int | None = None


def paired(ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95, seed: int = 0) -> Tested:
    """Blocks in pairs: the same place in both rows is the same block. At least two of them.

    ``margin`` > 1: ratios from ``1/margin`` to ``margin`` are as good as one.
    """
    signs = [_sign(one, other) for one, other in zip(ours, theirs, strict=True)]
    logs = [_log_ratio(one, other) for one, other in zip(ours, theirs, strict=True)]
    known = [log for log in logs if log is not None]
    if len(known) < len(logs):
        return Tested(sign_test(signs), _direction(sum(signs)))
    differences = np.array(known)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(known))
    p_flip, flips = sign_flip(known, seed)
    return _t_test(mean, error, len(known) - 1, margin, confidence, p_flip, flips)


def welch(ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95) -> Tested | None:
    """Two groups of blocks, at least two in each. None where a value has no logarithm: that leaves nothing."""
    logs = [[_log(value) for value in group] for group in (ours, theirs)]
    if any(log is None for group in logs for log in group):
        return None
    left, right = (np.array(group, dtype=float) for group in logs)
    parts = [float(group.var(ddof=1)) / len(group) for group in (left, right)]
    error = math.sqrt(sum(parts))
    spread = sum(part**2 / (len(group) - 1) for part, group in zip(parts, (left, right), strict=True))
    freedom = sum(parts) ** 2 / spread if spread else float(len(left) + len(right) - 2)
    return _t_test(float(left.mean() - right.mean()), error, freedom, margin, confidence)


def sign_flip(differences: Sequence[float], seed: int) -> tuple[float, int]:
    """Two-sided p of their mean if every sign were a toss of a coin, and how many assignments it comes from."""
    values = np.asarray(differences)
    bound = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if len(values) <= EXACT_BLOCKS_MAX:
        flips = 1 << len(values)
        signs = 1.0 - 2.0 * ((np.arange(flips)[:, None] >> np.arange(len(values))) & 1)
        return float((np.abs(signs @ values) >= bound).mean()), flips
    drawn = np.random.default_rng(seed).integers(0, 2, (FLIPS, len(values)), dtype=np.int8)
    as_far = int((np.abs((1.0 - 2.0 * drawn) @ values) >= bound).sum())
    return (as_far + 1) / (FLIPS + 1), FLIPS  # the assignment that was seen is one of them


def sign_test(signs: Sequence[int]) -> float:
    """Two-sided p of so many signs of one kind; a 0 is of neither, and stays in the number of pairs."""
    most = max(sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs))
    tail = sum(math.comb(len(signs), k) for k in range(most, len(signs) + 1)) / (1 << len(signs))
    return min(1.0, 2 * tail)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p of several claims so that one in twenty *families* has a false one; None claims nothing, but is counted."""
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for place, (p, index) in enumerate(order):
        least = adjusted[index] = min(1.0, max(least, p * (len(ps) - place)))
    return adjusted


def geometric_mean(values: Sequence[float]) -> float:
    """Of values above 0; of one the value itself, to the last digit."""
    return values[0] if len(values) == 1 else math.exp(math.fsum(map(math.log, values)) / len(values))


def _t_test(
    mean: float,
    error: float,
    freedom: float,
    margin: float,
    confidence: float,
    p_flip: float | None = None,
    flips: int | None = None,
) -> Tested:
    bound = math.log(margin)
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    interval = Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
    p = 2 * _tail(abs(mean), error, freedom)
    p_equivalent = max(_tail(mean + bound, error, freedom), _tail(bound - mean, error, freedom))
    return Tested(p, _direction(mean), interval, p_equivalent, p_flip, flips)


def _tail(distance: float, error: float, freedom: float) -> float:
    """The chance of getting this far up. Without any noise it is sure, either way."""
    if error == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(stdtr(freedom, -distance / error))


def _direction(value: float) -> int:
    return (value > 0) - (value < 0)


def _log(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise ValueError("not a number can't be compared; give None for what is slower than any")
    return math.log(value) if value is not None and value > 0 else None


def _log_ratio(ours: float | None, theirs: float | None) -> float | None:
    one, other = _log(ours), _log(theirs)
    return None if one is None or other is None else one - other


def _sign(ours: float | None, theirs: float | None) -> int:
    """Whether ours is lower (-1) or higher (1); 0 where they are the same, or both are slower than any."""
    one, other = (math.inf if value is None else value for value in (ours, theirs))
    return (one > other) - (one < other)


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
