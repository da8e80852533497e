"""The report page: offline, escaped, small, and byte for byte equal for equal verdicts."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftershock.errors import EvidenceError
from aftershock.results.measure.measure import BINS_OF_ALL_MAX, BINS_OF_ALL_WITH_COMMITS_MAX
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.issue import EVENTS_MAX, PASTED_MAX
from aftershock.results.report.page import CHAPTERS_MAX, CHECKS_MAX, ROWS_MAX, write_report
from aftershock.results.report.plots import Compared, forest
from aftershock.results.report.svg import PALETTE
from aftershock.results.report.tables import METRICS, QUANTILES
from aftershock.results.report.timeline import panels
from aftershock.tests.unit.results.evidence_factory import Made

HOSTILE = "<script>alert(1)</script>\"'&$x^2$"
BYTES_MAX, WORST_BYTES_MAX = 500_000, 1_200_000


class _TagCollector(HTMLParser):
    """Collect tags and attributes that could load or run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.risky: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.risky += [(name, value) for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def bins(count: int = 50) -> list[dict[str, Any]]:
    keys = [("produce.latency", "orders/baseline", "a"), ("consume.latency", "orders/patient", "b")]
    return [
        {
            "metric": metric,
            "client": client,
            "rack": rack,
            "start_us": at * 1_000_000,
            "n": 60,
            "censored": int(at % 7 == 0),
        }
        | {"p50_us": 5000 + at, "p99_us": None if at % 7 == 0 else 9000, "slowest_us": 12_000}
        for metric, client, rack in keys
        for at in range(count)
    ]


def analysis(rows: list[dict[str, Any]]) -> dict[str, Any]:
    at = dict.fromkeys(("0.5", "0.9", "0.95", "0.99", "0.999"), 5000) | {"1.0": None}
    named = {"metric": "produce.latency", "client": "orders/baseline", "window": "run"}
    return {
        "schema_version": 1,
        "distributions": [named | {"n": 600, "censored": 1, "slowest_us": 9000, "at": at}],
        "gaps": [named | {"n": 600, "longest_us": 70_000}],
        "recoveries": [
            {"fault": "kill-1", "client": "orders/baseline", "n": 9, "recovered_us": None, "observed_us": 9}
        ],
        "bin_us": 1_000_000,
        "bins": rows,
        "crossed": {},
        "host": {},
    }


Judged = Callable[[Made, list[dict[str, Any]]], Path]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    def write_run(made: Made, rows: list[dict[str, Any]]) -> Path:
        home = made.write(tmp_path / "run")
        name = made.timeline["name"]
        bad = Check("slo/produce.gap", "slo", f"arm={name}", Status.FAIL, 1, 1, "s", f"why {name}", at=f"{name}:1:1")
        good = Check("witness/kill-1", "witness", "fault=kill-1", Status.PASS, 1, 1, "", "paused", samples=((0, 7),))
        (home / "verdict.json").write_text(Verdict("run-1", name, 7, ("baseline",), (good, bad)).text())
        (home / "analysis.json").write_text(json.dumps(analysis(rows)))
        return home

    return write_run


def test_the_verdict_comes_first_and_nothing_is_loaded(judged: Judged, made: Made) -> None:
    """The page is one file without links and addresses except SVG namespaces and the chart library's name; the sentence
    is the first heading. It has two scripts and the numbers of the charts.
    """
    page = write_report(judged(made, bins())).read_text()
    seen = _TagCollector(page)
    assert ["", "", ' type="application/json" id="data"'] == sorted(re.findall("<script([^>]*)>", page))
    assert [risk for risk in seen.risky if not (risk[1] or "").startswith("#")] == []
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
        "https://github.com/leeoniya/uPlot",
    }
    first = re.search(r"<h1>(.*?)</h1>", page)
    assert first
    assert first[1] == "FAIL: demo, seed 7: a requirement was violated (1 of 2 checks failed)"
    order = [
        "What needs attention",
        "<h2>The run on one time axis",
        "<summary>Produce latency",
        "<h2>Checks",
        "Latency by phase",
        "<h2>Faults",
        "<h2>What happened",
        "<h2>Obligations",
        "<h2>Recovery",
    ]
    places = [page.index(title) for title in [*order, "<h2>Environment", "<h2>Repeat this run"]]
    assert places == sorted(places)
    assert "aftershock run demo --seed 7" in page


