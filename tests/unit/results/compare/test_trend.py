"""Trends of nightly series: which shifts are found and how soon, and how damaged ledgers and known issues are
treated.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from aftershock.errors import EvidenceError
from aftershock.results.compare import history, trend
from aftershock.results.compare import history as known_issues
from aftershock.results.compare.history import Issue, Line
from aftershock.results.compare.trend import FLOOR, NIGHTS_MIN, RECENT_NIGHTS, Trend, trends
from aftershock.tests.noise import nights

FIRST = date(2026, 6, 1)
LINE = Line(FIRST, "r0", "nightly", "orders", "kip951", "produce.latency p99", "fault", 40.0, "ms", 9000, None, "ci-1", "4.3.0", "abc")  # fmt: skip # noqa: E501
SHIFT_AT = 60


def series(values: Sequence[float | None], line: Line = LINE) -> list[Line]:
    days = [FIRST + timedelta(days=index) for index in range(len(values))]
    return [replace(line, night=day, run_id=f"run-{day}", value=v) for day, v in zip(days, values, strict=True)]


def judged(values: Sequence[float | None], *issues: Issue) -> Trend:
    (result,) = trends(series(values), issues)
    return result


def made(seed: int, length: int = 90, ratio: float = 1.0, at: int | None = SHIFT_AT) -> list[float]:
    return [float(value) for value in nights(np.random.default_rng(seed), length, at, ratio)]


def test_no_alarm_without_a_shift() -> None:
    """Sixty lognormal series of 90 nights with outliers but without a change are never called regressed or improved."""
    assert {"steady"} == {judged(made(seed)).status for seed in range(60)}


@pytest.mark.parametrize(("ratio", "rate"), [(1.5, 1.0), (1.2, 0.75), (1 / 1.5, 1.0)])
def test_a_shift_is_found_at_its_night(ratio: float, rate: float) -> None:
    """30 nights later, a shift of x1.5 is always found, x1.2 in three of four series, within 3 nights and 15 %
    of its size.
    """
    result = [judged(made(seed, ratio=ratio)) for seed in range(20)]
    shift = FIRST + timedelta(days=SHIFT_AT)
    near = [one.change for one in result if one.change and abs((one.change.night - shift).days) <= 3]
    assert len(near) / len(result) >= rate
    assert all(abs(change.ratio / ratio - 1) < 0.15 for change in near)
    assert {"regressed" if ratio > 1 else "improved"} == {one.status for one in result if one.change}


def test_a_shift_of_half_is_found_within_eight_nights() -> None:
    """Eight nights after a shift of x1.5, none of ten series is called steady."""
    assert {"regressed"} == {judged(made(seed, SHIFT_AT + 8, 1.5)).status for seed in range(10)}


def test_the_report_of_a_shift() -> None:
    """The report has the night, the size, the neighbouring runs, other changes of that night, and a command to
    investigate.
    """
    lines = series([40.0, 41.0, 39.5] * 20 + [80.0, 81.0, 79.0] * 5)
    lines = [replace(one, kafka="4.4.0", host="ci-2") if index >= 60 else one for index, one in enumerate(lines)]
    (result,) = trends(lines)
    assert result.change is not None
    assert (date(2026, 7, 31), "run-2026-07-30", "run-2026-07-31") == (result.change.night, result.change.run_before, result.change.run_after)  # fmt: skip # noqa: E501
    assert ("host ci-1 to ci-2", "Kafka 4.3.0 to 4.4.0") == result.change.besides
    assert "aftershock compare run-2026-07-30 run-2026-07-31" == result.next
    assert 2.0 == result.change.ratio
    assert "2.00 times the earlier value, since 2026-07-31 (host ci-1 to ci-2, Kafka 4.3.0 to 4.4.0)" == result.why


def test_shifts_below_the_floor_are_steady() -> None:
    """A certain shift just below the floor is steady, and one just above is not."""
    noise = [1.0, 1.001, 0.999] * 20
    for size, status in ((FLOOR - 0.02, "steady"), (FLOOR + 0.02, "regressed")):
        assert status == judged([*noise, *(size * value for value in noise[:15])]).status


def test_old_changes_do_not_count() -> None:
    """A change counts while it is within the last 45 nights."""
    noise = [1.0, 1.01, 0.99] * 40
    for after, status in ((RECENT_NIGHTS, "regressed"), (RECENT_NIGHTS + 1, "steady")):
        assert status == judged([*noise[:40], *(2 * value for value in noise[:after])]).status


def test_a_ratio_to_the_control_cancels_slow_machines() -> None:
    """A slower machine affects both arms and is no change of the client; a slower client is."""
    rng = np.random.default_rng(1)
    control = [float(v) for v in 30 * np.exp(rng.normal(0, 0.1, 90)) * np.where(np.arange(90) >= 60, 2, 1)]
    own = [0.5 * value * float(np.exp(rng.normal(0, 0.02))) for value in control]
    alone, beside = series(own), [replace(one, ratio_to=c) for one, c in zip(series(own), control, strict=True)]
    assert ("regressed", False) == (trends(alone)[0].status, trends(alone)[0].relative)
    assert ("steady", True) == (trends(beside)[0].status, trends(beside)[0].relative)
    slower = [replace(one, value=(one.value or 0) * (1.5 if index >= 70 else 1)) for index, one in enumerate(beside)]
    assert "regressed" == trends(slower)[0].status


def test_too_few_nights() -> None:
    """Fewer than 24 nights decide nothing, and the output reports the number that is missing; so does an empty
    ledger.
    """
    result = judged([1.0] * (NIGHTS_MIN - 5))
    assert ("inconclusive", "the series has too few nights: 19 of 24", "run 5 more nights") == (
        result.status,
        result.why,
        result.next,
    )
    assert "steady" == judged([1.0, 1.1] * (NIGHTS_MIN // 2)).status
    assert (2, ()) == (trend.exit_code((), ()), trends([]))


def test_censored_nights_are_counted() -> None:
    """Old censored nights are omitted and counted; one of the last three makes the series undecided and is named."""
    old = judged([1.0, None, 1.1, *[1.0, 1.05] * 15])
    assert ("steady", 1, 32) == (old.status, old.censored, old.nights)
    late = judged([*[1.0, 1.05] * 15, None, 1.0])
    assert ("inconclusive", "1 of the last 3 nights have no value, because records failed") == (late.status, late.why)
    assert "look at the failed checks in the verdict of run run-2026-07-01" == late.next


def test_runs_of_one_night_are_averaged() -> None:
    """The value is the geometric mean; a censored run makes the night censored."""
    twice = [one for line in series([1.0] * 30) for one in (replace(line, value=2.0), replace(line, value=8.0))]
    (result,) = trends(twice)
    assert (30, "steady") == (result.nights, result.status)


ISSUE = Issue("produce.latency p9*", "KAFKA-1", date(2026, 7, 1), date(2026, 12, 1))
SHIFTED = [1.0, 1.01, 0.99] * 20 + [2.0, 2.01, 1.99] * 5


@pytest.mark.parametrize(
    ("issue", "status", "says"),
    [
        (ISSUE, "known", "KAFKA-1, till 2026-12-01"),
        (replace(ISSUE, until=date(2026, 8, 3)), "regressed", "the known issue 'KAFKA-1' expired on 2026-08-03"),
        (replace(ISSUE, metric="consume.*"), "regressed", "since 2026-07-31"),
        (replace(ISSUE, begin=date(2026, 8, 2)), "regressed", "since 2026-07-31"),
        (replace(ISSUE, arm="baseline"), "regressed", "since 2026-07-31"),
        (replace(ISSUE, plan="night*", arm="kip*"), "known", "KAFKA-1"),
    ],
)
def test_known_issues(issue: Issue, status: str, says: str) -> None:
    """A known issue excuses its metric, arm and nights; an expired issue excuses nothing and is named."""
    result = judged(SHIFTED, issue)
    assert status == result.status
    assert says in result.why
    assert (1 if status == "regressed" else 0) == trend.exit_code((result,), ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[issue]]\nmetric = 'a'\nreason = 'b'\nfrom = 2026-01-01\nuntil = 2026-02-01\n", None),
        ("[[issue]]\nmetric = 'a'\nreason = 'b'\nfrom = 2026-01-01\n", "issue 1: 'until' is missing"),
        ("[[issue]]\nmetric = 'a'\nreason = 'b'\nfrom = '2026-01-01'\nuntil = 2026-02-01\n", "'from' must be a day"),
        (
            "[[issue]]\nmetric = 'a'\nreason = 'b'\nfrom = 2026-01-01\nuntil = 2026-02-01\nwho = 'x'\n",
            "'who' is unknown",
        ),
        ("[[issues]]\nmetric = 'a'\n", "only have \\[\\[issue\\]\\] tables"),
        ("issue = ", "not readable as TOML"),
    ],
)
def test_known_issues_file(tmp_path: Path, text: str, says: str | None) -> None:
    """Every mistake in the file is reported with its location."""
    path = tmp_path / known_issues.KNOWN_ISSUES_FILE
    assert () == known_issues.read_known_issues(path)
    path.write_text(text)
    if says is None:
        assert [Issue("a", "b", date(2026, 1, 1), date(2026, 2, 1))] == list(known_issues.read_known_issues(path))
        return
    with pytest.raises(EvidenceError, match=says):
        known_issues.read_known_issues(path)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "not a JSON object"),
        ("{}", "'schema_version' is missing"),
        (json.dumps({**json.loads(LINE.to_json()), "schema_version": 2}), "doesn't know schema version 2"),
        (json.dumps({**json.loads(LINE.to_json()), "night": "yesterday"}), "Invalid isoformat string"),
        (json.dumps({**json.loads(LINE.to_json()), "value": 0}), "value is 0, but must be a number above 0 or null"),
        (
            json.dumps({**json.loads(LINE.to_json()), "value": "fast"}),
            "value is fast, but must be a number above 0 or null",
        ),
        (json.dumps({**json.loads(LINE.to_json()), "arm": None}), "arm is of the wrong type"),
        (LINE.to_json()[:100], "line 1 column"),
        ("\xff\xfe", ""),
    ],
)
def test_a_broken_line_is_reported_and_skipped(tmp_path: Path, broken: str, says: str) -> None:
    """File, line number and reason are reported once, other lines are read, and the exit code is not 0."""
    path = tmp_path / "ledger.jsonl"
    good = [line.to_json() for line in series([1.0] * 30)]
    path.write_bytes("\n".join([*good[:10], broken, *good[10:], ""]).encode("latin-1"))
    ledger = history.read_ledger(path)
    assert 30 == len(ledger.lines)
    (sentence,) = ledger.broken
    assert sentence.startswith(f"{path}:11: not a line of a ledger (")
    assert says in sentence
    result = trends(ledger.lines)
    assert ("steady", 2) == (result[0].status, trend.exit_code(result, ledger.broken))
    assert "correct the line or remove it" in " ".join(trend.text(result, ledger.broken).split())


def test_a_line_reads_back(tmp_path: Path) -> None:
    """Every field reads back, and unknown keys of later versions are ignored."""
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps({**json.loads(LINE.to_json()), "colour": "red"}) + "\n")
    assert (LINE,) == history.read_ledger(path).lines
    assert history.Ledger() == history.read_ledger(tmp_path / "none.jsonl")


def test_csv_has_the_format_of_otava() -> None:
    """`time` is first, then attributes, then a column per series; missing values are filled from the
    neighbouring night.
    """
    other = replace(LINE, arm="baseline", metric="recovery", window="fault/kill-1", unit="s")
    lines = sorted(
        [*series([1.0, None, 3.0, 4.0]), *series([None, 5.0, 6.0], other)], key=lambda line: (line.night, line.run_id)
    )
    text, filled = trend.otava(lines)
    head, *table = csv.reader(io.StringIO(text))
    assert ["time", "run", "commit", "nightly/orders/baseline/recovery/fault/kill-1", "nightly/orders/kip951/produce.latency_p99/fault"] == head  # fmt: skip # noqa: E501
    assert [["5", "1"], ["5", "1"], ["6", "3"], ["6", "4"]] == [row[3:] for row in table]
    assert ["2026-06-01 00:00:00 +0000", "run-2026-06-01", "abc"] == table[0][:3]
    assert 3 == filled


def test_text_and_document() -> None:
    """Changed series are reported in full, undecided ones with reasons, steady ones as a count, in at most 80
    columns.
    """
    shifted, quiet, short = (
        series(SHIFTED),
        series([1.0] * 40, replace(LINE, arm="a")),
        series([1.0], replace(LINE, arm="b")),
    )
    result = trends([*shifted, *quiet, *short, *series([1.0], replace(LINE, arm="c"))])
    text = trend.text(result, ())
    assert "4 series: 1 regressed, 2 inconclusive, 1 steady" == text.splitlines()[0]
    told = " ".join(text.split())
    assert "regressed: nightly orders/kip951 produce.latency p99 in fault: 2.00 times the earlier value" in told
    assert "inconclusive: 2 series: the series has too few nights: 1 of 24; next: run 23 more nights" in told
    assert all(len(line) <= 80 for line in text.splitlines())
    row = next(row for row in json.loads(json.dumps(trend.document(result, ())))["series"] if row["change"])
    assert ("2026-07-31", 2.0) == (row["change"]["night"], row["change"]["ratio"])


WANDERING = [[float(v) for v in nights(np.random.default_rng(seed), 90, r=0.8)] for seed in range(120)]


def test_nights_that_resemble_their_neighbours_raise_no_alarm() -> None:
    """At an autocorrelation of 0.8, PELT alone sees a change in a fifth of 120 series; at most 7 % raise an alarm."""
    statuses = [judged(values).status for values in WANDERING]
    alarms = sum(status in ("regressed", "improved") for status in statuses)
    assert alarms / 120 <= 0.07 + 2 * (0.07 * 0.93 / 120) ** 0.5
    assert statuses.count("inconclusive") >= 10
    undecided = judged(WANDERING[statuses.index("inconclusive")])
    assert "which may be chance: nights resemble their neighbours (autocorrelation up to 0." in undecided.why
    assert (None, 2) == (undecided.change, trend.exit_code((undecided,), ()))


def test_a_shift_of_nights_that_depend_a_little_is_found() -> None:
    """Twenty series with an autocorrelation of 0.3 and a shift of a half, fifteen nights ago."""
    found = [[float(v) for v in nights(np.random.default_rng(seed), 75, SHIFT_AT, 1.5, 0.3)] for seed in range(20)]
    assert [judged(values).status for values in found].count("regressed") >= 17


def test_an_old_change_is_no_autocorrelation() -> None:
    """A series that improved by a half long ago, and lost half of that lately, has regressed."""
    rng = np.random.default_rng(5)
    levels = np.repeat([1.0, 0.5, 0.75], [40, 50, 30])
    values = [float(level * np.exp(rng.normal(0, 0.1))) for level in levels]
    found = judged(values)
    assert ("regressed", FIRST + timedelta(days=90)) == (found.status, found.change and found.change.night)


def test_a_change_that_only_short_segments_show_is_undecided() -> None:
    """Of two change points the clearer is accepted, but without the other its levels differ by less than 10 %."""
    values = [float(v) for v in nights(np.random.default_rng(76), 90, r=0.9)]
    found = trend.change_points(values)
    accepted, doubtful = trend.accepted_shifts(values, found)
    assert (2, accepted, 1) == (len(found), found[1:], len(doubtful))
    assert "inconclusive" == judged(values).status


def test_levels_without_noise_differ_for_certain() -> None:
    """Where nights do not vary, any shift is accepted, and a constant series has none."""
    assert ([3], []) == trend.accepted_shifts([1.0] * 3 + [2.0] * 3, [3])
    assert "steady" == judged([1.0] * 40).status
