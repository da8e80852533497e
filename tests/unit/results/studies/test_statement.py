"""The word of a statement depends on its rule, on the position of the whole interval, and on the number of units."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from aftershock.results.studies.part import mean, share
from aftershock.results.studies.statement import (
    Estimate,
    Judged,
    Measured,
    Rule,
    Word,
    clopper_pearson,
    figure,
    power_of,
    sd_of_pilot,
    share_bounds,
)


def decide(rule: Rule, low: float | None, high: float | None, n: int = 8, registered: int = 8) -> Judged:
    value = None if low is None or high is None else (low + high) / 2
    measured = Measured(Estimate(value, low, high, n, "times", rule.confidence), "medians")
    return rule.decide(measured, "moves", registered)


HALF = Rule("below", (0.5,), 1.0)


@pytest.mark.parametrize(
    ("low", "high", "word", "why"),
    [
        (0.2, 0.4, "confirmed", "is below 0.5"),
        (0.4, 0.6, "undecided", "includes 0.5"),
        (0.6, 0.9, "undecided", "no part of the confidence interval is below 0.5"),
        (0.9, 1.2, "undecided", "no part"),
        (1.1, 1.4, "contradicted", "is above 1"),
        (0.4, 1.4, "undecided", "includes"),
    ],
)
def test_below(low: float, high: float, word: Word, why: str) -> None:
    """A ratio that should be below a half; the reason says where the interval lies."""
    judged = decide(HALF, low, high)
    assert (word, True) == (judged.word, why in judged.why)
    assert judged.why.endswith("; medians")


@pytest.mark.parametrize(
    ("rule", "smallest", "low", "high", "word"),
    [
        (Rule("below", (1.0,)), 0.8, 0.85, 1.1, "excluded"),
        (Rule("below", (1.0,)), 0.8, 0.8, 1.1, "undecided"),
        (Rule("below", (1.0,)), 0.8, 0.85, 0.95, "confirmed"),
        (Rule("below", (1.0,)), 0.8, 1.01, 1.1, "contradicted"),
        (Rule("below", (1.0,)), None, 0.85, 1.1, "undecided"),
        (Rule("above", (4.0,), 0.0), 5.0, 1.0, 4.5, "excluded"),
        (Rule("above", (4.0,), 0.0), 5.0, 1.0, 5.5, "undecided"),
        (Rule("within", (0.8, 1.25)), 1.0, 0.7, 0.9, "undecided"),
    ],
)
def test_an_interval_without_the_smallest_effect_excludes_it(
    rule: Rule, smallest: float | None, low: float, high: float, word: Word
) -> None:
    measured = Measured(Estimate((low + high) / 2, low, high, 8, "times", rule.confidence), "medians")
    judged = rule.decide(measured, "moves", 8, smallest)
    assert (word, word == "excluded") == (judged.word, "leaves out an effect as large as" in judged.why)


def test_the_power_of_a_run_is_that_of_its_own_variance() -> None:
    """It is that of a rule with the standard deviation behind the run's interval; without a variance there is none."""
    rule, units = Rule("below", (1.0,), ratio=True), np.random.default_rng(3).normal(math.log(0.97), 0.3, 24)
    low, high = map(math.exp, stats.ttest_1samp(units, 0).confidence_interval(0.95))
    ours = Estimate(0.97, low, high, 24)
    assert power_of(rule, ours, 0.8) == pytest.approx(rule.power(24, 0.8, units.std(ddof=1)))
    assert power_of(Rule("fact"), Estimate(0, None, None, 6), 0.4) == pytest.approx(1 - 0.6**6)
    unknown = (Estimate(1.0, None, None, 24), Estimate(1.0, 1.0, 1.0, 24), Estimate(1.0, 0.9, 1.1, 5))
    assert [power_of(rule, other, 0.8) for other in unknown] == [None, None, None]
    assert power_of(rule, ours, None) is None


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.8, 0.9, "confirmed"), (0.9, 1.1, "undecided"), (1.1, 1.2, "contradicted")]
)
def test_without_a_limit_of_no_effect_the_bound_is_the_limit(low: float, high: float, word: Word) -> None:
    assert word == decide(Rule("below", (1.0,)), low, high).word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (4.5, 5.5, "confirmed"),
        (3.0, 5.0, "undecided"),
        (1.0, 3.0, "undecided"),
        (-1.0, 1.0, "undecided"),
        (-3.0, -1.0, "contradicted"),
    ],
)
def test_above(low: float, high: float, word: Word) -> None:
    """Saved milliseconds that should be at least four."""
    assert word == decide(Rule("above", (4.0,), 0.0), low, high).word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.9, 1.1, "confirmed"),
        (0.7, 1.1, "undecided"),
        (0.5, 0.7, "contradicted"),
        (1.3, 1.5, "contradicted"),
    ],
)
def test_within(low: float, high: float, word: Word) -> None:
    """An interval inside the margin confirms equivalence, one outside contradicts it, and any other decides nothing."""
    assert word == decide(Rule("within", (0.8, 1.25)), low, high).word


