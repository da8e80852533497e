"""Commands ``plan check``, ``plan show`` and ``plan schema``, which read plans and start nothing."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftershock.errors import PlanError
from aftershock.harness.cli.options import ERROR, JsonOption, PlanArgument, SeedOption, SetOption
from aftershock.redaction import redact
from aftershock.results.model.text import visible

plans = typer.Typer(help="Validate plans, draw their timelines, and describe fault kinds.", no_args_is_help=True)
_KEY = re.compile(r"^(topics|workloads|faults|slo|timing)[ \t]*:", re.MULTILINE)
_KEYS_MIN = 2  # of these five, so that a plan without its `topics` is refused, not skipped
_POSITION = re.compile(r":(\d+):(\d+): ", re.ASCII)


@dataclass(frozen=True)
class Finding:
    """An error or a warning about a plan, for editors; without line and column if a file or option is the cause."""

    file: str
    line: int | None
    column: int | None
    severity: Literal["error", "warning"]
    message: str

    @property
    def text(self) -> str:
        position = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{position}{'warning: ' if self.severity == 'warning' else ''}{self.message}"


@plans.command("check")
def check(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PLAN...", help="Paths of plans, folders of plans, or names of shipped plans (demo)."),
    ],
    changes: SetOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a plan has a warning.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Validate plans: report all problems at once, with position and remedy, and say what each plan does.

    The line of a valid plan has its longest duration, its load, what it breaks, and the disk space that it needs. In a
    folder, all .yaml and .yml files with keys of a plan are checked. With --json, the errors and warnings are one
    array of {file, line, column, severity, message}. The exit code is 0 if all plans are valid, 1 if --strict is given
    and a plan has a warning, and 3 if a plan is refused.
    """
    absent: list[Finding] = []
    skipped: list[str] = []
    findings: list[Finding] = []
    checked = valid = 0
    for file in _files(paths, skipped, absent):
        own, line = _check(file, changes or ())
        findings += own
        checked, valid = checked + 1, valid + bool(line)
        if not as_json:
            _print(own)
            if line:
                print(visible(redact(line)), flush=True)
    findings += absent
    if as_json:
        print(json.dumps([asdict(finding) | {"message": redact(finding.message)} for finding in findings], indent=1))
    else:
        _print(absent)
        for name in skipped:
            print(visible(f"{name}: skipped, because it does not have the keys of a plan"), file=sys.stderr)
        if checked > 1 or skipped:
            print(f"valid plans: {valid} of {checked}; other files: {len(skipped)}")
    if any(finding.severity == "error" for finding in findings):
        return ERROR
    return int(strict and bool(findings))


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(visible(redact(finding.text)), file=sys.stderr)


def _files(paths: Sequence[str], skipped: list[str], absent: list[Finding]) -> Iterator[tuple[Path, str]]:
    """Yield each plan as a path and the name for messages; add to ``skipped`` and ``absent``."""
    from aftershock.faults.plans import find

    for given in paths:
        folder = Path(given)
        if not folder.is_dir():
            try:
                path = find(given)
            except PlanError as error:
                absent += [Finding("", None, None, "error", problem) for problem in error.problems]
            else:
                yield path, given if Path(given).is_file() else path.name
            continue
        found = 0
        for home, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if name.endswith((".yaml", ".yml"))):
                path = Path(home, name)
                text = path.read_bytes()[: 1 << 17].decode(errors="replace") if path.is_file() else ""
                if len(set(_KEY.findall(text))) >= _KEYS_MIN:
                    found += 1
                    yield path, str(path)
                else:
                    skipped.append(str(path))
        if not found:
            sentence = f"{given}: the folder has no plan, that is no file *.yaml with `topics` and `workloads`"
            absent.append(Finding("", None, None, "error", f"{sentence}; name another folder"))


def _check(file: tuple[Path, str], changes: Sequence[str]) -> tuple[list[Finding], str]:
    """Return the errors and warnings of a plan, and the line about a valid one; empty for a plan that is refused."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.harness.run.checkup import machine_warnings, summary

    path, name = file
    try:
        checked = load_plan(path, tuple(changes))
        warnings = [*checked.warnings, *machine_warnings(checked)]
        line = f"{name}: {checked.plan.name} is a valid plan: {summary(checked)}"
    except PlanError as error:
        return [_finding(problem, path.name, name, "error") for problem in error.problems], ""
    return [_finding(warning, path.name, name, "warning") for warning in warnings], line


def _finding(message: str, file: str, name: str, severity: Literal["error", "warning"]) -> Finding:
    """Split the position off a message about a plan; a change by ``--set`` has none."""
    if not message.startswith(f"{file}:"):
        return Finding("", None, None, severity, message)
    rest = message.removeprefix(file)
    if position := _POSITION.match(rest):
        return Finding(name, int(position[1]), int(position[2]), severity, rest[position.end() :])
    return Finding(name, None, None, severity, rest.removeprefix(": "))


@plans.command("show")
def show(plan: PlanArgument, seed: SeedOption = 0, changes: SetOption = None) -> int:
    """Draw the timeline of a plan as text lanes."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.timeline.compile import compile_checked
    from aftershock.faults.timeline.lanes import lanes

    checked = load_plan(find(plan), tuple(changes or ()))
    print(lanes(compile_checked(checked, seed)))
    return 0


@plans.command("schema")
def schema() -> int:
    """Print the JSON Schema of plans, for editors."""
    from aftershock.faults.plan.catalogue import plan_schema

    print(json.dumps(plan_schema(), indent=1))
    return 0