def test_obligations_are_listed_by_span_with_reasons(judged: Judged, made: Made) -> None:
    """Clients with the same obligations share a table; the grace after the killed leader is explained."""
    page = write_report(judged(made, bins())).read_text()
    assert "arm=baseline produce, arm=patient produce: progress required for " in page
    reason = r"kill-1 began: a grace of [\d.]+ s = .* broker\.session\.timeout\.ms"
    assert re.search(rf"<td>not required</td>.*{reason}", page)


def test_faults_are_lanes_and_bands_of_the_charts(judged: Judged, made: Made) -> None:
    """Each fault has its colour in a lane, in the bands of the charts and in the table with its witness."""
    page = write_report(judged(made, bins())).read_text()
    assert "arm=baseline, producer in rack a" in page
    assert "arm=patient, consumer in rack b" in page
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert [*PALETTE[:3]] == [colour for _, _, colour in data["bands"]]
    assert [50, 50] == [len(chart["x"]) for chart in data["charts"]]
    for fault, colour in zip(("latency-1", "kill-1", "reassign-1"), PALETTE, strict=False):
        assert re.search(rf'<a href="#story-\d" class="seg fault" style="[^"]*--c:{colour}">{fault}: ', page)
    assert "never" not in page.split("<h2>Faults</h2>")[1].split("</section>")[0]


