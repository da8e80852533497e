"""The documentation is true: the site builds without warnings, and its commands and plans are valid."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from aftershock.faults.kinds.client.membership import MemberFault
from aftershock.faults.kinds.registry import BUILT_IN
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli import reference
from aftershock.harness.cli.__main__ import app
from aftershock.results.model.rules import RULES
from aftershock.results.slo.metrics import METRICS, OF_GROUPS
from aftershock.tests.chaos.known_bad.catalogue import known_bad
from aftershock.tests.clients.build import CLIENTS
from aftershock.workloads.adapters.conformance.checks import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: the Material theme announces its successor in every build
QUIET = {"NO_MKDOCS_2_WARNING": "1"}


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for result, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if result == language:
                yield page, text


def plans() -> list[Any]:
    whole = [(page, text) for page, text in blocks("yaml") if "\nworkloads:" in text and text.startswith("name:")]
    return [pytest.param(text, id=f"{page.stem}-{number}") for number, (page, text) in enumerate(whole)]


def commands() -> list[Any]:
    lines = [
        (page, line.split(" #")[0].strip())
        for language in ("", "sh")
        for page, text in blocks(language)
        for line in text.replace("\\\n", " ").splitlines()
        if re.match(r"(SPARK_REMOTE=\S+ )?(\$ )?aftershock \w", line)
    ]
    return [pytest.param(line, id=f"{page.stem}: {line[:60]}") for page, line in dict.fromkeys(lines)]


@pytest.mark.parametrize("text", plans())
def test_a_plan_in_the_docs_is_valid(text: str) -> None:
    """A reader who copies a whole plan from any page gets no error."""
    load_plan(text)


@pytest.mark.parametrize("line", commands())
def test_a_command_in_the_docs_exists(line: str) -> None:
    """Every command line in the docs names a command and options that exist."""
    words = shlex.split(re.sub(r"^(SPARK_REMOTE=\S+ )?(\$ )?", "", line).replace("[", "").replace("]", ""))[1:]
    words = words[: [*words, "--"].index("--")]  # what follows is the command of a client program
    command: Any = get_command(app)
    while isinstance(command, TyperGroup) and words:
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    options = {spelling for parameter in command.params for spelling in parameter.opts + parameter.secondary_opts}
    assert set() == {word.split("=")[0] for word in words if word.startswith("--")} - options - {"--help"}


def test_the_reference_of_commands_is_current() -> None:
    """docs/CLI.md is what `make docs` writes."""
    assert reference.page() == (ROOT / "docs" / "CLI.md").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation() -> None:
    """A page that is missing in the navigation can't be found by readers."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [] == [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}" not in navigation]


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """`mkdocs build --strict` finds no broken link, anchor or page."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **QUIET})
    assert (0, "") == (done.returncode, done.stderr + done.stdout)


def test_the_table_of_checked_clients_is_current() -> None:
    """Every client under tests/clients is in docs/CLIENTS.md with its version, and passed every conformance check."""
    page = (ROOT / "docs" / "CLIENTS.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| library \| version \| (.*) \|$", page, re.MULTILINE)
    operations = head.split(" | ")
    assert {"produce", "consume", "commit"} <= {*operations} <= {*CHECKS}
    # a member of a group that reports no commits is examined by one check less
    counts = [{len(CHECKS[name]), len(CHECKS[name]) - (name == "group")} for name in operations]
    allowed = [{f"passes ({count}/{count})" for count in either} for either in counts]
    for client in CLIENTS:
        begin = rf"\| {re.escape(client.library)} \| {re.escape(client.version)} \|"
        (row,) = re.findall(rf"^{begin} (.*) \|$", page, re.MULTILINE)
        cells = row.split(" | ")
        assert all(cell in passes for cell, passes in zip(cells, allowed, strict=True)), client.library


def test_the_page_of_groups_names_what_exists() -> None:
    """Its tables have every fault kind for members, every metric of groups, and each bug with its check."""
    page = (ROOT / "docs" / "GROUPS.md").read_text(encoding="utf-8")
    cells: dict[str, list[set[str]]] = {}
    for section in page.split("\n## ")[1:]:
        rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", section, re.MULTILINE)
        columns = zip(*rows, strict=True) if rows else ()
        cells[section.splitlines()[0]] = [{*re.findall(r"`([^`]+)`", " ".join(column))} for column in columns]
    assert (
        {kind for kind, fault in BUILT_IN.items() if issubclass(fault, MemberFault)}
        <= cells["Faults"][0]
        <= {*BUILT_IN}
    )
    judged = cells["What is judged"][0] - {"for each member"}
    assert {name for name, metric in METRICS.items() if metric.source in OF_GROUPS} <= judged
    assert judged <= {*RULES, *METRICS, "obligation/consume"}
    plan = (ROOT / "tests" / "chaos" / "known_bad" / "members.yaml").read_text(encoding="utf-8")
    bugs = {bad.caught.removeprefix("integrity/") for arm, bad in known_bad().items() if f"  {arm}: {{" in plan}
    assert bugs == cells["What such a run finds"][1]
