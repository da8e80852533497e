"""The report: offline, escaped, small, the same bytes for the same verdict."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from evidence_factory import Made

from aftershock.errors import EvidenceError
from aftershock.results.check import Check, Status
from aftershock.results.report import write
from aftershock.results.report.bands import PALETTE
from aftershock.results.report.chart import latency_svg
from aftershock.results.verdict import Verdict

HOSTILE = "<script>alert(1)</script>\"'&$x^2$"
BYTES_MAX = 500_000


class _Seen(HTMLParser):
    """Tags, and the attributes that could load or run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.risky: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.risky += [(name, value) for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def bins(count: int = 50) -> list[dict[str, Any]]:
    keys = [("produce.latency", "orders/baseline"), ("consume.latency", "orders/patient")]
    return [
        {"metric": metric, "client": client, "start_us": at * 1_000_000, "n": 60, "censored": at % 7 == 0}
        | {"p50_us": 5000 + at, "p99_us": None if at % 7 == 0 else 9000, "slowest_us": 12_000}
        for metric, client in keys
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
    """One file: no script, no link, no address but the SVG's namespaces; the sentence is the first heading."""
    page = write(judged(made, bins())).read_text()
    seen = _Seen(page)
    assert "script" not in seen.tags
    assert [risk for risk in seen.risky if not (risk[1] or "").startswith("#")] == []
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert {address.split("/")[2] for address in addresses} <= {"www.w3.org"}
    first = re.search(r"<h1>(.*?)</h1>", page)
    assert first
    assert first[1] == "FAIL: demo, seed 7: a promise was broken (1 of 2 checks failed)"
    assert page.index("What needs attention") < page.index("Produce latency") < page.index("<h2>Checks")
    assert "aftershock run demo --seed 7" in page


def test_faults_are_bands_in_every_plot(judged: Judged, made: Made) -> None:
    """Each fault has its colour and its name in both plots, and a row with its witness."""
    page = write(judged(made, bins())).read_text()
    for fault, colour in zip(("latency-1", "kill-1", "reassign-1"), PALETTE, strict=False):
        assert page.count(f">{fault}</text>") == 2
        assert page.count(f"fill: {colour}") >= 2
    assert "never" not in page.split("<h2>Faults</h2>")[1].split("</section>")[0]


def test_hostile_names_are_text(judged: Judged, made: Made) -> None:
    """Markup in the names of plan, arms, faults, errors and commands is shown, not obeyed."""
    hostile = made.copy()
    hostile.timeline |= {"name": HOSTILE, "why": HOSTILE}
    hostile.run |= {"command": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    hostile.timeline["workloads"][0]["arms"] = {HOSTILE: {}}
    hostile.timeline["steps"][0]["id"] = HOSTILE
    for row in hostile.phases + hostile.journal:
        row["fault"] = HOSTILE if row["fault"] == "latency-1" else row["fault"]
    rows = [row | {"client": f"orders/{HOSTILE}"} for row in bins()]
    page = write(judged(hostile, rows)).read_text()
    assert "script" not in _Seen(page).tags
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 10


def test_it_stays_small_and_is_reproducible(judged: Judged, made: Made) -> None:
    """600 bins a plot are under 500 kB; writing it again gives the same bytes."""
    home = judged(made, bins(600))
    first = write(home).read_bytes()
    assert len(first) <= BYTES_MAX
    assert first == write(home).read_bytes()


def test_many_clients_still_fit() -> None:
    """Eight panels of 600 points are under half of the size allowed."""
    rows = [row for row in bins(600) if row["metric"] == "produce.latency"]
    svg = latency_svg({f"arm={index}": rows for index in range(8)}, [], 1.0, [])
    assert len(svg) <= BYTES_MAX // 2


def test_a_run_not_judged_yet_is_told_so(made: Made, tmp_path: Path) -> None:
    """The error names the file that is missing and the command that makes it."""
    home = made.write(tmp_path / "run")
    with pytest.raises(EvidenceError, match="aftershock verdict"):
        write(home)
    (home / "verdict.json").write_text('{"checks": [{}]}')
    (home / "analysis.json").write_text("{}")
    with pytest.raises(EvidenceError, match="not as it was written"):
        write(home)
