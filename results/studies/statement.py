"""Statements of a trial: the measured figure of a claim, its decision rule, and the word that follows from both.

A rule is fixed before the run (``kip951.toml`` and its siblings). The word depends on where the whole interval lies::

    below(bound)             no effect at 1                       within(low, high)
    ──────────┬───────────────────┬──────────▶            ──────┬────────────┬──────▶
    confirmed │     undecided     │ contradicted    contradicted│  confirmed │contradicted

An interval that leaves out every effect as large as the smallest effect of interest, and neither confirms nor
contradicts, is *excluded*: if there is an effect, it is smaller than that.

*Below* and *above* use the 95 % interval. *Within* uses the 90 % interval, which corresponds to two one-sided tests
(TOST) at 0.05: it is the only rule that concludes "no difference". A *fact* is confirmed if no unit violates it; it is
a count of units, so it has the exact bounds of a share (Clopper and Pearson 1934) and no interval of a mean. *Violated*
is its counterpart for an assay, in which a violation was planted: it is confirmed if the same count is not 0. Where all
units have the same value, Student's interval has no width and says nothing of other units: the value is then shown with
the exact bound of the share of units that differ, and a word comes from the signs of the units (six equal signs have a
probability of 1 in 32). The mean of units that show something or do not is a *share*. It is shown with its exact
bounds, by which a rule decides that is registered as ``exact``. An older rule decides by Student's interval, which can
reach beyond 0 and 100 %.

No word comes from fewer than six independent units (a sign test of five can't be more significant than 1 in 16). A
tenth of the registered units, at least one, may be missing for want of proof of their fault; a trial is not stopped
early. Everything else is *undecided*, with a reason that says what is missing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from markupsafe import Markup
from scipy.special import bdtr, betaincinv, nctdtr, stdtrit

from aftershock.results.compare.comparison import BLOCKS_MIN
from aftershock.results.compare.statistics import Tested

Word: TypeAlias = Literal["confirmed", "contradicted", "excluded", "undecided"]
Role: TypeAlias = Literal["claim", "mechanism", "production", "control", "assay", "figure"]
DECIDING: tuple[Role, ...] = ("claim", "mechanism", "production")
"""Roles of the claims that decide a trial. *Production* is the headline claim under Kafka's default settings."""
UNITS_MIN = BLOCKS_MIN
PRESENT = 0.9
"""Share of the registered units that must have been observed; one may be missing of less than ten."""
ALPHA = 0.05


