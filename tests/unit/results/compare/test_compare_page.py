"""The examples in docs/COMPARE.md equal the output of the commands."""

import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from aftershock.results.compare import runs, trend
from aftershock.results.compare.history import Line
from aftershock.results.compare.runs import arms_of
from aftershock.results.compare.trend import trends
from aftershock.tests.stored_runs import documents, write

PAGE = (Path(__file__).parents[4] / "docs" / "COMPARE.md").read_text(encoding="utf-8")
NIGHT = Line(date(2026, 9, 8), "", "nightly", "orders", "kip951", "recovery", "fault/kill-1", 1.0, "s", 900, 3.0, "ci-1", "4.3.0", "4f1c2aa")  # fmt: skip # noqa: E501


def test_the_comparison(tmp_path: Path) -> None:
    """The example has twelve blocks of a client that recovers four times as fast."""
    rng = np.random.default_rng(11)
    blocks = {arm: [float(v) for v in us * np.exp(rng.normal(0, 0.3, 12))] for arm, us in (("kip951", 9e4), ("baseline", 4e5))}  # fmt: skip # noqa: E501
    recovered = {arm: [v * 12 * float(np.exp(rng.normal(0, 0.2))) for v in values] for arm, values in blocks.items()}
    home = write(tmp_path / "run", documents(blocks, recovered, run_id="20261121-rotation-4f1c"))
    assert runs.text(arms_of(home)) in PAGE


def test_the_trend() -> None:
    """The example has eighty nights in which a new Kafka version made one of two arms slower."""
    rng = np.random.default_rng(12)
    nights = [(NIGHT.night + timedelta(days=index), "4.3.0" if index < 65 else "4.3.1") for index in range(80)]
    slow = [replace(NIGHT, night=night, run_id=f"{night:%Y%m%d}-nightly", kafka=kafka, value=float(np.exp(rng.normal(0, 0.1))) * (1.5 if kafka == "4.3.1" else 1)) for night, kafka in nights]  # fmt: skip # noqa: E501
    calm = [replace(line, metric="produce.latency p50", window="steady", unit="ms", value=3.0) for line in slow]
    assert trend.text(trends([*slow, *calm]), ()) in PAGE


def test_the_error_rates_keep_what_the_page_promises() -> None:
    """In the table of dependent blocks no rate is above 7 % up to 0.6, and Student's test exceeds it at 0.3 already."""
    rows = re.findall(r"^\| ([^|,]+(?:, normal)?), r = ([\d.]+) \| (.*) \|$", PAGE, re.MULTILINE)
    rates = {(name, float(r)): [float(cell) for cell in cells.split(" | ")] for name, r, cells in rows}
    tested = {name for name, _ in rates} - {"as if independent, normal"}
    assert {"normal", "log-normal", "heavier tails"} == tested
    assert all(max(rates[name, r]) <= 0.07 for name in tested for r in (0.0, 0.3, 0.6))
    assert min(rates["as if independent, normal", 0.3]) > 0.07