def test_hostile_names_are_escaped(judged: Judged, made: Made) -> None:
    """Markup in names of plan, arms, faults, errors and commands is shown literally."""
    hostile = made.copy()
    hostile.timeline |= {"name": HOSTILE, "why": HOSTILE}
    hostile.run |= {"command": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    hostile.timeline["workloads"][0]["arms"] = {HOSTILE: {}}
    hostile.timeline["steps"][0]["id"] = HOSTILE
    for row in hostile.phases + hostile.journal:
        row["fault"] = HOSTILE if row["fault"] == "latency-1" else row["fault"]
    leader = {"topic": HOSTILE, "topic_id": "t", "partition": 0, "epoch": 0, "leader": 1, "isr": [1], "unclean": False}
    leader |= {"start_offset": 0, "after_us": 0, "by_us": 1, "sources": ["polled"]}
    hostile.events += [
        {"t_us": 27_000_000, "event": name, "arm": HOSTILE, "workload": "orders", "op": "produce", "error": HOSTILE}
        for name in ("client_error", HOSTILE)
    ]
    rows = [row | {"client": f"orders/{HOSTILE}"} for row in bins()]
    home = judged(hostile, rows)
    (home / "leaders.jsonl").write_text(json.dumps(leader) + "\n")
    told = json.loads((home / "analysis.json").read_text())
    slow = {"producer_id": 0, "seq": 1, "topic": HOSTILE, "partition": 0, "offset": 1, "intended_us": 27_000_000}
    slow |= {"sent_us": 27_000_001, "done_us": None, "status": "failed", "error": HOSTILE}
    told["stalls"] = [
        {"side": "produce", "client": HOSTILE, "partition": 0, "topic": HOSTILE, "start_us": 1, "end_us": 2}
    ]
    told["slowest"] = [{"op": "produce", "client": f"orders/{HOSTILE}", "records": [slow]}]
    told["lag"] = [{"client": HOSTILE, "seconds": [[1_000_000, 1, 1]]}]
    (home / "analysis.json").write_text(json.dumps(told))
    page = write_report(home).read_text()
    assert page.count("<script") == 3
    assert page.count("&lt;script&gt;") > 30
    assert "alert" not in "".join(re.findall("<script.*?</script>", page, re.DOTALL))


def test_an_older_analysis_without_racks_is_drawn(judged: Judged, made: Made) -> None:
    """A run whose bins have no racks has its plot, with a panel per arm."""
    rows = [{name: value for name, value in row.items() if name != "rack"} for row in bins()]
    page = write_report(judged(made, rows)).read_text()
    assert ">arm=baseline</h3>" in page


def test_an_arm_in_two_racks_has_two_panels() -> None:
    """Panels are per client and rack in the order of clients, each with its own bins."""
    rows = [row | {"rack": rack} for rack in ("a", "c") for row in bins(3) if row["metric"] == "produce.latency"]
    found = panels(rows, {"orders/patient": "arm=patient", "orders/baseline": "arm=baseline"}, "producer")
    assert {"arm=baseline, producer in rack a": 3, "arm=baseline, producer in rack c": 3} == {
        title: len(seen) for title, seen in found.items()
    }


def test_omitted_panels_are_counted(made: Made, judged: Judged) -> None:
    """With nine clients and eight panels, the caption says that the analysis has one more client."""
    many = made.copy()
    many.timeline["workloads"][0]["arms"] = {f"arm-{index}": {} for index in range(9)}
    rows = [row | {"client": f"orders/arm-{index}"} for row in bins(3) for index in range(9)]
    page = write_report(judged(many, rows)).read_text()
    assert page.count("1 more panels are in analysis.json") == 2


def worst_plausible(made: Made, sides: Sequence[str], bins_of_one: int) -> tuple[Made, Verdict, dict[str, Any]]:
    """Return eight arms, twelve faults, sixty checks with twenty samples each, and an hour of noise per side."""
    run, rng = made.copy(), np.random.default_rng(7)
    arms, faults = [f"retry-backoff-{index}" for index in range(8)], [f"kill-the-leader-{index}" for index in range(12)]
    run.timeline["workloads"][0]["arms"] = {arm: {} for arm in arms}
    run.timeline["steps"] = [made.timeline["steps"][0] | {"id": fault} for fault in faults]
    run.phases = [phase for phase in run.phases if phase["fault"] is None] + [
        {"name": "fault", "fault": fault, "start_us": i * 9_000_000, "end_us": i * 9_000_000 + 5_000_000}
        for i, fault in enumerate(faults)
    ]
    lines = [line for line in made.journal if line["fault"] == "latency-1"]
    times = {"intended": 0, "healed": 5_000_000}
    run.journal = [
        line | {"fault": fault, "t_us": i * 9_000_000 + times.get(line["state"], 1_000_000)}
        for line in lines
        for i, fault in enumerate(faults)
    ]
    why = "p99 in the fault's window is 1234.5 ms, which is more than was asked for " * 2
    samples = tuple((producer, 1_000_000 + producer) for producer in range(20))
    checks = [
        Check(
            f"slo/produce.latency-p99.9-fault/{faults[index % 12]}",
            "slo",
            f"arm={arms[index % 8]}",
            Status.FAIL,
            36_000,
            10_000,
            "ms",
            why,
        )
        for index in range(60)
    ]
    checks = [
        replace(check, observed=1234.5, threshold=250.0, next=why, at="plan.yaml:21:5", samples=samples)
        for check in checks
    ]
    clients = [f"orders/{arm}" for arm in arms]
    metrics = [metric for metric in METRICS if metric.split(".")[0] in sides]
    noise = rng.lognormal(9, 1, (len(sides), 8, bins_of_one, 3)).astype(int)
    rows = [
        {
            "metric": metric,
            "client": client,
            "rack": "a",
            "start_us": at * 12_000_000,
            "n": 720,
            "censored": int(at % 5 == 0),
        }
        | dict(zip(("p50_us", "p99_us", "slowest_us"), map(int, noise[plot, number, at].cumsum()), strict=True))
        for plot, metric in enumerate(f"{side}.latency" for side in sides)
        for number, client in enumerate(clients)
        for at in range(bins_of_one)
    ]
    windows = ["warmup", "steady", "fault", "recovery", "run", *(f"fault/{fault}" for fault in faults)]
    named = [{"client": client, "window": window, "n": 123_456} for client in clients for window in windows]
    at = dict.fromkeys(QUANTILES, 1_234_567)
    told = analysis(rows) | {
        "bin_us": 12_000_000,
        "distributions": [
            row | {"metric": metric, "censored": 1234, "slowest_us": 1_234_567, "at": at}
            for metric in metrics
            for row in named
        ],
        "gaps": [row | {"metric": f"{side}.gap", "longest_us": 7_654_321} for side in sides for row in named],
        "recoveries": [
            {"fault": fault, "client": client, "n": 123_456, "recovered_us": 7_654_321, "observed_us": 9}
            for fault in faults
            for client in clients
        ],
    }
    told |= newer(clients, metrics, faults)
    return run, Verdict("run-1", "worst", 7, tuple(arms), tuple(checks)), told


def newer(clients: Sequence[str], metrics: Sequence[str], faults: Sequence[str]) -> dict[str, Any]:
    """Return the other parts of an analysis at their longest: full spectra, an hour of lag, ten slow records
    per client.
    """
    points = [[1 - 10 ** (-step / 24), 1000 + 977 * step * step] for step in range(120)]
    named = [(metric, client) for metric in metrics for client in clients]
    slow = {"producer_id": 7, "topic": "orders", "partition": 23, "offset": 1_234_567, "intended_us": 45_281_304}
    slow |= {"sent_us": 45_290_884, "status": "ok", "error": None, "broker_id": 3, "leader_epoch": 7, "attempts": 3}
    records = [slow | {"seq": 1_000_000 + index, "done_us": 50_000_000 + index} for index in range(10)]
    flow = {"window": "run", "n": 123_456, "bytes": 123_456_789, "p50_us": 12_345, "p99_us": 1_234_567}
    racks = [(client, op, there) for client in clients for op in ("produce", "consume") for there in "abc"]
    percentiles = dict.fromkeys(("avg_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms", "p999_ms"), 1234.5)
    perf = {"records": 123_456, "seconds": 3600.0, "records_per_s": 34.3, "mb_per_s": 0.03, **percentiles}
    stall = {"side": "produce", "partition": None, "start_us": 10_000_000, "end_us": 13_000_000}
    return {
        "spectra": [
            {"metric": metric, "client": client, "window": window, "points": points}
            for metric, client in named
            for window in ("steady", "fault", *(f"fault/{fault}" for fault in faults))
        ],
        "racks": [
            flow | {"client": client, "op": op, "client_rack": "a", "broker_rack": there} for client, op, there in racks
        ],
        "slowest": [{"op": "produce", "client": client, "records": records} for client in clients],
        "stalls": [stall | {"client": client} for client in clients],
        "lag": [
            {
                "client": client,
                "seconds": [[at * 1_000_000, at * 7919 % 997, at * 104_729 % 99_991] for at in range(3600)],
            }
            for client in clients
        ],
        "perf": [{"client": client, **perf} for client in clients],
    }


@pytest.mark.parametrize(
    ("sides", "most"),
    [(("produce", "consume"), BINS_OF_ALL_MAX), (("produce", "consume", "commit"), BINS_OF_ALL_WITH_COMMITS_MAX)],
)
def test_the_worst_plausible_run_still_fits(made: Made, tmp_path: Path, sides: Sequence[str], most: int) -> None:
    """The page is below 1.2 MB, with one plot more for commits, and the same bytes when written again."""
    run, verdict, told = worst_plausible(made, sides, most // 8)
    home = run.write(tmp_path / "run")
    (home / "verdict.json").write_text(verdict.text())
    (home / "analysis.json").write_text(json.dumps(told))
    first = write_report(home).read_bytes()
    assert BYTES_MAX < len(first) <= WORST_BYTES_MAX
    assert first == write_report(home).read_bytes()


def test_a_run_that_was_not_judged_is_an_error(made: Made, tmp_path: Path) -> None:
    """The error names the missing file and the command that creates it."""
    home = made.write(tmp_path / "run")
    with pytest.raises(EvidenceError, match="aftershock verdict"):
        write_report(home)
    (home / "verdict.json").write_text('{"checks": [{}]}')
    (home / "analysis.json").write_text("{}")
    with pytest.raises(EvidenceError, match="judge the run again: aftershock verdict"):
        write_report(home)


def test_labels_never_become_styles_or_ids() -> None:
    """Names of arms that look like attributes stay text, and characters that XML can't hold are replaced."""
    names = [f'{number} style="}}header{{display:none}}" id="x" d="M 1 2"' for number in range(3)]
    plot = forest([Compared(name, 1.1, 1.0, 1.2, "equivalent") for name in [*names, "\0\ud800&amp;"]])
    assert plot
    root = ET.fromstring(plot.svg)  # noqa: S314 - our own
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {*names, "??&amp;"} <= {*texts}
    assert names[0] in (root[1].text or "")
    styles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}style")]
    assert styles
    assert not any("display" in style for style in styles)
    assert not any("display" in value for element in root.iter() for value in element.attrib.values())


def test_a_page_has_no_characters_that_hide_or_reorder_text(judged: Judged, made: Made) -> None:
    hostile = made.copy()
    hostile.timeline["why"] = "\x1b[2J PASS \u202eLIAF\u2066 \ud800"
    page = write_report(judged(hostile, bins())).read_text()
    assert "?[2J PASS ?LIAF? ?" in page


def test_markdown_for_an_issue_is_made_for_a_limited_number_of_checks(
    judged: Judged, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreign evidence with thousands of failed checks and events costs no more than a hundred searches; of the events
    of a moment only the nearest are formatted.
    """
    many = made.copy()
    many.events += [{"t_us": 26_000_000 + at, "arm": "patient", "event": "throttled"} for at in range(20_000)]
    formatted: list[object] = []
    monkeypatch.setattr("aftershock.results.report.issue.event", lambda line: str(formatted.append(line)))
    bad = Check("slo/0", "slo", "run", Status.FAIL, 1, 1, "", "bad", phase="fault/kill-1")
    checks = [replace(bad, id=f"slo/{number}") for number in range(2000)]
    home = judged(many, bins())
    (home / "verdict.json").write_text(Verdict("run-1", "demo", 7, ("baseline",), tuple(checks)).text())
    page = write_report(home).read_text()
    assert page.count("as Markdown for an issue") == PASTED_MAX
    assert 0 < len(formatted) <= PASTED_MAX * EVENTS_MAX
    assert "more events, in journal.jsonl" in page


def test_a_report_of_hundreds_of_faults_says_what_it_leaves_out(made: Made, judged: Judged) -> None:
    """The fault without proof is shown although it is the last; each table and the story give the number of all."""
    count = 300
    made = made.copy()
    step, lines = made.timeline["steps"][1], [line for line in made.journal if line["fault"] == "kill-1"]
    ids = [f"kill-1-{number}" for number in range(count)]
    made.timeline["steps"] = [step | {"id": fault, "entry": "kill-1"} for fault in ids]
    made.journal = [line | {"fault": fault} for fault in ids for line in lines]
    window = next(phase for phase in made.phases if phase["fault"] == "kill-1")
    made.phases = [phase for phase in made.phases if not phase["fault"]]
    made.phases += [window | {"fault": fault, "entry": "kill-1"} for fault in ids]
    home = judged(made, bins())
    checks = [
        Check(f"witness/{fault}", "witness", f"fault={fault}", Status.PASS, 1, 1, "", "exited") for fault in ids[:-1]
    ]
    checks.append(Check(f"witness/{ids[-1]}", "witness", f"fault={ids[-1]}", Status.FAIL, 1, 1, "", "still running"))
    (home / "verdict.json").write_text(Verdict("run-1", "demo", 7, ("baseline",), tuple(checks)).text())
    page = write_report(home).read_text()
    assert f"{CHECKS_MAX} of {count - 1} checks are shown" in page
    assert f"{ROWS_MAX} of {count} faults are shown" in page
    assert f"{CHAPTERS_MAX} of {count} faults are shown" in page
    assert page.count("still running") >= 2
    assert len(page) < WORST_BYTES_MAX