@pytest.mark.parametrize(
    ("n", "registered", "word"),
    [
        (5, 5, "undecided"),
        (6, 6, "confirmed"),
        (6, 7, "confirmed"),
        (6, 8, "undecided"),
        (35, 40, "undecided"),
        (36, 40, "confirmed"),
    ],
)
def test_too_few_units(n: int, registered: int, word: Word) -> None:
    """Five units decide nothing; of more, one or a tenth may be missing. A trial that stopped early decides nothing."""
    for rule in (HALF, Rule("within", (0.1, 2)), Rule("above", (0.1,))):
        judged = decide(rule, 0.2, 0.3, n, registered)
        assert (word, word == "undecided") == (judged.word, f"{n} moves of {registered} registered" in judged.why)


@pytest.mark.parametrize("rule", [HALF, Rule("within", (0.0, 2.0))])
def test_no_interval(rule: Rule) -> None:
    """A figure without an interval decides nothing."""
    assert "undecided" == decide(rule, None, None).word


def test_an_interval_of_another_confidence_is_refused() -> None:
    """TOST at 0.05 needs the 90 % interval; the 95 % interval of a superiority rule would be another test."""
    measured = Measured(Estimate(1.0, 0.9, 1.1, 8))
    with pytest.raises(ValueError, match=r"needs a 0\.9 interval, got 0\.95"):
        Rule("within", (0.8, 1.25)).decide(measured, "moves", 8)


@pytest.mark.parametrize(
    ("violations", "n", "word", "why"),
    [
        (0, 6, "confirmed", "no violation in 6 kills: at most 39 % of them (95 %, one-sided)"),
        (0, 300, "confirmed", "at most 1.0 % of them (95 %, one-sided)"),
        (1, 6, "contradicted", "1 violations in 6 kills: 0.4 % to 64 % of them (95 %, two-sided)"),
        (9, 6, "contradicted", "9 violations in 6 kills"),
        (0, 5, "undecided", "5 kills of 6 registered are too few"),
        (1, 5, "undecided", "too few"),
        (None, 6, "undecided", "unknown"),
    ],
)
def test_facts(violations: int | None, n: int, word: Word, why: str) -> None:
    """A fact needs six units too; without a violation the upper bound of its share is that of the rule of three."""
    judged = Rule("fact").decide(Measured(Estimate(3, None, None, n), "", violations), "kills", 6)
    assert (word, True) == (judged.word, why in judged.why)


def test_a_doubt_decides_nothing() -> None:
    judged = HALF.decide(Measured(Estimate(0.2, 0.1, 0.3, 8), doubt="the host was starved"), "moves", 8)
    assert ("undecided", "the host was starved") == (judged.word, judged.why)


# ---- power


@pytest.mark.parametrize(
    ("rule", "n", "effect", "sd", "power"),
    [
        # G*Power, one-sample t-test, d = 0.5, alpha 0.05 two-sided: n = 34 is the first with 80 % (0.8078)
        (Rule("above", (0.0,)), 34, 0.5, 1.0, 0.8078),
        (Rule("below", (0.0,)), 34, -0.5, 1.0, 0.8078),
        # findings 1.1, 7: 250 moves for 80 % power at a ratio of 0.951 and a standard deviation of 0.284
        (Rule("below", (1.0,), ratio=True), 250, 0.951, 0.284, 0.80),
        # without effect a rule is confirmed by chance in 2.5 % of trials
        (Rule("below", (1.0,), ratio=True), 20, 1.0, 0.3, 0.025),
        (Rule("fact"), 6, 0.25, 0.0, 1 - 0.75**6),
        (Rule("within", (0.8, 1.25), ratio=True), 8, 1.0, 0.0, 1.0),
        (Rule("below", (0.5,)), 8, 0.6, 0.0, 0.0),
    ],
)
def test_power(rule: Rule, n: int, effect: float, sd: float, power: float) -> None:
    """The power equals published values."""
    assert pytest.approx(power, abs=0.005) == rule.power(n, effect, sd)


