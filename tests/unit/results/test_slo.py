"""The SLO grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.slo import (
    Compare,
    Count,
    Gap,
    Quantile,
    Recovery,
    Slo,
    SloSyntaxError,
    Success,
    parse,
    quantile_name,
)

FORMS: list[tuple[str, Slo]] = [
    (
        "produce.latency p95 < 250ms in fault for kip951",
        Quantile("", "fault", ("kip951",), "produce.latency", 0.95, "<", 250_000),
    ),
    ("produce.service max<=1.5s", Quantile("", None, (), "produce.service", None, "<=", 1_500_000)),
    ("consume.latency p99.9 < 800 us", Quantile("", None, (), "consume.latency", 0.999, "<", 800)),
    ("produce.success >= 99.9% in steady", Success("", "steady", (), "produce.success", ">=", 0.999)),
    ("produce.success > 50 %", Success("", None, (), "produce.success", ">", 0.5)),
    ("consume.gap < 6s in fault/kill-1", Gap("", "fault/kill-1", (), "consume.gap", "<", 6_000_000)),
    ("recovery < 5s after reassign-1 for b", Recovery("", None, ("b",), "<", 5_000_000, "reassign-1")),
    ("lost == 0", Count("", None, (), "lost", "==", 0)),
    ("duplicate<=3 for a", Count("", None, ("a",), "duplicate", "<=", 3)),
    (
        "p95(kip951) <= 0.7 * p95(baseline) of produce.latency in fault/reassign-1",
        Compare("", "fault/reassign-1", ("kip951", "baseline"), "produce.latency", 0.95, "<=", 0.7),
    ),
    ("commit.latency p95 < 100ms in steady", Quantile("", "steady", (), "commit.latency", 0.95, "<", 100_000)),
    ("commit.service p50 < 1ms", Quantile("", None, (), "commit.service", 0.5, "<", 1_000)),
    ("commit.success >= 99%", Success("", None, (), "commit.success", ">=", 0.99)),
    ("commit.gap < 6s for b", Gap("", None, ("b",), "commit.gap", "<", 6_000_000)),
    ("p50(a) < 1 * p50(b) of commit.latency", Compare("", None, ("a", "b"), "commit.latency", 0.5, "<", 1.0)),
]


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_every_form_becomes_its_value(text: str, expected: Slo) -> None:
    """Each line of the grammar gives its dataclass, with times in microseconds and shares as fractions."""
    assert {**vars(expected), "text": text} == vars(parse(text))
    assert type(expected) is type(parse(text))


@pytest.mark.parametrize(("text", "_"), FORMS)
def test_spaces_are_free(text: str, _: Slo) -> None:
    """Doubling every space changes nothing but the text."""
    spaced = vars(parse(f"  {text.replace(' ', '   ')} "))
    assert {**vars(parse(text)), "text": ""} == {**spaced, "text": ""}


WRONG = [
    ("", 1, "a metric expected, but the text ends here"),
    ("produce.latncy p95 < 1ms", 1, "did you mean 'produce.latency'?"),
    ("produce.latency p95 < 250", 23, "has no unit"),
    ("produce.latency p95 < 1h", 23, "unit 'h' is unknown"),
    ("produce.latency p95 < 0ms", 23, "can't be judged"),
    ("produce.latency p95 < 0.5us", 23, "whole microseconds"),
    ("produce.latency p95 > 1ms", 21, "a comparison expected"),
    ("produce.latency p100 < 1ms", 17, "a quantile like p95"),
    ("produce.latency p0 < 1ms", 17, "a quantile like p95"),
    ("produce.latency p95 < 1ms in fualt", 30, "did you mean 'fault'?"),
    ("produce.latency p95 < 1ms in fault/", 30, "a window"),
    ("produce.latency p95 < 1ms for", 30, "the name of an arm expected"),
    ("produce.latency p95 < 1ms for a in fault", 33, "'in WINDOW' comes before 'for ARM'"),
    ("produce.success >= 99.9", 20, "in percent"),
    ("produce.success >= 100.1%", 20, "at most 100%"),
    ("recovery < 5s", 14, "'after FAULT' expected"),
    ("recovery < 5s in fault", 15, "'after FAULT' expected"),
    ("lost == -1", 9, "a whole number"),
    ("lost == 1.5", 9, "a whole number"),
    ("lost > 0", 6, "a comparison expected"),
    ("lost @ 0", 6, "unexpected '@'"),
    ("p95(a) <= 0.7 * p99(b) of produce.latency", 17, "can't be compared"),
    ("p95(a) <= 0.7 * p95(a) of produce.latency", 17, "compared with itself"),
    ("p95(a) <= 0.7ms * p95(b) of produce.latency", 11, "a factor above 0"),
    ("p95(a) <= 0.7 * p95(b) of produce.gap", 27, "a latency expected"),
    ("p95(a) <= 0.7 * p95(b)", 23, "'of METRIC' expected"),
    ("commit.lateness p95 < 1ms", 1, "did you mean 'commit.latency'?"),
    ("consume.success >= 99%", 1, "did you mean"),
]


@pytest.mark.parametrize(("text", "column", "says"), WRONG)
def test_an_error_says_what_and_where(text: str, column: int, says: str) -> None:
    """Each mistake is named at the column where the text stops making sense."""
    with pytest.raises(SloSyntaxError) as error:
        parse(text)
    assert says in str(error.value)
    assert column == error.value.column


@given(st.text(alphabet="produce.latcysgap95mx<>=*()%/ 01 infor", max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    """Whatever a stranger writes is an SLO or a SloSyntaxError with a column inside the text (or just after it)."""
    try:
        column = len(parse(text).text)
    except SloSyntaxError as error:
        column = error.column
    assert column in range(1, len(text) + 2)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("produce.latency p50 < 1ms", 20),
        ("produce.latency p90 < 1ms", 100),
        ("produce.latency p95 < 1ms", 200),
        ("produce.latency p99 < 1ms", 1000),
        ("produce.latency p99.9 < 1ms", 10_000),
        ("produce.latency max < 1ms", 1),
        ("produce.success >= 99.9%", 1000),
        ("produce.success >= 100%", 1),
        ("produce.gap < 1s", 1),
        ("recovery < 1s after x", 200),
        ("lost == 0", 1),
        ("p99(a) <= 1 * p99(b) of produce.latency", 1000),
    ],
)
def test_the_minimum_is_exact(text: str, needs: int) -> None:
    """10/(1-q) in whole numbers: as floats p90 would need 101."""
    assert needs == parse(text).needs()


def test_ids_name_what_is_judged() -> None:
    """Ids are those of design 5.4: metric, quantile and window; the arm is in the subject."""
    ids = [parse(text).check_id() for text, _ in FORMS]
    assert ids[:4] == [
        "slo/produce.latency-p95-fault",
        "slo/produce.service-max",
        "slo/consume.latency-p99.9",
        "slo/produce.success-steady",
    ]
    assert ids[5:8] == ["slo/consume.gap-fault/kill-1", "slo/recovery-reassign-1", "slo/lost"]
    assert ids[9] == "compare/produce.latency-p95-kip951-baseline-fault/reassign-1"
    assert len(ids) == len(set(ids))


def test_faults_and_sides_are_told() -> None:
    """`fault` is the id a window or a recovery names; `side` says which rows are read."""
    assert parse("produce.gap < 6s in fault/kill-1").fault == "kill-1"
    assert parse("recovery < 5s after kill-1").fault == "kill-1"
    assert parse("produce.gap < 6s in fault").fault is None
    texts = (
        "consume.latency p50 < 1s",
        "recovery < 5s after x",
        "lost == 0",
        "commit.success >= 99%",
        "commit.gap < 1s",
    )
    assert [parse(text).side for text in texts] == ["consume", "produce", None, "commit", "commit"]


@pytest.mark.parametrize(("q", "name"), [(0.95, "p95"), (0.999, "p99.9"), (0.5, "p50"), (0.9, "p90"), (None, "max")])
def test_quantiles_are_named_as_written(q: float | None, name: str) -> None:
    """The name of a quantile is how the plan writes it."""
    assert name == quantile_name(q)