@dataclass(frozen=True)
class Estimate:
    """A measured figure with its confidence interval.

    ``n`` is the number of observations (such as blocks of the plan, slices of time or brokers), never of records.
    ``confidence`` is the confidence level of the interval; 0.9 for equivalence, which corresponds to two one-sided
    tests (TOST) at 0.05. ``p`` is the p-value of a sign-flip test of the blocks, None without such a test. ``hits`` is
    the number of units that violate a fact, or that a share counts; None of other figures.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str = ""
    confidence: float = 0.95
    p: float | None = None
    hits: int | None = None

    @property
    def constant(self) -> bool:
        """True if the interval has no width, because all units have the same value."""
        return self.low is not None and self.high is not None and math.isclose(self.low, self.high, rel_tol=1e-12)

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Measured(NamedTuple):
    """Figure of a claim with an explanation; of a fact also the number of units that violate it (None: unknown).

    ``doubt`` is a reason why the measurement decides nothing, for example that no unit was exposed to the fault.
    """

    ours: Estimate
    why: str = ""
    violations: int | None = None
    doubt: str = ""


class Judged(NamedTuple):
    """Result of one claim, with the measured figure, the result word (such as confirmed), and the reason."""

    ours: Estimate
    word: Word
    why: str


@dataclass(frozen=True)
class Rule:
    """Decision rule of a claim. ``ratio`` is True if the figure is a ratio, which is tested by its logarithm.

    A rule ``below`` or ``above`` is contradicted beyond ``no_effect``, which is the bound itself if not registered. If
    it is ``exact``, the figure is a share in percent, of which the exact bounds decide.
    """

    kind: Literal["below", "above", "within", "fact", "violated"]
    bounds: tuple[float, ...] = ()
    no_effect: float | None = None
    ratio: bool = False
    exact: bool = False

    @property
    def confidence(self) -> float:
        """Confidence level of the interval that the rule needs."""
        return 1 - 2 * ALPHA if self.kind == "within" else 1 - ALPHA

    def __str__(self) -> str:
        if self.kind in ("fact", "violated"):
            return "no violation" if self.kind == "fact" else "a violation is seen"
        unit = " times" if self.ratio else ""
        how = ", by TOST" if self.kind == "within" else " %, by exact bounds" if self.exact else ""
        return f"{self.kind} {' to '.join(f'{bound:g}' for bound in self.bounds)}{unit}{how}"

    def decide(self, measured: Measured, unit: str, n: int, smallest_effect: float | None = None) -> Judged:
        """Return the word for a measurement of ``n`` registered units."""
        ours, why = measured.ours, measured.why
        least = max(UNITS_MIN, min(n - 1, math.ceil(PRESENT * n)))
        word: Word = "undecided"
        if measured.doubt:
            text = measured.doubt
        elif ours.n < least:
            text = f"{ours.n} {unit} of {n} registered are too few: a word needs {least}"
        elif self.kind in ("fact", "violated"):
            hits = measured.violations
            ours = replace(ours, low=None, high=None, hits=hits)
            if hits is None:
                text = "the number of violations is unknown"
            else:
                word = "confirmed" if bool(hits) == (self.kind == "violated") else "contradicted"
                text = f"{f'{hits} violations' if hits else 'no violation'} in {ours.n} {unit}{_of_units(hits, ours.n)}"
        elif self.exact:
            if ours.hits is None:
                raise ValueError(f"the rule `{self}` needs a share, and the figure is none")
            low, high = (100 * bound for bound in exact_bounds(ours.hits, ours.n))
            ours = replace(ours, low=low, high=high)
            word, text = self._position(low, high, smallest_effect)
            text = text.replace("the whole confidence interval is", "the exact bounds of the share are")
            text = text.replace("confidence interval", "interval of the exact bounds")
        elif ours.interval is None:
            text = "no confidence interval: a unit has no value, because records failed or nothing was measured"
        elif ours.confidence != self.confidence:
            raise ValueError(f"the rule `{self}` needs a {self.confidence:g} interval, got {ours.confidence:g}")
        else:
            word, text = self._position(*ours.interval, smallest_effect)
            if ours.constant:
                text = text.replace("the whole confidence interval", f"the value of all {ours.n} {unit}")
            elif ours.hits is not None:
                text = text.replace("confidence interval", "Student interval of the mean")
        return Judged(ours, word, "; ".join(filter(None, (text, why))))

    def _position(self, low: float, high: float, smallest_effect: float | None) -> tuple[Word, str]:
        if self.kind == "within":
            margin = f"{self.bounds[0]:g} to {self.bounds[1]:g}"
            if self.bounds[0] <= low and high <= self.bounds[1]:
                return "confirmed", f"the whole confidence interval is within {margin}"
            if high < self.bounds[0] or low > self.bounds[1]:
                return "contradicted", f"the whole confidence interval is outside {margin}"
            return "undecided", f"the confidence interval reaches a limit of {margin}"
        (bound,), sign = self.bounds, -1 if self.kind == "below" else 1
        no_effect = bound if self.no_effect is None else self.no_effect
        near, far = (high, low) if sign < 0 else (low, high)  # ends of the interval next to each limit
        other = "above" if sign < 0 else "below"
        if sign * near > sign * bound:
            return "confirmed", f"the whole confidence interval is {self.kind} {bound:g}"
        if sign * far < sign * no_effect:
            return "contradicted", f"the whole confidence interval is {other} {no_effect:g}"
        if smallest_effect is not None and sign * far < sign * smallest_effect:
            unit = " times" if self.ratio else ""
            return (
                "excluded",
                f"the whole confidence interval leaves out an effect as large as {smallest_effect:g}{unit}",
            )
        if sign * far <= sign * bound:
            return "undecided", f"no part of the confidence interval is {self.kind} {bound:g}"
        return "undecided", f"the confidence interval includes {bound:g}"

    def power(self, n: int, effect: float, sd: float) -> float:
        """Return the probability that ``n`` units confirm the claim if the true figure is ``effect``.

        ``sd`` is the standard deviation of one unit's figure, of its logarithm for a ratio. Exact for *below* and
        *above* (noncentral t); for *within* the usual approximation by two noncentral t distributions. For a fact,
        ``effect`` is a share of violating units, and the result is the probability to see a violation. For an exact
        rule, it is a share in percent, and the probability is binomial.
        """
        if self.kind == "fact":
            return 1 - (1 - effect) ** n
        if self.exact:
            ends = [exact_bounds(hits, n) for hits in range(n + 1)]
            words = [self._position(100 * low, 100 * high, None)[0] for low, high in ends]
            confirming = [hits for hits, word in enumerate(words) if word == "confirmed"]
            chances = np.diff(bdtr(np.arange(n + 1), n, effect / 100), prepend=0)
            return float(chances[confirming].sum())
        at, *bounds = (math.log(value) if self.ratio else value for value in (effect, *self.bounds))
        # Distances from the true figure to the limits that the interval must not reach, positive if on the right side.
        lower = bounds[:1] if self.kind != "below" else []
        upper = bounds[-1:] if self.kind != "above" else []
        distances = [*(at - bound for bound in lower), *(bound - at for bound in upper)]
        error = sd / math.sqrt(n)
        if not error:
            return float(all(distance > 0 for distance in distances))
        reach = float(stdtrit(n - 1, (1 + self.confidence) / 2))
        shares = [1 - float(nctdtr(n - 1, distance / error, reach)) for distance in distances]
        return max(0.0, sum(shares) - (len(shares) - 1))


def sd_of_pilot(pilot: Sequence[float], rule: Rule) -> float:
    """Return the standard deviation of one unit from a pilot: Student's interval (low, high) of a mean, and its n.

    A fourth number is the confidence level of the interval, by default that of the rule.
    """
    low, high, n, *level = pilot
    spread = math.log(high / low) if rule.ratio else high - low
    reach = float(stdtrit(n - 1, (1 + (level[0] if level else rule.confidence)) / 2))
    return spread / 2 / reach * math.sqrt(n)


def power_of(rule: Rule, ours: Estimate, smallest_effect: float | None) -> float | None:
    """Return the power of a run to confirm the smallest effect, by the variance of its own units.

    It is None if the run shows no variance: without an interval, or if all units have the same value.
    """
    if smallest_effect is None or ours.n < UNITS_MIN:
        return None
    if rule.kind == "fact" or rule.exact:
        return rule.power(ours.n, smallest_effect, 0.0)
    if ours.interval is None or ours.constant or (rule.ratio and ours.interval[0] <= 0):
        return None
    return rule.power(ours.n, smallest_effect, sd_of_pilot((*ours.interval, ours.n, ours.confidence), rule))


@dataclass(frozen=True)
class Statement:
    """Claim about a KIP with the measured result.

    ``published`` is the figure in the KIP's text; ``bound`` is the decision rule in words, empty for a figure without
    a rule. ``power`` is the probability with which as many units of the variance seen in this run confirm the smallest
    effect of interest; None without a variance. ``clients`` names the clients of its runs with their settings, and
    ``statistic`` compares the statistic of a headline with the KIP's.
    ``ours_alone`` is True if the claim, or one of the same kind, was confirmed for no client but the reference clients.
    """

    id: str
    claim: str
    published: str
    bound: str
    ours: Estimate
    word: Word
    why: str
    role: Role
    headline: bool = False
    unit: str = ""
    n: int = 0
    power: float | None = None
    predicted: str = ""
    smallest_effect: float | None = None
    clients: str = ""
    statistic: str = ""
    ours_alone: bool = False

    @property
    def label(self) -> str:
        """The role, ``headline``, and ``reference client`` unless it holds for a client that we did not write."""
        more = ("headline",) * self.headline + ("reference client",) * self.ours_alone
        return ", ".join((self.role, *more))

    @property
    def design(self) -> str:
        """The decision rule with its registered number of units, power, and prediction of a simulation.

        For example ``below 1 times; 40 moves, power 81% for 0.9; a simulation predicts 0.9 times``.
        """
        power = "" if self.power is None else f", power {self.power:.0%} for {self.smallest_effect:g}"
        predicted = f"; a simulation predicts {self.predicted}" if self.predicted else ""
        return self.bound and f"{self.bound}; {self.n} {self.unit}{power}{predicted}"


def ratio_of(tested: Tested, n: int, confidence: float = 0.95) -> Estimate:
    """Return the ratio of two clients from paired blocks of the plan, without an interval if a block has no value."""
    if (interval := tested.interval) is None:
        return Estimate(None, None, None, n, "times", confidence, tested.p)
    return Estimate(interval.ratio, interval.low, interval.high, n, "times", confidence, tested.p_flip)


def unknown(unit: str = "") -> Estimate:
    return Estimate(None, None, None, 0, unit)


def clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval of a share (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return low, high


def share_bounds(hits: int, n: int, of: str = "") -> str:
    """Describe the share of which ``hits`` of ``n`` were observed, by its exact bounds at 95 %; ``of`` says of what.

    No hits, or hits only, have one bound, at 5 % (of none in n: ``1 - 0.05 ** (1 / n)``, about 3 / n); others have two.
    """
    low, high = exact_bounds(hits, n)
    if 0 < hits < n:
        return f"{_percent(low)} to {_percent(high)}{of} (95 %, two-sided)"
    return f"{'at least' if hits else 'at most'} {_percent(low if hits else high)}{of} (95 %, one-sided)"


def exact_bounds(hits: int, n: int) -> tuple[float, float]:
    """Return the exact bounds of a share at 95 %: two-sided, and one-sided for none or all of ``n``."""
    if 0 < hits < n:
        return clopper_pearson(hits, n, 1 - ALPHA)
    return (ALPHA ** (1 / n), 1.0) if hits else (0.0, 1 - ALPHA ** (1 / n))


def _percent(share: float) -> str:
    digits = 0 if 0.01 <= share <= 0.99 else 1  # noqa: PLR2004 -- two digits
    return f"{100 * share:.{digits}f} %"


def _of_units(hits: int, n: int) -> str:
    """Return the end of a sentence with the bounds of a share of units; nothing if the count is not one of units."""
    return f": {share_bounds(hits, n, ' of them')}" if 0 <= hits <= n else ""


def figure(ours: Estimate) -> str:
    """Format an estimate, as in ``0.21 times, 0.17 to 0.26 (95 %), n = 40, p = 0.0005``.

    The figure of a fact has its violations with exact bounds, as in ``0 cuts, 0 of 6 violate: at most 39 % (95 %,
    one-sided)``; a share has the same bounds, as in ``75 %, 6 of 8: 35 % to 97 % (95 %, two-sided)``. A value that all
    units have is not shown with an interval of no width, but with the bound of others.
    """
    if ours.value is None:
        return f"no figure, n = {ours.n}"
    unit = f" {ours.unit}" if ours.unit else ""
    texts = [f"{_number(ours.value)}{unit}"]
    if ours.hits is not None and ours.n:
        if ours.hits > ours.n:  # a count within the units, such as records
            return f"{texts[0]}, {ours.hits} violations in n = {ours.n}"
        violate = "" if ours.interval else " violate"
        return f"{texts[0]}, {ours.hits} of {ours.n}{violate}: {share_bounds(ours.hits, ours.n)}"
    if ours.constant:
        return f"{texts[0]} in all n = {ours.n}, units that differ: {share_bounds(0, ours.n)}"
    if ours.interval:
        texts.append(f"{' .. '.join(_ends(*ours.interval))} ({100 * ours.confidence:g} %)")
    texts.append(f"n = {ours.n}")
    if ours.p is not None:
        texts.append(f"p = {ours.p:.2g}" if ours.p >= 0.0001 else "p < 0.0001")  # noqa: PLR2004
    return ", ".join(texts)


def _ends(low: float, high: float) -> tuple[str, str]:
    """Format the ends of an interval; ends that look alike with three digits get up to six."""
    texts = _number(low), _number(high)
    for digits in (4, 5, 6):
        if texts[0] == texts[1]:
            texts = f"{low:.{digits}g}", f"{high:.{digits}g}"
    return texts


def _number(value: float) -> str:
    """Format a number with three significant digits or a whole integer part, as in ``0.0118`` or ``28,800``."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"  # noqa: PLR2004


def word(statement: Statement) -> str:
    return statement.word if statement.bound else "-"


@dataclass(frozen=True)
class Plot:
    """Chart on the page of a trial; ``reading`` is a sentence that explains the chart."""

    title: str
    svg: Markup
    reading: str
