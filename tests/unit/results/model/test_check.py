"""The verdict of several checks, its document and its terminal summary."""

import json
from dataclasses import replace

import pytest

from aftershock.results.model.check import Check, Status, Verdict, from_json
from aftershock.results.model.text import tally
from aftershock.results.report.verdict_formats import WIDTH, cases, summary

GOOD = Check(
    "slo/produce.gap", "slo", "arm=a", Status.PASS, 10, 1, "s", "all well", observed=0.5, threshold=6.0, arm="a"
)


def verdict(*statuses: Status) -> Verdict:
    checks = tuple(replace(GOOD, status=status, subject=f"arm={index}") for index, status in enumerate(statuses))
    return Verdict("run-1", "demo", 7, ("a",), checks)


@pytest.mark.parametrize(
    ("statuses", "worst", "code"),
    [
        ((Status.PASS, Status.PASS), Status.PASS, 0),
        ((Status.PASS, Status.INCONCLUSIVE), Status.INCONCLUSIVE, 2),
        ((Status.FAIL, Status.INCONCLUSIVE), Status.FAIL, 1),
        ((Status.FAIL, Status.ERROR, Status.PASS), Status.ERROR, 3),
        ((), Status.INCONCLUSIVE, 2),
    ],
)
def test_the_worst_check_decides(statuses: tuple[Status, ...], worst: Status, code: int) -> None:
    """ERROR > FAIL > INCONCLUSIVE > PASS; a verdict without checks is not PASS."""
    assert verdict(*statuses).status is worst
    assert verdict(*statuses).exit_code == code


def test_the_document_has_all_keys_and_reads_back() -> None:
    """The keys of design 5.4 are present, and reading the document gives the same verdict."""
    samples = replace(GOOD, samples=((0, 7), (1, 9)))
    written = Verdict("run-1", "demo", 7, ("a",), (samples,))
    document = json.loads(written.text())
    assert set(document) == {"schema_version", "run_id", "status", "plan", "seed", "arms", "answers", "checks"}
    assert set(document["checks"][0]) >= {
        "id", "kind", "subject", "arm", "phase", "status", "observed", "threshold", "unit", "n", "censored", "at",
        "why", "next", "samples",
    }  # fmt: skip
    assert document["checks"][0]["samples"] == [[0, 7], [1, 9]]
    assert from_json(document) == written


def test_the_summary_starts_with_the_verdict_and_fits_the_terminal() -> None:
    """Long and hostile names are cut, wrapped and escaped; checks that did not pass come with their next step."""
    bad = replace(
        GOOD,
        id="slo/produce.latency-p99.9-fault/" + "x" * 90,
        subject="arm=\x1b[2J" + "y" * 50,
        status=Status.FAIL,
        observed=None,
        why="p99.9 is censored " * 12,
        next="look",
        samples=tuple((0, seq) for seq in range(20)),
    )
    text = summary(Verdict("run-1", "demo\x1b[31m", 7, ("a",), (GOOD, bad, replace(GOOD, kind="witness"))))
    first, *_ = text.splitlines()
    assert first.startswith("FAIL: demo?[31m, seed 7")
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "\x1b" not in text
    assert "records: 0:0, 0:1" in text
    assert "next: look" in text
    assert "never" in text
    assert "witness      1 of 1 passed" in text


def test_checks_are_counted_in_words() -> None:
    """Counts start with the worst status and omit statuses that do not occur."""
    assert tally([Status.PASS] * 3) == "3 of 3 checks passed"
    assert tally([Status.PASS, Status.FAIL, Status.INCONCLUSIVE]) == "1 of 3 checks failed, 1 inconclusive"


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_judged_for_too_little_of_the_time_is_in_the_first_lines(strict: bool) -> None:
    """It is not counted as passed, and decides only if the verdict is strict. JUnit has it as an error only then."""
    brief = replace(
        GOOD,
        id="obligation/consume",
        kind="obligation",
        status=Status.INCONCLUSIVE,
        why="judged for 9 % of the time",
        next="lower the arm's `socket.timeout.ms`",
        gate=strict,
        share=0.093,
    )
    judged = Verdict("run-1", "demo", 7, ("a",), (GOOD, brief, replace(brief, subject="arm=b", share=0.0931)))
    first, *_ = judged_lines = summary(judged).splitlines()

    assert ("(1 of 1 checks passed; 2 more are only reported)" in " ".join(judged_lines)) == (not strict)
    assert first.startswith("INCONCLUSIVE" if strict else "PASS")
    about = " ".join(line.strip() for line in judged_lines[1:6])
    assert "judged for 9 % of the time after warm-up: obligation/consume of a, obligation/consume of b." in about
    assert "To judge more: lower the arm's `socket.timeout.ms`" in about
    assert judged.exit_code == (2 if strict else 0)
    document = json.loads(judged.text())
    assert [check.get("share") for check in document["checks"]] == [None, 0.093, 0.0931]
    assert from_json(document) == judged
    errors = [case.find("error") is not None for case in cases(judged, "aftershock.demo")]
    assert errors == [False, strict, strict]
