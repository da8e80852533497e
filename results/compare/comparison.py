"""Comparison of two clients by blocks of the plan as improved, regressed, equivalent or inconclusive.

The input is one number per block of the plan (a quantile, a gap, a time to recover); lower is better. Tests
(``statistics.py``) count blocks, never records, because the records of one stall are one event, and tests that count
records raise false alarms in a third of all comparisons of a client with itself.

The verdict *equivalent* is decided by two one-sided tests (TOST) within a margin; then a small difference does not
matter, even if it is significant. Fewer than six pairs are inconclusive, because the smallest p-value of a sign test
with five pairs is 1 in 16. Holm's correction of p-values counts all metrics of a pair of arms, including metrics that
could not be tested.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from aftershock.results.compare.blocks import Blocks, Measure, of_slices
from aftershock.results.compare.statistics import ASSUMED_MAX, Tested, geometric_mean, holm, paired, welch
from aftershock.results.model.check import Status, holds
from aftershock.results.model.facts import MAX, Cut, Facts
from aftershock.results.model.text import amount

BLOCKS_MIN = 6
_SEE_FAILURES = "find out why records failed in the blocks without a value"
BLOCKS_ADVISED = 12
"""With 12 blocks equal signs decide, and a factor of four is mostly found (``docs/COMPARE.md``)."""
BLOCKS_MAX = 100
MARGIN = 1.25
ALL_EQUAL = "all equal"
"""Text in place of an interval if all blocks have the same ratio; no width would say nothing of other blocks."""
LEVEL = 0.05

Word: TypeAlias = Literal["improved", "regressed", "equivalent", "inconclusive"]


@dataclass(frozen=True)
class Row:
    """Result of comparing two arms by one metric.

    Ratios are the first arm divided by the second; times are geometric means, or None if a block has no value. ``p``
    and ``p_equivalent`` are corrected for the number of metrics, ``p_flip`` and the interval are not. The
    autocorrelation is that of neighbouring blocks, as estimated and as assumed by ``p`` and the interval.
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
    autocorrelation: float | None = None
    autocorrelation_assumed: float | None = None


@dataclass(frozen=True)
class Question:
    """Measure to test, with the values of both compared clients by block of the plan.

    ``alike`` is True if equal block numbers denote the same block for both clients, so blocks can be paired.
    """

    measure: Measure
    ours: Blocks
    theirs: Blocks
    alike: bool = True


@dataclass(frozen=True)
class Confident:
    """Result of testing a ratio of two clients against a limit; ``censored`` counts blocks in which records failed."""

    status: Status
    blocks: int
    censored: int
    why: str
    next: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def rows(questions: Sequence[Question], margin: float = MARGIN, seed: int = 0) -> tuple[Row, ...]:
    """Test each question (a measure of two clients) and return one result row per question, in order.

    ``seed`` seeds the sign-flip test, which draws random signs if there are too many combinations to try all.
    """
    results: list[tuple[Row, Tested | None]] = []
    for question in questions:
        row, tested = _counted(question), None
        if not row.why:
            ours, theirs = _values(question)
            tested = paired(ours, theirs, margin, seed=seed) if question.alike else welch(ours, theirs, margin)
            if tested is None:
                why = f"{row.censored} values are censored (a record failed); unpaired blocks can't be tested then"
                row = replace(row, why=why, next=_SEE_FAILURES)
        results.append((row, tested))
    ps = holm([tested.p if tested else None for _, tested in results])
    margins = holm([tested.p_equivalent if tested else None for _, tested in results])
    return tuple(
        _decided(row, tested, p, p_equivalent, margin) if tested else row
        for (row, tested), p, p_equivalent in zip(results, ps, margins, strict=True)
    )


def worst(answers: Sequence[Row]) -> Word:
    """Return the worst verdict of a comparison's rows, regressed before inconclusive; inconclusive without rows."""
    order: tuple[Word, ...] = ("regressed", "inconclusive", "equivalent", "improved")
    verdicts = {row.verdict for row in answers} or {"inconclusive"}
    return next(word for word in order if word in verdicts)


