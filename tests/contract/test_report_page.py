"""The report in a headless Chromium: its scripts run under its own policy, and without them it says as much."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.report.page import write_report
from aftershock.tests import browser
from aftershock.tests.browser import Tab
from aftershock.tests.stored_report import BYTES_MAX, TWO_HOURS_S, judged_demo, lengthened
from aftershock.tests.unit.results.report.test_page import HOSTILE

pytestmark = [
    pytest.mark.skipif(browser.find() is None, reason="needs Chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]
HELPERS = """
    const all = (selector) => [...document.querySelectorAll(selector)];
    const shown = (selector) => all(selector).filter((one) => one.checkVisibility());
    const range = () => ["--from", "--len"].map((name) => Number(all("#timeline")[0].style.getPropertyValue(name)));
    const box = (selector, at = 0) => all(selector)[at].getBoundingClientRect();
    const picture = () => all(".chart canvas")[0].toDataURL();
    const drawn = (get) => new Promise((then) => setTimeout(() => then(get()), 100));
    const set = (id, value) => {
        const field = document.getElementById(id);
        field.value = value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const panel = document.getElementById("panel");
"""
CHECKS = "#checks tr[data-status]"


def ask(tab: Tab, expression: str) -> Any:
    """Return the value of an expression in the page, which may use the names of ``HELPERS``."""
    return tab.run(f"(() => {{ {HELPERS} return {expression}; }})()")


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser.tab() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a stored run of the demo, which lost records."""
    return write_report(judged_demo(tmp_path_factory.mktemp("report") / "run"))


def quiet(tab: Tab, page: Path) -> None:
    """Assert that the page asked for nothing but itself, and that nothing went wrong."""
    assert [page.resolve().as_uri()] == tab.requested
    assert [] == tab.trouble


def test_a_click_on_a_fault_tells_its_story(tab: Tab, page: Path) -> None:
    """The panel has the chapter with the witness and the change of leaders; Escape closes it, and the focus returns."""
    tab.open(page)
    assert ask(tab, "panel.hidden")
    tab.click('.seg.fault[href="#story-3"]')
    told = ask(tab, "panel.innerText")
    assert "kill-leader: kill" in told
    assert "witnessed:" in told
    assert "after broker" in told
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert ask(tab, "panel.hidden")
    assert "story-3" in tab.run("document.activeElement.hash")
    quiet(tab, page)


def test_checks_and_slow_records_have_a_story(tab: Tab, page: Path) -> None:
    """A check's has its facts and its line of the plan; a record's every attempt, its leaders and the events around."""
    tab.open(page)
    tab.click(".troubled a")
    told = ask(tab, "panel.innerText")
    assert "slo/lost" in told
    assert "1:1625" in told
    assert '- slo: "lost == 0 for hasty"' in told
    tab.click("#panel-close")
    tab.click('.seg.slow[href="#record-1"]')
    told = ask(tab, "panel.innerText")
    for words in ("handed to the client", "acknowledged", "while the record waited: broker", "s  kill-leader"):
        assert words in told
    tab.click("#panel-zoom")
    start, length = ask(tab, "range()")
    assert 20 < start < 40
    assert length < 20
    quiet(tab, page)


def test_zoom_changes_every_lane_and_chart(tab: Tab, page: Path) -> None:
    """Buttons, a drag and the wheel with Ctrl zoom; lanes and the pixels of the charts follow; a reset shows all."""
    tab.open(page)
    whole = ask(tab, "range()")
    before, pixels = ask(tab, "box('.seg.fault').width"), ask(tab, "picture()")
    tab.click('[data-zoom="in"]')
    assert ask(tab, "range()")[1] == pytest.approx(whole[1] / 2)
    assert ask(tab, "box('.seg.fault').width") == pytest.approx(2 * before, rel=0.05)
    assert pixels != ask(tab, "drawn(picture)")
    tab.click('[data-zoom="all"]')
    assert whole == ask(tab, "range()")
    x, y = tab.centre(".chart")
    tab.drag([(x - 100, y), (x, y), (x + 100, y)])
    dragged = ask(tab, "range()")
    assert 0 < dragged[0] < dragged[1] + dragged[0] < whole[1]
    assert ask(tab, "panel.hidden"), "a drag is no click"
    tab.wheel((x, y), -240, ctrl=True)
    assert ask(tab, "drawn(range)")[1] < dragged[1]
    tab.click('[data-zoom="out"]')
    tab.click('[data-zoom="all"]')
    assert whole == ask(tab, "range()")
    quiet(tab, page)


def test_the_pointer_reads_out_time_fault_and_values(tab: Tab, page: Path) -> None:
    tab.open(page)
    _, y = tab.centre(".chart")
    tab.move((ask(tab, "box('.seg.fault', 2).left + box('.seg.fault', 2).width / 2"), y))
    told = ask(tab, "all('#tip')[0].innerText")
    assert "kill-leader: kill" in told
    assert "p50 " in told
    assert "records failed" in told
    assert not ask(tab, "all('#timeline > .cursor')[0].hidden")


def test_the_filter_hides_rows(tab: Tab, page: Path) -> None:
    """By text, by status, by client and together; what was folded is unfolded for it, and folded again after it."""
    tab.open(page)
    count = f"shown('{CHECKS}').length"
    total, failed = ask(tab, f"all('{CHECKS}').length"), ask(tab, f"all('{CHECKS}:not([data-status=PASS])').length")
    assert 0 < failed == ask(tab, count) < total
    ask(tab, "set('find', 'Integrity/LOST')")
    lost = ask(tab, count)
    assert 0 < lost < total
    assert f"{lost} of {total} checks" == ask(tab, "all('#found')[0].textContent")
    ask(tab, "set('status', 'FAIL')")
    assert 0 == ask(tab, count)
    ask(tab, "set('find', '')")
    assert failed == ask(tab, count)
    ask(tab, "set('status', '')")
    ask(tab, "set('subject', 'arm=hasty')")
    assert ["arm=hasty"] == ask(tab, f"[...new Set(shown('{CHECKS}').map((row) => row.cells[2].textContent))]")
    ask(tab, "set('subject', '')")
    assert failed == ask(tab, count)
    quiet(tab, page)


@pytest.mark.parametrize("width", [390, 1280])
def test_without_scripts_everything_is_there(tab: Tab, page: Path, width: int) -> None:
    """The answers, the lanes with their times and the tables of the charts are plain HTML; no control is dead."""
    tab.open(page, width=width, scripts=False)
    text = tab.run("document.body.innerText")
    for words in ("kill-leader", "4 (all permitted)", "not normal again in the", "With acks=1 a leader acknowledges"):
        assert words in text
    assert 0 == ask(tab, "shown('button, input, select').length")
    assert ask(tab, "box('.seg.fault', 2).left") > width / 3
    assert ask(tab, "all('#timeline .figures tbody tr').length") > 50
    assert [] == tab.trouble


def test_a_phone_shows_the_faults_first_and_cuts_nothing(tab: Tab, page: Path) -> None:
    """The page is as wide as the screen, the first fault's answer is on it, and wide tables scroll in boxes."""
    tab.open(page, width=390, height=844)
    assert 390 == ask(tab, "document.documentElement.scrollWidth")
    assert ask(tab, "box('.answers a').bottom") < 844
    cut = "one.getBoundingClientRect().right > 391 && !one.closest('.wide, .track, .unseen, .skip')"
    assert [] == ask(tab, f"shown('body *').filter((one) => {cut}).map((one) => one.outerHTML.slice(0, 80))")


READABLE = (
    *(
        "h1",
        "a",
        ".answers td",
        ".answers .bad",
        ".about span",
        ".badge",
        ".note",
        ".legend",
        ".lane-name",
        ".seg.fault",
    ),
    *(".seg.leader", ".seg.steady", ".seg.stall:not(.part)"),
)
CONTRAST = """
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const mixed = (colour, under) => {
        for (const one of [under, colour]) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((part) => linear(part / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (selector) => {
        const { color, backgroundColor } = getComputedStyle(document.querySelector(selector));
        const back = mixed(backgroundColor, getComputedStyle(document.body).backgroundColor);
        const both = [luminance(back), luminance(mixed(color, `rgb(${back})`))].sort((a, b) => a - b);
        return (both[1] + 0.05) / (both[0] + 0.05);
    };
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_both_schemes(tab: Tab, page: Path, dark: bool) -> None:
    """The page follows the scheme, and text has the contrast of WCAG 2.2 (1.4.3) with what it stands on."""
    tab.open(page, dark=dark)
    ratios = {one: tab.run(f"(() => {{ {CONTRAST} return contrast({json.dumps(one)}); }})()") for one in READABLE}
    assert {} == {one: ratio for one, ratio in ratios.items() if ratio < 4.5}
    paper = "rgb(21, 23, 27)" if dark else "rgb(255, 255, 255)"
    assert paper == ask(tab, "getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("width", [390, 1280])
def test_lanes_and_charts_share_their_axis(tab: Tab, page: Path, width: int) -> None:
    """A time is at the same place in each of them, on the screen and on paper."""
    ends = "[...new Set(shown('#timeline .track, #timeline .u-over').map(at))]"
    at = "(one) => `${Math.round(one.getBoundingClientRect().left)} ${Math.round(one.getBoundingClientRect().right)}`"
    tab.open(page, width=width)
    for printed in (False, True):
        if printed:
            ask(tab, "dispatchEvent(new Event('beforeprint'))")
            tab.call("Emulation.setEmulatedMedia", media="print")
        assert 1 == len(ask(tab, f"drawn(() => {{ const at = {at}; return {ends}; }})"))


def test_paper_has_everything_and_no_buttons(tab: Tab, page: Path) -> None:
    tab.open(page)
    tab.call("Emulation.setEmulatedMedia", media="print")
    text = tab.run("document.body.innerText")
    assert "integrity/lost" in text, "what passed is unfolded"
    assert 0 == ask(tab, "shown('button, input, #panel').length")
    assert 720 >= ask(tab, "box('#timeline').width")


def test_a_hostile_run_is_shown_and_does_nothing(tab: Tab, page: Path, tmp_path: Path) -> None:
    """Markup in names, events and errors of a stranger's run is text, also in the panel and the read-out."""
    home = shutil.copytree(page.parent, tmp_path / "run")
    bomb = f"<img src=x onerror=alert(1)>{HOSTILE}</script><script>document.title='pwned'</script>"
    timeline = json.loads((home / "timeline.json").read_text())
    timeline["why"] = bomb
    for step in timeline["steps"]:
        step["parameters"] = {bomb: bomb}
    lines = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    client = {"workload": "all-replicas", "arm": "careful", "op": "produce", "error": bomb, "detail": bomb}
    lines += [client | {"t_us": 35_000_000 + at, "event": name} for at, name in enumerate(("client_error", bomb))]
    (home / "timeline.json").write_text(json.dumps(timeline))
    (home / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict: dict[str, Any] = json.loads((home / "verdict.json").read_text())
    for check in verdict["checks"]:
        check["why"] = bomb
        check["subject"] = bomb
    (home / "verdict.json").write_text(json.dumps(verdict))
    (home / "manifest.json").write_text(json.dumps(manifest_of(home)))
    hostile = write_report(home)
    tab.open(hostile)
    title = tab.run("document.title")
    tab.click('.seg.fault[href="#story-3"]')
    assert bomb in tab.run("document.getElementById('panel-title').textContent")
    x, y = tab.centre(".seg.fault")
    tab.move((x, y))
    assert bomb in tab.run("document.getElementById('tip').textContent")
    tab.click("#panel-close")
    tab.click(".troubled a")
    assert bomb in tab.run("document.getElementById('panel-body').textContent")
    assert title == tab.run("document.title") != "pwned"
    assert 0 == tab.run("document.images.length")
    quiet(tab, hostile)


def test_two_hours_open_and_fit(tab: Tab, page: Path, tmp_path: Path) -> None:
    """A soak of two hours with forty faults is a page like any other; tests/bench/bench_report.py says how fast."""
    soak = write_report(lengthened(judged_demo(tmp_path / "soak"), TWO_HOURS_S))
    assert soak.stat().st_size < BYTES_MAX
    assert page.stat().st_size < BYTES_MAX
    tab.open(soak)
    assert TWO_HOURS_S == pytest.approx(ask(tab, "range()")[1], rel=0.01)
    assert 5 == tab.run("document.querySelectorAll('.chart canvas').length")
    quiet(tab, soak)
