"""How often comparisons and trends are wrong, and how often they find what is there: the tables of docs/COMPARE.md.

``python tests/bench/bench_comparison.py`` prints them as Markdown. Seeded: the same figures every time. They are of
``tests/noise.py``'s models: one contiguous stall a block, two arms on one machine, nights with outliers, and blocks
that depend on their neighbours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from statistics import median

import numpy as np
from numpy.random import Generator
from scipy.stats import mannwhitneyu

from aftershock.results.compare import statistics
from aftershock.results.compare.history import Line
from aftershock.results.compare.statistics import Tested, paired, welch
from aftershock.results.compare.trend import trends
from aftershock.tests.noise import Law, dependent, nights, nights_apart, pairs, records

TRIALS = 400
DEPENDENT_TRIALS = 4000
SERIES = 60
BLOCKS = (6, 8, 12, 24, 60)
CORRELATIONS = (0.0, 0.3, 0.6, 0.7, 0.8)
MARGIN = 1.25
LEVEL = 0.05
FIRST = date(2026, 1, 1)
LINE = Line(FIRST, "r", "p", "w", "a", "m", "fault", None, "ms", 1, None, None, None, None)

Trial = Callable[[Generator], bool]


def rate(trial: Trial, seed: int, trials: int = TRIALS) -> str:
    """Return the share of positive results."""
    rng = np.random.default_rng(seed)
    return f"{sum(trial(rng) for _ in range(trials)) / trials:.3f}"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """Print it as Markdown."""
    for cells in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def differs(tested: Tested | None) -> bool:
    """Return whether the two arms are called different."""
    return tested is not None and tested.p <= LEVEL


def pooled(rng: Generator, blocks: int) -> bool:
    """Count every record of all blocks as independent, a common mistake."""
    return bool(mannwhitneyu(*(side.ravel() for side in records(rng, blocks))).pvalue <= LEVEL)


def independent(tested: Tested) -> bool:
    """Return whether Student's test of independent blocks calls the two arms different."""
    return (tested.p_independent or 0) <= LEVEL


def of_dependent_blocks() -> Iterator[Sequence[str]]:
    """Compare an arm with itself, whose blocks depend on their neighbours."""
    tests: Sequence[tuple[str, Law, Callable[[Tested], bool]]] = (
        ("as if independent, normal", "normal", independent),
        ("normal", "normal", differs),
        ("log-normal", "lognormal", differs),
        ("heavier tails", "heavier", differs),
    )
    for name, law, test in tests:
        for r in CORRELATIONS:
            yield (
                f"{name}, r = {r:g}",
                *(
                    rate(
                        lambda rng, b=b, r=r, law=law, test=test: test(paired(*dependent(rng, b, r, law), MARGIN)),
                        b,
                        DEPENDENT_TRIALS,
                    )
                    for b in BLOCKS
                ),
            )


def price() -> Iterator[Sequence[str]]:
    """Detect a ratio from independent blocks that differ by 20 %: what the caution costs."""
    for ratio in (1.25, 1.5, 2.0, 4.0):
        for name, test in (("independent", independent), ("cautious", differs)):
            yield (
                f"{ratio:g}, {name}",
                *(
                    rate(
                        lambda rng, b=b, ratio=ratio, test=test: test(
                            paired(*dependent(rng, b, 0.0, "normal", ratio), MARGIN)
                        ),
                        b,
                    )
                    for b in BLOCKS
                ),
            )


def signs_of_dependent_blocks() -> Iterator[Sequence[str]]:
    """Compare an arm with itself by signs alone, because a block has no value."""
    for r in CORRELATIONS:
        yield (
            f"r = {r:g}",
            *(rate(lambda rng, b=b, r=r: signs_differ(rng, b, r), b, DEPENDENT_TRIALS) for b in BLOCKS),
        )


def signs_differ(rng: Generator, blocks: int, r: float) -> bool:
    ours, theirs = dependent(rng, blocks, r)
    return differs(paired([None, *ours[1:]], theirs, MARGIN))


def false_alarms() -> Iterator[Sequence[str]]:
    """Compare an arm with itself."""
    sizes = (6, 8, 12, 20)
    yield "records pooled, Mann-Whitney", *(rate(lambda rng, b=b: pooled(rng, b), b, 100) for b in sizes)
    yield "blocks, paired t", *(rate(lambda rng, b=b: differs(paired(*pairs(rng, b), MARGIN)), b) for b in sizes)
    yield "blocks, signs flipped", *(rate(lambda rng, b=b: flipped(rng, b), b) for b in sizes)
    yield "blocks, a fifth censored: signs", *(rate(lambda rng, b=b: censored(rng, b), b) for b in sizes)


def flipped(rng: Generator, blocks: int) -> bool:
    """By the twin of the t-test."""
    return (paired(*pairs(rng, blocks), MARGIN).p_flip or 0) <= LEVEL


def censored(rng: Generator, blocks: int) -> bool:
    """Compare blocks that have no value on either side."""
    ours, theirs = ([None if rng.random() < 0.2 else value for value in side] for side in pairs(rng, blocks))
    return differs(paired(ours, theirs, MARGIN))


