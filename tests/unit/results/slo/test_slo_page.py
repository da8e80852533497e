"""The examples and tables of docs/SLO.md equal the SLO language."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.results.model.rules import RULES
from aftershock.results.slo import METRICS, Count, Measure, Recovery, SloSyntaxError, parse

_WHOLE = (Path(__file__).parents[4] / "docs" / "SLO.md").read_text(encoding="utf-8")
PAGE = re.sub("<!-- second readings: begin.*second readings: end", "", _WHOLE, flags=re.DOTALL)
_ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)
_ERROR = re.compile(r"^((?:produce|consume)\..+?)  +(\d+): (.+)$", re.MULTILINE)


def rows() -> Iterator[tuple[str, list[str]]]:
    """Return the examples with the other cells of their table row; the table of metrics and subjects has no
    examples.
    """
    for example, rest in _ROW.findall(PAGE):
        if example not in METRICS and example != "recovery":
            yield example, [cell.strip() for cell in rest.split("|")]


EXAMPLES = dict(rows())


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_an_slo(text: str) -> None:
    """Each example parses, and its printed form parses again."""
    assert parse(text) == parse(str(parse(text)))


@pytest.mark.parametrize("text", [text for text, cells in EXAMPLES.items() if len(cells) == 3])
def test_unit_and_minimum_are_those_of_the_language(text: str) -> None:
    """The columns `unit` and `needs` equal the values in the code."""
    slo, (_, unit, needs) = parse(text), EXAMPLES[text]
    counted = slo.of.about.counted if isinstance(slo, Measure) else "records"
    plural = counted if slo.needs() > 1 else counted[:-1]
    assert f"{slo.needs()} {plural}" == needs
    assert unit == (slo.of.about.unit if isinstance(slo, Measure) else "time")


def test_every_word_has_an_example() -> None:
    """The examples use every metric, rule, window, subject and aggregate."""
    slos = [parse(text) for text in EXAMPLES]
    measures = [slo for slo in slos if isinstance(slo, Measure)]
    assert set(METRICS) == {selection.metric for slo in measures for selection in slo.selections}
    assert set(RULES) == {slo.rule for slo in slos if isinstance(slo, Count)}
    assert {None, "rack", "partition", "broker", "producer", "epoch", "member"} == {slo.each for slo in measures}
    assert {"max", "mean"} < {slo.of.aggregate for slo in measures}
    assert {None, "warmup", "steady", "fault", "recovery", "fault/kill-1"} == {slo.of.window for slo in measures}
    assert any(isinstance(slo, Recovery) and slo.terms for slo in slos)


def test_the_subjects_of_each_metric() -> None:
    """The table lists the subjects that each metric supports."""
    told = {
        metric: each.strip()
        for metrics, each in re.findall(r"^\| ((?:`[a-z_.]+` ?)+) \|(.*)\|$", PAGE, re.MULTILINE)
        for metric in re.findall(r"`([a-z_.]+)`", metrics)
        if metric in METRICS
    }
    assert told == {name: ", ".join(metric.each) or "none" for name, metric in METRICS.items()}


@pytest.mark.parametrize(("text", "column", "says"), _ERROR.findall(PAGE))
def test_errors_on_the_page_are_those_of_the_parser(text: str, column: str, says: str) -> None:
    with pytest.raises(SloSyntaxError) as error:
        parse(text)
    assert (int(column), says) == (error.value.column, str(error.value))