def confident(
    facts: Facts, cut: Cut, pair: tuple[str, str], q: float | None, op: str, factor: float, confidence: float = 0.95
) -> Confident:
    """Test by blocks of the plan if the ratio of two clients' latency quantiles meets a limit (such as ``<= 1.2``).

    Without ``q``, maximum latencies are compared.
    """
    at = MAX if q is None else q
    ours, theirs = (of_slices(facts.slices(cut, client), at) for client in pair)
    question = Question(Measure(cut.metric, at, cut.window), ours, theirs)
    row = _counted(question)
    answer = Confident(Status.INCONCLUSIVE, row.blocks, row.censored, row.why, row.next)
    if row.why:
        return answer
    our_values, their_values = _values(question)
    scaled = [None if value is None else value * factor for value in their_values]
    tested = paired(our_values, scaled, MARGIN, confidence=confidence)
    if tested.interval is None:
        sure = tested.p <= 1 - confidence
        decided = Status.PASS if holds(tested.direction, op, 0) else Status.FAIL
        status = decided if sure else Status.INCONCLUSIVE
        why = (
            f"{answer.censored} of {2 * answer.blocks} values are censored (a record failed): a sign test of the "
            f"blocks decides, with p = {tested.p:.2g}{_doubt(tested, answer.blocks, 1 - confidence)}"
        )
        return replace(answer, status=status, why=why, next=None if sure else _next_without_ratio(answer.blocks))
    ratio, low, high = (bound * factor for bound in (tested.interval.ratio, tested.interval.low, tested.interval.high))
    good = {holds(low, op, factor), holds(high, op, factor)}
    status = Status.INCONCLUSIVE if len(good) > 1 else Status.PASS if good == {True} else Status.FAIL
    band = f"with {100 * confidence:g} % confidence from {low:.3g} to {high:.3g}"
    band = ALL_EQUAL if math.isclose(low, high) else band
    why = f"the ratio is {ratio:.3g}, {band} ({row.blocks} blocks)"
    more = _more_blocks(row.blocks, high / low) if status is Status.INCONCLUSIVE else None
    return replace(answer, status=status, why=why, next=more, ratio=ratio, low=low, high=high)


def _counted(question: Question) -> Row:
    """Return a result row with the number of blocks of the plan; ``why`` is empty unless the blocks can't be tested."""
    ours, theirs = _values(question)
    blocks, censored = min(len(ours), len(theirs)), [*ours, *theirs].count(None)
    # The geometric mean of a side is None if a value is missing.
    means_ms = [
        geometric_mean([value for value in side if value]) / 1e3 if side and all(side) else None
        for side in (ours, theirs)
    ]
    row = Row(str(question.measure), "inconclusive", blocks, censored, "", None, *means_ms)
    if not (question.ours or question.theirs):
        advice = (
            "compare a quantile in the window fault or recovery, or add an SLO with this metric and judge the run again"
        )
        return replace(row, why="the run has no values of this metric by block of the plan", next=advice)
    if question.alike and (question.ours.keys() ^ question.theirs.keys()):
        lone = min(question.ours.keys() ^ question.theirs.keys())
        advice = "find out why the other client has no record in this block of the plan"
        return replace(row, why=f"block {lone} of the plan has a value for only one of the clients", next=advice)
    if blocks < BLOCKS_MIN:
        number = "one block" if blocks == 1 else f"{blocks} blocks"
        advice = f"set blocks: {BLOCKS_ADVISED} in the plan, at least {BLOCKS_MIN}, for an interval"
        if not (row.ours_ms and row.theirs_ms):
            return replace(row, why=f"{number}, no interval; a value is missing because a record failed", next=advice)
        ratio = row.ours_ms / row.theirs_ms
        values = f"{amount(row.ours_ms, 'ms')} against {amount(row.theirs_ms, 'ms')}, {ratio:.3g} times"
        return replace(row, ratio=ratio, why=f"{values}: {number}, no interval", next=advice)
    fewest = min(block.n for side in (question.ours, question.theirs) for block in side.values())
    if fewest < question.measure.needs:
        advice = f"needs {question.measure.needs} records per block, saw {fewest}: lengthen the fault or raise the rate"
        return replace(
            row, why=f"too few records in a block of the plan: {fewest} of {question.measure.needs}", next=advice
        )
    return row