def power() -> Iterator[Sequence[str]]:
    """Compare an arm with an arm that is slower by a factor."""
    for ratio in (0.5, 0.25, 0.12):
        yield (
            f"{ratio:g}",
            *(
                rate(lambda rng, b=b, r=ratio: differs(paired(*pairs(rng, b, r), MARGIN)), 100 + b, 200)
                for b in (6, 8, 12, 20)
            ),
        )


def equivalence() -> Iterator[Sequence[str]]:
    """Called equivalent, at the end of the margin (wrong) and at one (right), by the noise of a block."""
    for sigma in (0.05, 0.1, 0.2):
        yield (
            f"{sigma:g}",
            *(rate(lambda rng, s=sigma, r=ratio: equivalent(rng, s, r), 7, 1000) for ratio in (MARGIN, 1.0)),
        )


def equivalent(rng: Generator, sigma: float, ratio: float) -> bool:
    """Eight blocks of lognormal noise alone."""
    ours, theirs = np.exp(rng.normal(math.log(ratio), sigma, 8)), np.exp(rng.normal(0, sigma, 8))
    return (paired(ours.tolist(), theirs.tolist(), MARGIN).p_equivalent or 0) <= LEVEL


def between_runs() -> Iterator[Sequence[str]]:
    """Two runs of the same thing, by how far apart their nights are, on p99.9 and on p50."""
    for between in (0.0, 0.05, 0.1, 0.25):
        yield (
            f"{between:g}",
            *(
                rate(lambda rng, n=between, s=s: differs(welch(*nights_apart(rng, 8, n, steady=s), MARGIN)), 9, 200)
                for s in (False, True)
            ),
        )


def nights_that_depend() -> Iterator[Sequence[str]]:
    """Series without a change, whose nights depend on their neighbours: alarms, and how many remain undecided."""
    for r in (0.0, 0.5, 0.7, 0.8, 0.9):
        words = [status(np.random.default_rng(seed), 90, r) for seed in range(4 * SERIES)]
        shares = [
            sum(word in some for word in words) / len(words) for some in (("regressed", "improved"), ("inconclusive",))
        ]
        yield f"{r:g}", *(f"{share:.3f}" for share in shares)


def status(rng: Generator, length: int, r: float) -> str:
    """Return the word about a series without a change."""
    (found,) = trends(lines_of(nights(rng, length, r=r)))
    return found.status


def lines_of(values: Sequence[float]) -> list[Line]:
    days = [FIRST + timedelta(days=index) for index in range(len(values))]
    return [replace(LINE, night=day, value=float(value)) for day, value in zip(days, values, strict=True)]


def changes() -> Iterator[Sequence[str]]:
    """Series of 90 nights, shifted at the 60th: alarms, where they are, and how soon they come."""
    for ratio in (1.0, 1.1, 1.2, 1.5, 1 / 1.5):
        found = [judged(seed, 90, ratio) for seed in range(SERIES)]
        near = [one for one in found if one is not None and abs(one - 60) <= 3]
        delays = sorted(filter(None, (delay(seed, ratio) for seed in range(20)))) if ratio not in (1.0, 1.1) else []
        soon = f"{median(delays):g} (of 20 found: {len(delays)})" if delays else "-"
        alarms = sum(one is not None for one in found) / SERIES
        yield f"{ratio:.2g}", f"{alarms:.2f}", f"{len(near) / SERIES:.2f}" if ratio != 1 else "-", soon


def judged(seed: int, length: int, ratio: float) -> int | None:
    """The night of the change that is reported."""
    values = nights(np.random.default_rng(seed), 90, 60, ratio)[:length]
    (found,) = trends(lines_of(values))
    return (found.change.night - FIRST).days if found.change else None


def delay(seed: int, ratio: float) -> int | None:
    """Return after how many nights of the new level the change is first reported."""
    nights_after = range(3, 31)
    return next(
        (n for n in nights_after if (at := judged(seed, 60 + n, ratio)) is not None and abs(at - 60) <= 3), None
    )


def main() -> None:
    statistics.FLIPS = 1000  # of more than 12 blocks, where the p-value of flipped signs is seldom read
    table(("an arm against itself is called different", "6 blocks", "8", "12", "20"), false_alarms())
    table(("true ratio, found", "6 blocks", "8", "12", "20"), power())
    sizes = ("6 blocks", "8", "12", "24", "60")
    table(("an arm against itself is called different", *sizes), of_dependent_blocks())
    table(("signs of censored blocks alone", *sizes), signs_of_dependent_blocks())
    table(("true ratio, found", *sizes), price())
    table(("sigma of a block", "at 1.25: called equivalent, wrongly", "at 1: called equivalent"), equivalence())
    table(("sigma between nights", "p99.9 called different", "p50 called different"), between_runs())
    table(("autocorrelation of nights", "alarms", "inconclusive"), nights_that_depend())
    table(("shift", "reported", "within 3 nights of it", "median nights till reported"), changes())


if __name__ == "__main__":
    main()
