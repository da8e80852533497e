"""Judge six stored runs again and compare the results with those of version 0.1.0.

``tests/data/evidence`` holds runs that Aftershock 0.1.0 recorded on real clusters, each with an ``expected`` folder:
the verdict, terminal summary, story and report that 0.1.0 produced from the same files. The comparison is therefore
also the test that evidence written by 0.1.0 stays readable. Checks must be equal field by field, and texts must
contain the same figures in the same order; only wording may change. The README there describes the runs.
"""

import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.cli.__main__ import app

EVIDENCE = Path(__file__).parents[2] / "data" / "evidence"
RUNS = ("readme", "demo", "failing", "commits", "attached", "kip")
VERDICT_FIELDS = ("run_id", "status", "plan", "seed", "arms")
CHECK_FIELDS = (
    *("id", "kind", "subject", "arm", "phase", "status", "observed", "threshold", "unit", "n", "minimum", "censored"),
    *("at", "samples", "gate"),
)
TEXTS = ("summary.txt", "explain.txt", "explain-record.txt", "report.md")
PAGE = ("failing", "report.html")
"""The one page that is compared: of the run with the most kinds of checks. All pages are drawn by one template."""
WORDING_FIELDS = ("why", "next")
DIFFERENCES_MAX = 10  # per text
CONTEXT = 3  # figures quoted before and after a difference

# One JVM judges every run. A process of its own, because the session of the other tests must not end with it.
JUDGE = """
import json, sys
from pathlib import Path
from aftershock.results.judge import Judge
from aftershock.results.report.verdict_formats import summary

folder = Path(sys.argv[1])
runs = [folder / name for name in sys.argv[2:]]
with Judge(folder / "spark.log", None, print) as judge:
    for run, verdict in judge.many(runs).items():
        if isinstance(verdict, Exception):
            raise verdict
        (run / "summary.txt").write_text(summary(verdict))
        (run / "exit_code").write_text(str(verdict.exit_code))
"""

# A figure is a number that is no part of a name: `4.2`, `250` in `250ms` and `3` in `orders/3`; not `p95` or `kill-1`.
_FIGURE = re.compile(r"(?<![\w.])(?<!\w-)\d+(?:\.\d+)?(?=(?:us|ms|s|[kMG]?B|x)?(?!\w|-\w|\.\d))")
_MEMBER = re.compile(r"[0-9a-f]{8}-\s?(?:[0-9a-f]{4}-\s?){3}[0-9a-f]{12}")  # a group member's id may be wrapped
_LEFT_OUT = re.compile(r"\b\d+ (?:of \d+ [\w ]+ are shown;|more \w+ are in analysis\.json)")  # notes that 0.1.0 lacks
_UNSEEN = re.compile(r"<(svg|style|script)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_SPELT = ("0", "1")  # "none of 12" and "0 of 12" are the same statement


def texts_of(name: str) -> tuple[str, ...]:
    return (*TEXTS, PAGE[1]) if name == PAGE[0] else TEXTS


@pytest.mark.spark
@pytest.mark.parametrize("names", [RUNS[::2], RUNS[1::2]], ids=" ".join)
def test_stored_runs_are_judged_as_version_0_1_0_judged_them(tmp_path: Path, names: Sequence[str]) -> None:
    """Evidence of 0.1.0 is readable, and its checks, exit codes and reported figures are those of 0.1.0."""
    for name in names:
        shutil.copytree(EVIDENCE / name, tmp_path / name, ignore=shutil.ignore_patterns("expected"))
    child = [sys.executable, "-P", "-c", JUDGE, str(tmp_path), *names]
    judged = subprocess.run(child, capture_output=True, text=True, timeout=240, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr

    differences: list[str] = []
    wording: list[tuple[str, str]] = []
    for name in names:
        before, after = stored(name), produced(tmp_path / name, expected(name)["record"])
        lines = verdict_differences(verdict_of(before), verdict_of(after))
        if (code := int((tmp_path / name / "exit_code").read_text())) != expected(name)["exit_code"]:
            lines.append(f"exit code: {expected(name)['exit_code']} became {code}")
        wording += check_wording(verdict_of(before), verdict_of(after))
        spaced = [check["id"] for check in verdict_of(after)["checks"] if check["why"] != check["why"].strip()]
        lines += [f"{check}: why begins or ends with a space" for check in spaced]
        for text in texts_of(name):
            lines += [f"{text}: {line}" for line in figure_differences(before[text], after[text])]
            if text != "report.md":  # a table of the checks, whose wording is compared above
                wording += text_wording(before[text], after[text])
        differences += [f"{name}: {line}" for line in lines]
        if "AFTERSHOCK_WRITE_EXPECTED" in os.environ:
            for file, content in after.items():
                (EVIDENCE / name / "expected" / file).write_text(content)

    page = wording_page(wording)
    (tmp_path / "wording.txt").write_text(page)
    print(page)
    assert not differences, "\n".join(differences)


def test_the_stored_runs_are_of_version_0_1_0_and_have_every_status() -> None:
    """The comparison is one with real evidence of 0.1.0 that passed, failed and remained undecided."""
    versions = {json.loads((EVIDENCE / name / "run.json").read_text())["versions"]["aftershock"] for name in RUNS}
    checks = [check for name in RUNS for check in verdict_of(stored(name))["checks"]]
    assert versions == {"0.1.0"}
    assert {check["status"] for check in checks} == {"PASS", "FAIL", "INCONCLUSIVE"}


@pytest.mark.parametrize("field", CHECK_FIELDS)
def test_a_changed_field_of_a_check_is_reported(field: str) -> None:
    """No field of a check can change unnoticed."""
    before = verdict_of(stored("failing"))
    after = deepcopy(before)
    after["checks"][3][field] = "changed"
    assert any(field in line for line in verdict_differences(before, after))


def _remove(checks: list[dict[str, Any]]) -> None:
    del checks[5]


def _repeat(checks: list[dict[str, Any]]) -> None:
    checks.append(deepcopy(checks[5]))


def _swap(checks: list[dict[str, Any]]) -> None:
    checks[5], checks[6] = checks[6], checks[5]


def _excuse(checks: list[dict[str, Any]]) -> None:
    next(check for check in checks if check["status"] == "FAIL")["status"] = "PASS"


def _measure_more(checks: list[dict[str, Any]]) -> None:
    next(check for check in checks if check["observed"])["observed"] += 0.001


def _drop_sample(checks: list[dict[str, Any]]) -> None:
    next(check for check in checks if check["samples"])["samples"].pop()


@pytest.mark.parametrize("plant", [_remove, _repeat, _swap, _excuse, _measure_more, _drop_sample])
def test_a_planted_change_of_the_checks_is_reported(plant: Callable[[list[dict[str, Any]]], None]) -> None:
    """A check that is missing, repeated, out of order, or has another result is a difference."""
    before = verdict_of(stored("failing"))
    after = deepcopy(before)
    plant(after["checks"])
    assert verdict_differences(before, after)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in RUNS for text in texts_of(name)])
