"""The gauges of a verdict: one for each figure that was observed, and none for what was not."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aftershock.errors import AftershockError
from aftershock.results.evidence.files import read_json, read_object
from aftershock.results.model.answer import Answer, Normality
from aftershock.results.model.check import Status, Verdict, from_json
from aftershock.results.report.prometheus import write_gauges

STORED = Path(__file__).parents[3] / "data" / "evidence" / "demo"
JUDGED = from_json(read_json(STORED / "expected" / "verdict.json"))
KILLED = Answer(
    *("orders/base", "kill-1", 2, True, 5, 3, None, 0),
    {"produce": 5_100_000, "consume": None},
    None,
    Normality(2, 1, 6_400_000, 9_000_000, 2, 0),
)


def written(verdict: Verdict, tmp_path: Path) -> dict[tuple[str, ...], float]:
    """Return the samples of a verdict's file, by the name of the gauge and the values of its labels but the plan."""
    file = tmp_path / "run.prom"
    write_gauges(verdict, read_object(STORED / "run.json"), file)
    samples = [one for family in text_string_to_metric_families(file.read_text()) for one in family.samples]
    assert {"demo"} == {sample.labels.pop("plan") for sample in samples}
    return {(one.name.removeprefix("aftershock_"), *one.labels.values()): one.value for one in samples}


def test_a_stored_run(tmp_path: Path) -> None:
    verdict = JUDGED
    found = written(verdict, tmp_path)
    assert 1.0 == found["run_status", verdict.status.value.lower()]
    assert 1.0 == sum(value for (name, *_), value in found.items() if name == "run_status")
    assert len(verdict.checks) == sum(value for (name, *_), value in found.items() if name == "checks")
    assert found["run_start_time_seconds",] > 1.7e9
    for answer in verdict.answers:
        assert answer.lost == found["records_lost", answer.client, answer.fault or "whole run", "false"]


def test_what_was_permitted_or_not_observed_is_told_apart(tmp_path: Path) -> None:
    found = written(replace(JUDGED, answers=(KILLED,)), tmp_path)
    of = ("orders/base", "kill-1")
    assert (3.0, 2.0) == (found["records_lost", *of, "true"], found["records_lost", *of, "false"])
    assert not any(name == "records_duplicated" for name, *_ in found)
    assert (5.1, 0.0) == (found["stopped_seconds", *of, "produce"], found["stopped_seconds", *of, "consume"])
    assert 0.0 == found["recovered", *of]
    assert ("recovery_seconds", *of) not in found


@pytest.mark.parametrize("status", Status)
def test_each_status_has_one_gauge(status: Status, tmp_path: Path) -> None:
    verdict = JUDGED
    check = replace(next(check for check in verdict.checks if check.gate), status=status)
    found = written(replace(verdict, checks=(check,)), tmp_path)
    assert {word.value.lower(): float(word is status) for word in Status} == {
        label: value for (name, *labels), value in found.items() if name == "run_status" for label in labels
    }


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(AftershockError, match="can't be written"):
        write_gauges(JUDGED, {}, tmp_path / "missing" / "run.prom")
