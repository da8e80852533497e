"""The page of a demo-like run: complete, well-formed, readable without scripts, and with a sentence per chart."""

import base64
import hashlib
import html
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.page import write_report
from aftershock.results.report.plots import Spectrum, spectrum_svg
from aftershock.results.report.svg import FAILED, GREY, LINES
from aftershock.tests.unit.results.analysis_factory import analysed
from aftershock.tests.unit.results.evidence_factory import Made

BYTES_MAX = 500_000
BLUE = LINES[0][0]


class _Balanced(HTMLParser):
    """Check that every tag is closed where required, and collect headings, ids and links in order."""

    VOID = frozenset({"meta", "br", "use", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.unlabelled: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids += [told["id"] or ""] if "id" in told else []
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if (tag == "th" and "scope" not in told) or (tag == "svg" and told.get("role") != "img"):
            self.unlabelled.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def demo(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the clean run with a full analysis and a verdict that has every status and one report-only check."""
    told = made.copy()
    for row in told.produce + told.consume:
        row |= {"broker_id": 1 + row["partition"] % 3, "broker_rack": "abc"[row["partition"] % 3]}
    told.events.append(
        {"t_us": 26_500_000, "event": "client_error", "arm": "patient", "workload": "orders", "op": "produce"}
    )
    home = told.write(tmp_path_factory.mktemp("demo") / "run")
    (home / "plan.yaml").write_text("name: demo\n" * 20 + '  - "produce.latency p95 < 40ms in fault"  # ```\n')
    (home / "analysis.json").write_text(json.dumps(analysed([*told.produce, *told.consume], told.phases)))
    late = Check("slo/produce.latency-p95-fault", "slo", "arm=patient", Status.FAIL, 900, 200, "ms", "p95 is 57 ms")
    late = replace(late, observed=57.0, threshold=40.0, arm="patient", phase="fault", at="demo.yaml:21:5")
    watched = replace(late, id="slo/consume.latency-p99", phase=None, gate=False)
    ratio = Check("compare/produce.latency-p95", "compare", "arm=a against arm=b", Status.PASS, 9, 9, "ratio", "alike")
    lost = Check("integrity/lost", "integrity", "arm=patient consume", Status.INCONCLUSIVE, 9, 1, "records", "2 of 9")
    checks = (late, watched, replace(ratio, observed=0.9), replace(lost, samples=((0, 7), (1, 12))))
    (home / "verdict.json").write_text(Verdict("run-1", "demo", 7, ("baseline", "patient"), checks).text())
    return home


@pytest.fixture(scope="module")
def page(demo: Path) -> str:
    return write_report(demo).read_text()


def test_the_demo_fits_and_is_well_formed(page: str) -> None:
    """Half a megabyte, closed tags, unique ids, working links, no skipped heading level, scopes in tables."""
    seen = _Balanced(page)
    assert len(page.encode()) <= BYTES_MAX
    assert [] == seen.open + seen.unlabelled
    assert len(set(seen.ids)) == len(seen.ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(seen.ids)
    assert set(" ".join(re.findall(r'aria-labelledby="([^"]+)"', page)).split()) <= set(seen.ids)
    assert (1, 1) == (seen.headings[0], seen.headings.count(1))
    assert all(after - before <= 1 for before, after in pairwise(seen.headings))


def test_every_section_has_a_sentence_about_its_figures(page: str) -> None:
    """The sections are spectrum, racks, lag, comparison, three ways of counting, and the story."""
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for sentence in (
        "x its value in steady during kill-1, and the client recovers 0.",
        "During faults 1 in 100 records of arm=",
        "of the bytes with known racks crossed from one rack to another; the slowest pair is",
        "No consumer had any lag at the end of a second.",
        "A confidence interval that contains 1 proves neither a difference",
        "Both definitions of latency agree here",
        "records sent, 60.0",
        "kill-1: kill, by the plan, on broker 1",
        "kill-1 overlapped the record",
        "A stall is a time of a second or longer",
        "in the client or broker",
    ):
        assert sentence in text
    assert page.count('class="parts"') == 10
    assert "older version" not in page


def test_slos_are_steps_and_rare_quantiles_grey() -> None:
    """With 100 records p80 has the client's colour and p95 does not; a censored quantile ends the line at a red
    mark.
    """
    points = [(0.5, 1000), (0.8, 2000), (0.95, 3000), (0.99, None), (0.9999, None)]
    panel = Spectrum("fault", {"a": (points, 100)}, {0.9: 5.0})
    svg = spectrum_svg("n", ("t", "d"), [panel], ["a"])
    steps = {colour: re.findall(rf'd="M[-0-9. ]+l([-0-9. ]+)"[^>]*stroke: {colour}', svg) for colour in (BLUE, GREY)}
    assert 2 == len(re.findall(r"-?[0-9.]+", steps[BLUE][0]))
    assert any("opacity: 0.7" in line for line in re.findall(rf"<path[^>]*stroke: {GREY}[^>]*>", svg))
    assert ">SLO</text>" in svg
    assert "p99.9<" not in svg
    assert re.search(rf"<use[^>]*(fill|stroke): {FAILED}", svg)


def test_an_slo_of_one_fault_is_drawn_only_in_the_panel_of_that_fault(demo: Path, tmp_path: Path) -> None:
    """In a panel of all faults, the step would be compared with data that the SLO does not cover."""
    home = shutil.copytree(demo, tmp_path / "run")
    told = json.loads((home / "verdict.json").read_text())
    named = {"id": "slo/produce.latency-p95-fault/kill-1", "phase": "fault/kill-1"}
    told["checks"] = [one | named if one["id"] == "slo/produce.latency-p95-fault" else one for one in told["checks"]]
    (home / "verdict.json").write_text(json.dumps(told))
    panels = re.findall(r">(steady|fault[^<]*)</text>", write_report(home).read_text())
    assert panels.count("fault/kill-1") == 1
    assert panels.count("steady") == 2  # one for produce and one for consume


def test_a_check_shows_its_band_and_whether_it_gates(page: str) -> None:
    """The band of the patient's p95 in fault is from the analysis; report-only checks are marked and last."""
    row = page[page.index('id="check-1"') :].partition("</tr>")[0]
    assert re.search(r"[\d.]+ to [\d.]+ ms", row)
    attention = page.split("What needs attention</h2>")[1].partition("</ul>")[0]
    assert attention.count("report only") == 1
    assert attention.index("integrity/lost") < attention.index("report only")
    counts = "1 of 3 checks failed, 1 inconclusive; 1 more is only reported"
    assert f"<h1>FAIL: demo, seed 7: a requirement was violated ({counts})" in page


def test_a_failed_check_has_text_for_an_issue(page: str) -> None:
    """The text has the plan's line, the observed value, events around the slowest record, and the command to repeat."""
    texts = [html.unescape(text) for text in re.findall(r'<pre class="paste">(.*?)</pre>', page, re.DOTALL)]
    assert 3 == len(texts)
    (late,) = [text for text in texts if text.startswith("**FAIL: slo/produce.latency-p95-fault")]
    assert '````\n  - "produce.latency p95 < 40ms in fault"  # ```\n````' in late
    assert "- observed: 57 ms\n- threshold: 40 ms" in late
    assert re.search(r"Two seconds around 26\.\d+ s", late)
    assert "kill-1 injected" in late
    assert "patient produce: None: None" in late
    assert "aftershock run demo --seed 7" in late
    assert "demo.yaml:21:5" in late


def test_only_our_scripts_are_allowed_by_their_hashes(page: str) -> None:
    """The policy allows exactly the page's two scripts, no handler in an attribute, no form and no address."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    base = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert f"{base}; script-src {allowed}" == html.unescape(policy)
    assert 2 == len(scripts)
    assert not re.search(r"\son[a-z]+=", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))


def test_an_older_analysis_is_drawn_without_the_newer_sections(demo: Path, tmp_path: Path) -> None:
    """Missing sections are replaced by a line with the command to run."""
    home = shutil.copytree(demo, tmp_path / "run")
    whole = json.loads((home / "analysis.json").read_text())
    old = {name: whole[name] for name in ("schema_version", "distributions", "gaps", "recoveries", "bin_us", "bins")}
    for row in old["distributions"]:
        del row["bands"], row["mean_us"]
    (home / "analysis.json").write_text(json.dumps(old | {"crossed": {}, "host": {}}))
    (home / "verdict.json").write_text(Verdict("run-1", "demo", 7, ("baseline",), ()).text())
    older = write_report(home).read_text()
    assert "judged by an older version, without percentile spectra, flows between racks, lag and freshness" in older
    assert f"aftershock verdict {home}" in html.unescape(older)
    assert "Lag and freshness" not in older
    assert "by percentile" not in older
    assert [] == _Balanced(older).open