@pytest.mark.parametrize(("n", "sd"), [(12, 0.2), (24, 0.3), (40, 0.45)])
def test_power_of_equivalence(n: int, sd: float) -> None:
    """The power of TOST equals the share of drawn trials whose 90 % interval is within the margins."""
    random = np.random.default_rng(1)
    draws = random.normal(0.0, sd, (20_000, n))
    reach = stats.t.ppf(0.95, n - 1) * draws.std(axis=1, ddof=1) / math.sqrt(n)
    inside = np.abs(draws.mean(axis=1)) + reach <= math.log(1.25)
    assert pytest.approx(inside.mean(), abs=0.015) == Rule("within", (0.8, 1.25), ratio=True).power(n, 1.0, sd)


@pytest.mark.parametrize(
    ("rule", "level"), [(Rule("below", (1.0,), ratio=True), 0.95), (Rule("within", (0.0, 9.0)), 0.9)]
)
def test_the_deviation_of_a_pilot_is_read_from_its_interval(rule: Rule, level: float) -> None:
    """The standard deviation of the units is that of the data from which SciPy computes the interval."""
    data = np.random.default_rng(2).normal(0.0, 0.3, 14)
    interval = stats.ttest_1samp(data, 0).confidence_interval(level)
    ends = [math.exp(end) if rule.ratio else end for end in interval]
    assert pytest.approx(data.std(ddof=1)) == sd_of_pilot([*ends, 14], rule)
    assert pytest.approx(data.std(ddof=1)) == sd_of_pilot([*ends, 14, level], HALF if not rule.ratio else rule)


# ---- figures of facts, and of units without differences


@pytest.mark.parametrize(("hits", "n"), [(0, 6), (1, 6), (3, 6), (6, 6), (0, 300), (17, 40), (1, 1)])
def test_bounds_of_a_share_are_exact(hits: int, n: int) -> None:
    """SciPy's Clopper-Pearson interval is the oracle; 0 of n and n of n have the one-sided bound, and say so."""
    oracle = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, n) == pytest.approx((oracle.low, oracle.high))
    one_sided = stats.binomtest(hits, n, alternative="less" if hits == 0 else "greater").proportion_ci(0.95, "exact")
    text = share_bounds(hits, n)
    assert text.endswith("two-sided)" if 0 < hits < n else "one-sided)")
    end = one_sided.high if hits == 0 else one_sided.low if hits == n else oracle.low
    assert float(text.split(" %")[0].split()[-1]) == pytest.approx(100 * end, abs=0.51)


def test_a_fact_has_no_interval_of_a_mean() -> None:
    """Six cuts without a loss exclude losses in more than 39 % of cuts, not more than in none; the harmless twin with
    a real spread keeps its interval.
    """
    fact = Rule("fact").decide(Measured(mean([0.0] * 6, "of the cuts"), "", 0), "cuts", 6)
    assert ("confirmed", None) == (fact.word, fact.ours.interval)
    assert "0 of the cuts, 0 of 6 violate: at most 39 % (95 %, one-sided)" == figure(fact.ours)
    broken = Rule("fact").decide(Measured(mean([0.0, 1.0] * 3, "of the cuts"), "", 3), "cuts", 6)
    assert "0.5 of the cuts, 3 of 6 violate: 12 % to 88 % (95 %, two-sided)" == figure(broken.ours)
    assert "0.5 s, -0.0748 .. 1.07 (95 %), n = 6" == figure(mean([0.0, 1.0] * 3, "s"))


def test_units_without_differences_have_no_interval_of_no_width() -> None:
    """Seven slices without a byte say that at most 35 % of slices have one; six units still give a word, by signs."""
    judged = Rule("below", (0.1,)).decide(Measured(mean([0.0] * 7, "%")), "slices", 6)
    assert ("confirmed", "the value of all 7 slices is below 0.1") == (judged.word, judged.why)
    assert "0 % in all n = 7, units that differ: at most 35 % (95 %, one-sided)" == figure(judged.ours)
    assert "undecided" == Rule("below", (0.1,)).decide(Measured(mean([0.0] * 5, "%")), "slices", 6).word