def _values(question: Question) -> tuple[list[float | None], list[float | None]]:
    """Return both clients' values in order of blocks of the plan; for pairs only the blocks that both clients have."""
    ours, theirs = sorted(question.ours), sorted(question.theirs)
    if question.alike:
        ours = theirs = [number for number in ours if number in question.theirs]
    return [question.ours[n].value_us for n in ours], [question.theirs[n].value_us for n in theirs]


def _decided(row: Row, tested: Tested, p: float | None, p_equivalent: float | None, margin: float) -> Row:
    row = replace(row, p=p, p_flip=tested.p_flip, p_equivalent=p_equivalent)
    if tested.dependence is not None:
        estimate, assumed = tested.dependence
        row = replace(row, autocorrelation=estimate, autocorrelation_assumed=assumed)
    if tested.interval is None:
        why = f"{row.censored} of {2 * row.blocks} values are censored (a record failed), so there is no ratio"
        if p is not None and p <= LEVEL:
            why = f"{why}; the signs of the {row.blocks} blocks alone decide"
            return replace(row, verdict="improved" if tested.direction < 0 else "regressed", why=why)
        return replace(row, why=f"{why}{_doubt(tested, row.blocks)}", next=_next_without_ratio(row.blocks))
    interval = tested.interval
    row = replace(row, ratio=interval.ratio, low=interval.low, high=interval.high)
    if p_equivalent is not None and p_equivalent <= LEVEL:
        return replace(
            row,
            verdict="equivalent",
            why=f"the value is within {1 / margin:.3g} to {margin:.3g} times the other client's value",
        )
    if p is not None and p <= LEVEL:
        verdict: Word = "improved" if tested.direction < 0 else "regressed"
        return replace(row, verdict=verdict, why=f"the value is {interval.ratio:.3g} times the other client's value")
    why = (
        f"the value is from {interval.low:.3g} to {interval.high:.3g} times the other client's value: neither a "
        f"difference nor its absence is shown{_doubt(tested, row.blocks)}"
    )
    return replace(row, why=why, next=_more_blocks(row.blocks, interval.high / interval.low, margin))


def _doubt(tested: Tested, blocks: int, level: float = LEVEL) -> str:
    """Return the end of a sentence about a difference that only independent blocks would show, or nothing."""
    if tested.p_independent is None or tested.p <= level or tested.p_independent > level:
        return ""
    assumed = ASSUMED_MAX if tested.dependence is None else tested.dependence.assumed
    return f"; {blocks} blocks do not exclude that neighbours resemble each other (autocorrelation up to {assumed:.2f})"


def _next_without_ratio(blocks: int) -> str:
    """Advise what decides a comparison with blocks that have no value."""
    return _SEE_FAILURES if blocks >= BLOCKS_ADVISED else f"{_SEE_FAILURES}, or set blocks: {BLOCKS_ADVISED}"


def _more_blocks(blocks: int, spread: float, margin: float = MARGIN) -> str:
    """Advise how many blocks of the plan narrow a ratio's interval to the margin; ``spread`` is upper / lower end."""
    enough = math.ceil(blocks * (math.log(spread) / (2 * math.log(margin))) ** 2)
    if enough > BLOCKS_MAX:
        return (
            f"the metric is too noisy for {BLOCKS_MAX} blocks to detect a ratio of {margin:.3g}: compare a steadier "
            "metric, or use a wider margin"
        )
    return f"set blocks: {max(enough, blocks + 1)}, which at this noise detects a ratio of {margin:.3g}"
