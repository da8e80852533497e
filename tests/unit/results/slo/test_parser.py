"""The SLO grammar: each form gives its value, and each mistake its column."""

from decimal import Decimal

import pytest

from aftershock.results.slo import (
    Count,
    Measure,
    Multiple,
    Recovery,
    Selection,
    Slo,
    SloSyntaxError,
    aggregate_name,
    parse,
    quantile_needs,
)

FAULT = "fault/reassign-1"
D = Decimal

FORMS: list[tuple[str, Slo]] = [
    (
        "produce.latency p95 < 250ms in fault for kip951",
        Measure(Selection("produce.latency", 0.95, "fault", arm="kip951"), "<", D(250_000)),
    ),
    ("produce.service max<=1.5s", Measure(Selection("produce.service", "max"), "<=", D(1_500_000))),
    ("consume.latency p99.9 < 800 us", Measure(Selection("consume.latency", 0.999), "<", D(800))),
    ("commit.service mean < 1ms", Measure(Selection("commit.service", "mean"), "<", D(1000))),
    ("produce.success >= 99.9% in steady", Measure(Selection("produce.success", None, "steady"), ">=", D("0.999"))),
    ("commit.success > 50 %", Measure(Selection("commit.success"), ">", D("0.5"))),
    ("consume.gap < 6s in fault/kill-1", Measure(Selection("consume.gap", None, "fault/kill-1"), "<", D(6_000_000))),
    ("recovery < 5s after reassign-1 for b", Recovery("<", 5_000_000, "reassign-1", "b")),
    (
        "recovery (p99 <= 3 * steady for 5s) <= 9s after kill-1",
        Recovery("<=", 9_000_000, "kill-1", None, 0.99, D(3), 5_000_000),
    ),
    ("lost == 0", Count("lost", "==", 0)),
    ("co_owned<=3 for a", Count("co_owned", "<=", 3, "a")),
    (
        "p95(kip951) <= 0.7 * p95(baseline) of produce.latency in fault/reassign-1",
        Measure(
            Selection("produce.latency", 0.95, FAULT, arm="kip951"),
            "<=",
            Multiple(D("0.7"), Selection("produce.latency", 0.95, FAULT, arm="baseline")),
        ),
    ),
    (
        "produce.latency p99 in fault <= 2 * p99 in steady",
        Measure(
            Selection("produce.latency", 0.99, "fault"),
            "<=",
            Multiple(D(2), Selection("produce.latency", 0.99, "steady")),
        ),
    ),
    (
        "produce.latency p99 in fault for a < p50 of produce.service in run for b",
        Measure(
            Selection("produce.latency", 0.99, "fault", arm="a"),
            "<",
            Multiple(D(1), Selection("produce.service", 0.5, arm="b")),
        ),
    ),
    (
        "produce.latency p50 < 5ms in every 500ms of fault for each rack with 99% confidence",
        Measure(Selection("produce.latency", 0.5, "fault", 500_000), "<", D(5000), "rack", D("0.99")),
    ),
    (
        "consume.lag max in every 2s of run <= 3 * p95 in steady",
        Measure(
            Selection("consume.lag", "max", None, 2_000_000),
            "<=",
            Multiple(D(3), Selection("consume.lag", 0.95, "steady")),
        ),
    ),
    ("consume.lag p95 < 10 records", Measure(Selection("consume.lag", 0.95), "<", D(10))),
    (
        "consume.freshness max in fault < 2s for each member",
        Measure(Selection("consume.freshness", "max", "fault"), "<", D(2_000_000), "member"),
    ),
    (
        "consume.freshness max < 5s in recovery",
        Measure(Selection("consume.freshness", "max", "recovery"), "<", D(5_000_000)),
    ),
    (
        "produce.unavailable < 3s in fault for each partition",
        Measure(Selection("produce.unavailable", None, "fault"), "<", D(3_000_000), "partition"),
    ),
    (
        "produce.throughput >= 50.5/s in fault for each rack",
        Measure(Selection("produce.throughput", None, "fault"), ">=", D("50.5"), "rack"),
    ),
    (
        "produce.budget(99.9%) <= 50% for a",
        Measure(Selection("produce.budget", arm="a", target=D("0.999")), "<=", D("0.5")),
    ),
    ("consume.throughput > 7 records/s", Measure(Selection("consume.throughput"), ">", D(7))),
    ("produce.gap < 6s for each", Measure(Selection("produce.gap", arm="each"), "<", D(6_000_000))),
    (
        "produce.gap in fault for each for each rack <= 2 * produce.gap in steady",
        Measure(
            Selection("produce.gap", None, "fault", arm="each"),
            "<=",
            Multiple(D(2), Selection("produce.gap", None, "steady", arm="each")),
            "rack",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_every_form_becomes_its_value(text: str, expected: Slo) -> None:
    """Times are in microseconds and shares are exact fractions."""
    assert expected == parse(text)


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_spaces_are_free(text: str, expected: Slo) -> None:
    """Doubled spaces give the same value."""
    assert expected == parse(f"  {text.replace(' ', '   ')} ")


SAME = [
    ("p95(a) <= 0.7 * p95(b) of produce.latency in fault", "produce.latency p95 in fault for a <= 0.7 * p95 for b"),
    ("produce.latency p95 in fault for a < 5ms", "produce.latency p95 < 5ms in fault for a"),
    ("produce.latency p95 < 5ms in run", "produce.latency p95 < 5ms"),
    ("produce.latency p9 < 1ms for each rack", "produce.latency p9 for each rack < 1ms"),
    ("produce.gap <= 1 * produce.gap in steady", "produce.gap <= produce.gap in steady"),
    ("produce.latency p9 <= 2 * produce.service p9", "produce.latency p9 <= 2 * p9 of produce.service"),
    ("recovery (p95 <= 2 * steady for 2s) < 9s after x", "recovery < 9s after x"),
    ("consume.lag max <= 5", "consume.lag max <= 5 records"),
    ("produce.latency p95 < 1s in every 1h of run", "produce.latency p95 < 1s in every 3600s of run"),
    ("consume.lag max < 5 in every 1.5 m of run", "consume.lag max < 5 in every 90s of run"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equivalent_forms_give_equal_values(one: str, other: str) -> None:
    assert parse(one) == parse(other)


WRONG = [
    ("", 1, "a metric expected, but the text ends here"),
    ("produce.latncy p95 < 1ms", 1, "did you mean 'produce.latency'?"),
    ("produce.latency p95 < 250", 23, "has no unit"),
    ("produce.latency p95 < 1d", 23, "unit 'd' is unknown"),
    ("produce.latency p95 < 0ms", 23, "can't be judged"),
    ("produce.latency p95 < 0.5us", 23, "whole microseconds"),
    ("produce.latency p95 < 1234567890123s", 23, "more digits than can be judged"),
    ("produce.latency p95 > 1ms", 21, "a comparison expected"),
    ("produce.latency p100 < 1ms", 17, "a quantile like p95"),
    ("produce.latency p0 < 1ms", 17, "a quantile like p95"),
    ("produce.latency p99.99999999 < 1ms", 17, "a quantile like p95"),
    ("produce.latency p95 < 1ms in fualt", 30, "did you mean 'fault'?"),
    ("produce.latency p95 < 1ms in fault/", 30, "a window"),
    ("produce.latency p95 < 1ms in evry 1s of run", 30, "did you mean 'every'?"),
    ("produce.latency p95 < 1ms in every 1s run", 39, "'of WINDOW' expected"),
    ("produce.latency p95 < 1ms in every 1ms of run", 36, "time slots of 1000us are too short"),
    ("produce.latency p95 < 1ms for", 30, "the name of an arm expected"),
    ("produce.latency p95 < 1ms for a in fault", 33, "'in WINDOW' comes before 'for ARM'"),
    ("produce.latency p95 in fault < 1ms in fault", 36, "after the end of the SLO"),
    ("produce.latency p95 < 1ms for each rak", 36, "did you mean 'rack'?"),
    ("commit.latency p95 < 1ms for each partition", 35, "write rack or broker"),
    ("consume.lag max < 1 for each rack", 30, "write member"),
    ("produce.throughput >= 50", 23, "'50' is not a rate; write records per second, like 50/s"),
    ("produce.throughput >= 50 records", 23, "is not a rate"),
    ("produce.throughput < 50/s", 20, "a comparison expected"),
    ("produce.gap < 1s for each member", 27, "a subject expected, got 'member'"),
    ("consume.lag max for a <= 2 * max for b for each member", 40, "two arms have no member in common"),
    ("consume.lag max < 1ms", 19, "an integer like 1000 records expected"),
    ("consume.lag max < 1 in every 1500ms of run", 30, "give whole seconds"),
    ("produce.unavailable < 1s in every 1s of fault", 29, "measured over a whole window"),
    ("produce.success >= 99.9", 20, "in percent"),
    ("produce.success >= 100.1%", 20, "at most 100%"),
    ("produce.budget <= 5%", 16, "'(TARGET)'"),
    ("produce.budget(100%) <= 5%", 16, "leaves no error budget"),
    ("recovery < 5s", 14, "'after FAULT' expected"),
    ("recovery < 5s in fault", 15, "'after FAULT' expected"),
    ("recovery (max <= 2 * steady for 2s) < 5s after x", 11, "a quantile like p95"),
    ("recovery (p95 <= 2 * stedy for 2s) < 5s after x", 22, "did you mean 'steady'?"),
    ("lost == -1", 9, "an integer"),
    ("lost == 1.5", 9, "an integer"),
    ("lost > 0", 6, "a comparison expected"),
    ("lost @ 0", 6, "unexpected '@'"),
    ("skiped == 0", 1, "did you mean 'skipped'?"),
    ("p95(a) <= 0.7 * p99(b) of produce.latency", 17, "can't be compared"),
    ("p95(a) <= 0.7 * p95(a) of produce.latency", 17, "compared with itself"),
    ("p95(a) <= 0.7ms * p95(b) of produce.latency", 11, "a factor above 0"),
    ("p95(a) <= 0.7 * p95(b) of produce.gap", 27, "a latency expected"),
    ("p95(a) <= 0.7 * p95(b)", 23, "'of METRIC' expected"),
    ("produce.latency p99 in fault <= 2 * p99", 37, "compared with itself"),
    ("produce.latency p99 <= 2 * p99 of consume.lag", 28, "of different units"),
    ("produce.gap in fault <= 2 * p99 in steady", 29, "has a single value, so no p99"),
    ("produce.success >= 2 * produce.success in steady", 20, "in percent"),
    ("produce.latency p99 in fault <= 2 * p99 in steady for each epoch", 51, "a leader epoch of one window"),
    ("p95(a) <= 0.7 * p95(b) of produce.latency for each producer", 43, "no producer in common"),
    ("produce.latency p99 in fault <= 2 * produce.unavailable for each rack", 57, "not measured for each rack"),
    ("produce.gap < 1s with 95% confidence", 18, "only a quantile of latency"),
    ("produce.latency p95 < 1s with 95% confidenc", 35, "did you mean 'confidence'?"),
    ("produce.latency p95 < 1s with 20% confidence", 31, "from 50% to 99.99%"),
    ("p95(a) <= 1 * p95(b) of produce.latency for each rack with 95% confidence", 55, "needs the same quantile"),
    ("commit.lateness p95 < 1ms", 1, "did you mean 'commit.latency'?"),
    ("consume.success >= 99%", 1, "did you mean"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "says"), WRONG)
def test_an_error_names_the_mistake_and_its_column(text: str, column: int, says: str) -> None:
    """The column is where the text stops being a valid SLO."""
    with pytest.raises(SloSyntaxError) as error:
        parse(text)
    assert says in str(error.value)
    assert column == error.value.column


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("produce.latency p50 < 1ms", 20),
        ("produce.latency p90 < 1ms", 100),
        ("produce.latency p95 < 1ms", 200),
        ("produce.latency p99 < 1ms", 1000),
        ("produce.latency p99.9 < 1ms", 10_000),
        ("produce.latency max < 1ms", 1),
        ("produce.latency mean < 1ms", 30),
        ("produce.success >= 99.9%", 1000),
        ("produce.success >= 100%", 1),
        ("produce.budget(99.9%) <= 50%", 1000),
        ("produce.gap < 1s", 1),
        ("produce.unavailable < 1s", 1),
        ("consume.lag p95 < 1", 200),
        ("recovery < 1s after x", 200),
        ("recovery (p99 <= 2 * steady for 1s) < 1s after x", 1000),
        ("lost == 0", 1),
        ("p99(a) <= 1 * p99(b) of produce.latency", 1000),
        ("produce.gap in fault <= 2 * p99 of produce.latency in steady", 1000),
    ],
)
def test_the_minimum_is_exact(text: str, needs: int) -> None:
    """10/(1-q) is computed exactly: with floats p90 would need 101 samples."""
    assert needs == parse(text).needs()


def test_the_minimum_is_each_selections_own() -> None:
    """A gap needs one record, however many the quantile needs that the gap is compared with."""
    slo = parse("produce.gap in fault <= 2 * p99 of produce.latency in steady")
    assert isinstance(slo, Measure)
    assert [1, 1000] == [slo.needs_of(selection) for selection in slo.selections]
    assert quantile_needs(0.99) == 1000


def test_ids_name_what_is_judged() -> None:
    """Ids follow design 5.4: metric, quantile and window; the arm is in the subject. The ids of all forms differ."""
    ids = [parse(text).check_id() for text, _ in FORMS]
    assert {
        "slo/produce.latency-p95-fault",
        "slo/produce.service-max",
        "slo/produce.success-steady",
        "slo/consume.gap-fault/kill-1",
        "slo/recovery-reassign-1",
        "slo/lost",
        "compare/produce.latency-p95-kip951-baseline-fault/reassign-1",
        "slo/produce.latency-p99-fault-to-steady",
        "slo/produce.latency-p50-every-500ms-of-fault-each-rack-with-99%",
        "slo/produce.budget-99.9%",
    } <= set(ids)
    assert len(ids) == len(set(ids))


def test_faults_and_side_of_an_slo() -> None:
    """`faults` are the ids in windows and recoveries; `side` selects the rows."""
    assert parse("produce.gap < 6s in fault/kill-1").faults == ("kill-1",)
    assert parse("recovery < 5s after kill-1").faults == ("kill-1",)
    assert parse("produce.latency p9 in fault/b <= 2 * p9 in fault/a").faults == ("b", "a")
    assert parse("produce.gap < 6s in fault").faults == ()
    assert parse("produce.latency p9 in fault <= 2 * p9 in run").windows == ("fault", None)
    texts = ("consume.latency p50 < 1s", "recovery < 5s after x", "lost == 0", "commit.budget(9%) < 1%")
    assert [parse(text).side for text in texts] == ["consume", "produce", None, "commit"]


@pytest.mark.parametrize(
    ("aggregate", "name"), [(0.95, "p95"), (0.999, "p99.9"), (0.9, "p90"), (1e-7, "p0.00001"), ("max", "max")]
)  # fmt: skip
def test_quantiles_are_named_as_written(aggregate: float, name: str) -> None:
    """A quantile is printed as in the plan, never with an exponent."""
    assert name == aggregate_name(aggregate)