@pytest.mark.parametrize(("hits", "n"), [(63, 65), (2, 65), (19, 20), (5, 8), (65, 65), (0, 65)])
def test_a_share_is_shown_with_exact_bounds_and_decided_as_registered(hits: int, n: int) -> None:
    """SciPy's exact interval is the oracle: it does not leave 0 to 100 %, as Student's interval of 63 in 65 does."""
    counted = share([True] * hits + [False] * (n - hits))
    judged = Rule("above", (80.0,), 50.0).decide(Measured(counted), "exposures", n)
    of_mean = Rule("above", (80.0,), 50.0).decide(
        Measured(mean([100.0] * hits + [0.0] * (n - hits), "%")), "exposures", n
    )
    assert judged.word == of_mean.word
    text = figure(judged.ours)
    assert text.startswith(f"{100 * hits / n:.3g} %, {hits} of {n}: ")
    if 0 < hits < n:
        oracle = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
        shown = [float(end) for end in re.findall(r"([\d.]+) %", text.partition(": ")[2])][:2]
        assert shown == pytest.approx([100 * oracle.low, 100 * oracle.high], abs=0.51)
        assert "Student interval of the mean" in judged.why


@pytest.mark.parametrize(
    ("hits", "n", "word"),
    [(30, 30, "confirmed"), (29, 30, "confirmed"), (28, 30, "undecided"), (0, 30, "contradicted"), (5, 5, "undecided")],
)
def test_an_exact_rule_decides_a_share_by_its_exact_bounds(hits: int, n: int, word: Word) -> None:
    rule = Rule("above", (80.0,), 50.0, exact=True)
    judged = rule.decide(Measured(share([True] * hits + [False] * (n - hits))), "exposures", n)
    assert word == judged.word
    if n > 5:
        oracle = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
        alternative = {0: "less", n: "greater"}.get(hits)
        if alternative:
            oracle = stats.binomtest(hits, n, alternative=alternative).proportion_ci(0.95, "exact")
        assert judged.ours.interval == pytest.approx((100 * oracle.low, 100 * oracle.high))
        assert "Student" not in judged.why
    assert "above 80 %, by exact bounds" == str(rule)


def test_an_exact_rule_differs_from_students_interval() -> None:
    """Student's interval of 28 of 30 begins at 83.9 %, the exact one at 77.9 %."""
    counted = Measured(share([True] * 28 + [False] * 2))
    words = [Rule("above", (80.0,), 50.0, exact=exact).decide(counted, "exposures", 30).word for exact in (True, False)]
    assert ["undecided", "confirmed"] == words


def test_the_power_of_an_exact_rule_is_binomial() -> None:
    rule = Rule("above", (80.0,), 50.0, exact=True)
    assert rule.power(30, 98.0, 0.0) == pytest.approx(stats.binom.sf(28, 30, 0.98))
    assert power_of(rule, share([True] * 30), 98.0) == pytest.approx(stats.binom.sf(28, 30, 0.98))
    with pytest.raises(ValueError, match="needs a share"):
        rule.decide(Measured(mean([90.0] * 8, "%")), "exposures", 8)


def test_ends_that_look_alike_get_more_digits() -> None:
    assert "70 B, 69.998 .. 70.001 (90 %), n = 6" == figure(Estimate(70.0, 69.998, 70.001, 6, "B", 0.9))
    assert "0.2 s, 0.1 .. 0.3 (95 %), n = 6" == figure(Estimate(0.2, 0.1, 0.3, 6, "s"))


def test_no_published_interval_is_one_of_zeros() -> None:
    """Stored evidence has no interval whose ends are equal, the pages of the trials none of zeros."""
    docs = Path(__file__).parents[4] / "docs"
    ends = re.compile(r"(-?[\d.,]+) \.\. (-?[\d.,]+) \(9[05] %\)")
    records = [*docs.glob("evidence/kip*/campaign.json")]
    assert records
    for stored in records:
        assert [] == [match[0] for match in ends.finditer(stored.read_text()) if match[1] == match[2]]
    assert not [page.name for page in docs.glob("kips/*.md") if " 0 .. 0 (" in page.read_text(encoding="utf-8")]
