"""The SLO language in both directions: printed SLOs parse to the same value, and no text crashes the parser."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.model.rules import RULES
from aftershock.results.slo import (
    METRICS,
    Aggregate,
    Count,
    Measure,
    Multiple,
    Recovery,
    Selection,
    Slo,
    SloSyntaxError,
    parse,
)
from aftershock.results.slo.parser import WINDOWS

names = st.sampled_from(["a", "kip951", "each", "in", "for", "max", "p95", "0", "b.c_d-e"])
windows = st.sampled_from([None, *(set(WINDOWS) - {"run"}), "fault/kill-1", "fault/run"])
times_us = st.integers(1, 10**12)
factors = st.decimals("0.000000001", 10**6, allow_nan=False, places=9).filter(bool)
QUANTILES = [0.5, 0.9, 0.95, 0.99, 0.999, 0.99999, 0.01]
AGGREGATES: list[Aggregate] = [*QUANTILES, "max", "mean"]
percents = st.integers(1, 1000).map(lambda tenths: Decimal(tenths) / 1000)


@st.composite
def selections(draw: st.DrawFn, *, metrics: tuple[str, ...] = tuple(METRICS)) -> Selection:
    metric = draw(st.sampled_from(metrics))
    aggregate = draw(st.sampled_from(AGGREGATES)) if METRICS[metric].has_aggregate else None
    target = draw(percents.filter(lambda share: share < 1)) if metric.endswith(".budget") else None
    return Selection(metric, aggregate, draw(windows), None, draw(st.none() | names), target)


@st.composite
def measures(draw: st.DrawFn) -> Measure:
    first = draw(selections())
    about = first.about
    if about.slots and draw(st.booleans()):
        every = draw(st.integers(1, 100)) * 1_000_000 if about.sampled else draw(st.integers(100_000, 10**9))
        first = Selection(first.metric, first.aggregate, first.window, every, first.arm, first.target)
    limit = draw(multiples(first)) if about.unit != "share" and draw(st.booleans()) else draw(amounts(about.unit))
    each = draw(st.none() | st.sampled_from(about.each)) if about.each else None
    confidence = draw(st.none() | st.sampled_from([Decimal("0.95"), Decimal("0.9"), Decimal("0.9999")]))
    return Measure(first, draw(st.sampled_from(about.ops)), limit, each, confidence)


def amounts(unit: str) -> st.SearchStrategy[Decimal]:
    return (
        percents if unit == "share" else times_us.map(Decimal) if unit == "time" else st.integers(0, 10**9).map(Decimal)
    )


@st.composite
def multiples(draw: st.DrawFn, first: Selection) -> Multiple:
    alike = tuple(name for name, metric in METRICS.items() if metric.unit == first.about.unit)
    other = draw(selections(metrics=alike))
    arm = other.arm or first.arm
    return Multiple(draw(factors), Selection(other.metric, other.aggregate, other.window, None, arm))


def is_valid(slo: Measure) -> bool:
    """Return whether the combination is valid, decided independently of the parser."""
    bands = all(selection.about.confident and isinstance(selection.aggregate, float) for selection in slo.selections)
    if not isinstance(slo.limit, Multiple):
        return slo.confidence is None or bands
    first, other = slo.of, slo.limit.of
    beside = {
        name for name in ("metric", "aggregate", "window", "every_us") if getattr(first, name) != getattr(other, name)
    }
    shared = {
        None: True,
        "epoch": first.window == other.window,
        "producer": first.arm == other.arm,
        "member": first.arm == other.arm,
    }.get(slo.each, True)
    by_blocks = first.metric.endswith((".latency", ".service", ".gap")) and first.aggregate != "mean"
    paired = not beside and first.arm is not None and slo.each is None and by_blocks
    sure = slo.confidence is None or (paired if first.arm != other.arm else bands)
    return first != other and (slo.each is None or slo.each in other.about.each) and shared and sure


recoveries = st.builds(
    Recovery,
    st.sampled_from(["<", "<="]),
    times_us,
    names,
    st.none() | names,
    st.sampled_from(QUANTILES),
    factors,
    times_us,
)
counts = st.builds(
    Count, st.sampled_from([*RULES]), st.sampled_from(["==", "<=", "<"]), st.integers(0, 10**9), st.none() | names
)


@given(measures())
def test_a_printed_measure_is_read_back(slo: Measure) -> None:
    """Every valid measure is printed as a text that parses to the same measure and prints equally."""
    text = str(slo)
    if not is_valid(slo):
        with pytest.raises(SloSyntaxError):
            parse(text)
        return
    assert slo == parse(text)
    assert text == str(parse(text))


@given(recoveries | counts)
def test_a_printed_recovery_or_count_is_read_back(slo: Slo) -> None:
    """Recoveries and counts have no invalid combinations."""
    assert slo == parse(str(slo))


WORDS = [
    *(word for metric in METRICS for word in (metric, metric.split(".")[1])),
    *("p95", "max", "mean", "p99.9", "<", "<=", ">=", "==", "(", ")", "*", "2", "0.7", "250ms", "5 s", "99.9%", "100"),
    *("in", "for", "each", "every", "of", "with", "confidence", "after", "steady", "fault", "fault/x", "run", "rack"),
    *("recovery", "lost", "records", "partition", "a", "", "@", "1.5e9", "p", "%", "ü", "\n"),
]


def read(text: str) -> Slo | int:
    """Return the SLO, or the column of the error."""
    try:
        return parse(text)
    except SloSyntaxError as error:
        return error.column


@given(st.lists(st.sampled_from(WORDS), max_size=16).map(" ".join) | st.text(max_size=40))
def test_any_text_parses_or_gives_a_syntax_error(text: str) -> None:
    """The error's column is within the text or right behind it."""
    result = read(text)
    assert result in range(1, len(text) + 2) if isinstance(result, int) else result == parse(str(result))


@given(measures().map(str), st.integers(0, 80), st.sampled_from([*WORDS, "<", "x"]))
def test_an_inserted_word_parses_or_gives_a_syntax_error(text: str, at: int, word: str) -> None:
    """A valid text with an insertion is another SLO, or an error with a column in the text."""
    slipped = text[:at] + word + text[at:]
    result = read(slipped)
    assert not isinstance(result, int) or result in range(1, len(slipped) + 2)