def test_a_changed_figure_in_a_text_is_reported(name: str, text: str) -> None:
    """Each stored text has figures, and one that changes, is missing or is inserted is a difference."""
    before = stored(name)[text]
    spans = [match.span() for match in _FIGURE.finditer(before) if match[0] not in _SPELT]
    start, end = spans[len(spans) // 2]
    for planted in ("4711.5", "", f"{before[start:end]} of 4711"):
        assert figure_differences(before, before[:start] + planted + before[end:])


def test_changed_wording_is_listed_once_and_is_no_difference() -> None:
    """Sentences may be rewritten: the new text is listed next to the old one, and the comparison stays clean."""
    before = verdict_of(stored("readme"))
    after = deepcopy(before)
    for check in after["checks"]:
        check["why"] = check["why"].replace("none of", "0 of")
    assert verdict_differences(before, after) == []
    assert figure_differences("  none of 7612 records were\n  lost", "0 of 7612 records lost") == []
    pairs = [pair for pair in check_wording(before, after) if "records" in pair[0]]
    assert len(pairs) > 1
    assert wording_page(pairs).count("none of # records") == 1


def test_figures_are_read_from_sentences_and_not_from_names() -> None:
    """A figure keeps its place with or without a unit; numbers inside ids, versions and member names are left out."""
    text = "p95 of kill-1 on orders/10 is 132.019 ms, 50ms, +2.918 s, 99.9%, record 7:1580, Kafka 4.3.1, b-83b5-42-x"
    assert figures(text) == ["10", "132.019", "50", "2.918", "99.9", "7", "1580"]


def expected(name: str) -> dict[str, Any]:
    return dict(json.loads((EVIDENCE / name / "expected" / "expected.json").read_text()))


def stored(name: str) -> dict[str, str]:
    """The verdict and texts of version 0.1.0, by file name."""
    folder = EVIDENCE / name / "expected"
    texts = {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.name != "expected.json"}
    return {name: page_text(text) if name.endswith(".html") else text for name, text in texts.items()}


def produced(run: Path, record: str) -> dict[str, str]:
    """The verdict and texts of a judged run as of today, by the same file names."""
    texts = {
        "verdict.json": (run / "verdict.json").read_text(),
        "summary.txt": (run / "summary.txt").read_text(),
        "explain.txt": printed(["explain", str(run)]),
        "explain-record.txt": printed(["explain", str(run), "--record", record]),
        "report.md": printed(["report", str(run), "--format", "md"]),
    }
    if run.name == PAGE[0]:
        printed(["report", str(run)])
        texts["report.html"] = page_text((run / "report.html").read_text())
    return {name: text.replace(str(run), run.name) for name, text in texts.items()}


def printed(command: list[str]) -> str:
    """Return the output of an `aftershock` command, which must succeed."""
    with redirect_stdout(io.StringIO()) as output:
        assert app(command, standalone_mode=False) == 0, command
    return output.getvalue()


def page_text(page: str) -> str:
    """The text of an HTML page, without charts and notes on left-out rows; each element's text is on its own lines."""
    lines = _LEFT_OUT.sub("", html.unescape(_TAG.sub("\n", _UNSEEN.sub("", page)))).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def verdict_of(texts: Mapping[str, str]) -> dict[str, Any]:
    return dict(json.loads(texts["verdict.json"]))


def verdict_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Compare two ``verdict.json`` documents; one line per difference other than wording."""
    differences = [
        f"{field}: {before[field]!r} became {after[field]!r}"
        for field in VERDICT_FIELDS
        if before[field] != after[field]
    ]
    old, new = before["checks"], after["checks"]
    for change, start, end, new_start, new_end in SequenceMatcher(a=_names(old), b=_names(new)).get_opcodes():
        if change == "equal":
            pairs = zip(old[start:end], new[new_start:new_end], strict=True)
            differences += [line for pair in pairs for line in _field_differences(*pair)]
        else:
            names = f"{_names(old[start:end])} became {_names(new[new_start:new_end])}"
            differences.append(f"checks differ in id, subject or order from check {start} on: {names}")
    return differences


def _names(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{check['id']} ({check['subject']})" for check in checks]


def _field_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for field in CHECK_FIELDS:
        if before[field] != after[field]:
            yield f"{before['id']} ({before['subject']}): {field} {before[field]!r} became {after[field]!r}"


def figures(text: str) -> list[str]:
    """The numbers of a text in their order, except 0 and 1, which a sentence may spell out."""
    return [figure for figure in _FIGURE.findall(_MEMBER.sub("", text)) if figure not in _SPELT]


def figure_differences(before: str, after: str) -> list[str]:
    """Compare the sequences of figures of two texts; one line per difference, with the figures around it."""
    old, new = figures(before), figures(after)
    if old == new:
        return []
    changes = SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    lines = [
        f"figures [{' '.join(old[start:end])}] became [{' '.join(new[new_start:new_end])}]"
        f" after [{' '.join(old[max(start - CONTEXT, 0) : start])}]"
        f" and before [{' '.join(old[end : end + CONTEXT])}]"
        for change, start, end, new_start, new_end in changes
        if change != "equal"
    ]
    more = [f"and {len(lines) - DIFFERENCES_MAX} more"] if len(lines) > DIFFERENCES_MAX else []
    return [*lines[:DIFFERENCES_MAX], *more]


def check_wording(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of old and new ``why`` and ``next`` where they differ."""
    checks = dict(zip(_names(after["checks"]), after["checks"], strict=True))
    pairs = [
        (str(check[field]), str(checks[name][field]))
        for name, check in zip(_names(before["checks"]), before["checks"], strict=True)
        if name in checks
        for field in WORDING_FIELDS
    ]
    return [pair for pair in pairs if pair[0] != pair[1]]


def text_wording(before: str, after: str) -> list[tuple[str, str]]:
    """Pairs of old and new passages of two texts where they differ."""
    old, new = ([" ".join(line.split()) for line in text.splitlines()] for text in (before, after))
    changes = SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    return [
        (" ".join(old[start:end]), " ".join(new[new_start:new_end]))
        for change, start, end, new_start, new_end in changes
        if change != "equal"
    ]


def wording_page(pairs: Sequence[tuple[str, str]]) -> str:
    """All changes of wording, each once: figures are masked, because hundreds of checks share a sentence."""
    masked = dict.fromkeys(tuple(_FIGURE.sub("#", text) for text in pair) for pair in pairs)
    lines = [f"- {old}\n+ {new}\n" for old, new in masked if old != new]
    return "\n".join([f"{len(lines)} changes of wording since 0.1.0 (- old, + new, # a figure)\n", *lines])
