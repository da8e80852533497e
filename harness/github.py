"""What GitHub's runner is told: annotations on the plan's lines, and a summary of the job's step.

Nothing is said outside GitHub Actions. Workflow commands go to stderr, which the runner reads as well: stdout holds the
result.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from aftershock.results.annotations import annotations
from aftershock.results.files import read_json
from aftershock.results.judged import verdict_of


def tell(run_dirs: Iterable[Path], environment: Mapping[str, str] = os.environ, out: TextIO | None = None) -> None:
    """Annotate what did not pass in these judged runs (on ``out``, default stderr), and add them to the summary."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    from aftershock.results.report import step_summary

    paths = list(run_dirs)
    for path in paths:
        verdict = verdict_of(path)
        (out or sys.stderr).writelines(f"{line}\n" for line in annotations(verdict, plan_file(path, environment)))
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(paths))


def plan_file(run_dir: Path, environment: Mapping[str, str]) -> str | None:
    """The run's plan as GitHub names files, relative to the checkout; None where it lies elsewhere."""
    file = Path(read_json(run_dir / "run.json").get("plan_file") or os.devnull)
    checkout = Path(environment.get("GITHUB_WORKSPACE", ".")).resolve()
    return str(file.relative_to(checkout)) if file.is_relative_to(checkout) else None
