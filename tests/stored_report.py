"""A judged run for tests of its report: the stored run of the demo, as it is or repeated until it lasts for hours."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aftershock.results.evidence.manifest import NAME, manifest_of
from aftershock.results.model.answer import Answer, Normality

PACK = Path(__file__).parents[1] / "docs" / "evidence" / "packs" / "demo.pack.zip"
TWO_HOURS_S = 7200
BYTES_MAX = 3_000_000
"""Most bytes of a report of a demo, and of a soak of two hours."""
S, FAULTS_EVERY = 1_000_000, 12
_TIMES = ("t_us", "start_us", "end_us", "after_us", "by_us")


def judged_demo(home: Path) -> Path:
    """Unpack the stored run of the demo, with answers; its author's version judged it before verdicts had them."""
    with zipfile.ZipFile(PACK) as pack:
        pack.extractall(home)
    verdict = _read(home, "verdict.json")
    late = Normality(1, 0, None, 4 * S, 1, 0)
    calm = Normality(1, 1, 4_400_000, 0, 1, 1)
    stopped = {"produce": 3_100_000, "consume": None}
    answers = [Answer("hasty", None, 1, True, 4, 4, 0, 0, {}, None, None)]
    for fault, normality in {"slow-a": late, "slow-replicas": calm, "kill-leader": calm, "rotate": calm}.items():
        answers.append(Answer("careful", fault, 1, True, 0, 0, 0, 0, stopped, ("orders/0", 4_300_000), normality))
        answers.append(Answer("hasty", fault, 1, False, 4, 4, 0, 0, {"produce": 120_000}, None, normality))
    _write(home, "verdict.json", verdict | {"answers": [answer.to_json() for answer in answers]})
    return home


def lengthened(home: Path, length_s: int) -> Path:
    """Repeat the run in ``home`` until it lasts for ``length_s``: load, events, leaders and measurements.

    Its four faults come back every twelfth time, so that a run of two hours has forty.
    """
    run, timeline, phases = (_read(home, f"{name}.json") for name in ("run", "timeline", "phases"))
    analysis, verdict = _read(home, "analysis.json"), _read(home, "verdict.json")
    every_us = run["marks"]["load_end_us"]
    shifts = [(f"-{number}", number * every_us) for number in range(-(-length_s * S // every_us))]
    hit, faults = shifts[::FAULTS_EVERY], [step["id"] for step in timeline["steps"]]

    def moved(row: Mapping[str, Any], suffix: str, by_us: int) -> dict[str, Any]:
        times = {name: row[name] + by_us for name in _TIMES if isinstance(row.get(name), int)}
        fault = {"fault": f"{row['fault']}{suffix}"} if row.get("fault") in faults else {}
        return {**row, **times, **fault}

    def repeated(rows: Any, times: Sequence[tuple[str, int]] = shifts) -> list[Any]:
        return [moved(row, *shift) for shift in times for row in rows]

    steps = [(step, suffix) for suffix, _ in hit for step in timeline["steps"]]
    timeline["steps"] = [step | {"id": f"{step['id']}{suffix}", "entry": step["id"]} for step, suffix in steps]
    run["marks"]["load_end_us"] = len(shifts) * every_us
    checks = []
    for check in verdict["checks"]:
        kind, _, fault = check["id"].partition("/")
        suffixes = [suffix for suffix, _ in hit] if kind in ("witness", "exposure") and fault in faults else [""]
        checks += [check | {"id": f"{check['id']}{suffix}"} for suffix in suffixes]
    analysis |= {name: repeated(analysis[name]) for name in ("bins", "stalls")}
    analysis["recoveries"] = repeated(analysis["recoveries"], hit)
    for row in analysis["lag"]:
        row["seconds"] = [[at_us + by_us, *rest] for _, by_us in shifts for at_us, *rest in row["seconds"]]
    windows = repeated(phases, hit)  # the warm-up and the steady phase are the first run's alone
    windows = windows[: len(phases)] + [row for row in windows[len(phases) :] if row["name"] in ("fault", "recovery")]
    for name, document in {
        "run.json": run,
        "timeline.json": timeline,
        "phases.json": windows,
        "analysis.json": analysis,
        "verdict.json": verdict | {"checks": checks},
    }.items():
        _write(home, name, document)
    _write_lines(home, "events.jsonl", repeated(_lines(home, "events.jsonl")))
    _write_lines(home, "journal.jsonl", repeated(_lines(home, "journal.jsonl"), hit))
    first = _lines(home, "leaders.jsonl")
    epochs = 1 + max(row["epoch"] for row in first)
    elections = [(at, shift, row) for at, shift in enumerate(hit) for row in first]
    rows = [moved(row, *shift) | {"epoch": row["epoch"] + epochs * at} for at, shift, row in elections]
    _write_lines(home, "leaders.jsonl", rows)
    _write(home, NAME, manifest_of(home))
    return home


def _read(home: Path, name: str) -> Any:
    return json.loads((home / name).read_text())


def _write(home: Path, name: str, document: Any) -> None:
    (home / name).write_text(json.dumps(document))


def _lines(home: Path, name: str) -> list[Any]:
    rows = [json.loads(line) for line in (home / name).read_text().splitlines()]
    return [{field: value for field, value in row.items() if field != "crc"} for row in rows]  # checksums of the lines


def _write_lines(home: Path, name: str, rows: list[Any]) -> None:
    (home / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
