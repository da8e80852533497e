"""The documentation is true: the site builds without warnings, and its commands and plans are valid."""

import ast
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
from aftershock.harness.clients.catalogue import CATALOGUE
from aftershock.results.model.rules import RULES
from aftershock.results.slo.metrics import METRICS, OF_GROUPS
from aftershock.tests.chaos.known_bad.catalogue import known_bad
from aftershock.workloads.adapters.conformance.checks import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md"), ROOT / "README.md"])
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PACKS = sorted((ROOT / "docs" / "evidence" / "tutorials").glob("*.pack.zip"))
TROUBLES = ROOT / "docs" / "TROUBLESHOOTING.md"
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
    names = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT]
    assert [] == [name for name in names if f": {name}" not in navigation]


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
    """Every client with a version is in docs/CLIENTS.md, and passed every conformance check that was made."""
    page = (ROOT / "docs" / "CLIENTS.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| library \| version \| (.*) \|$", page, re.MULTILINE)
    operations = head.split(" | ")
    assert {"produce", "consume", "commit"} <= {*operations} <= {*CHECKS}
    # a member of a group that reports no commits is examined by one check less
    counts = [{len(CHECKS[name]), len(CHECKS[name]) - (name == "group")} for name in operations]
    allowed = [{f"passes ({count}/{count})" for count in either} for either in counts]
    offered = {"transaction": {"not offered"}}
    allowed = [
        passes | {"not examined"} | offered.get(name, set()) for name, passes in zip(operations, allowed, strict=True)
    ]
    for library in CATALOGUE.values():
        ((version, row),) = re.findall(rf"^\| {re.escape(library.title)} \| (\S+) \| (.*) \|$", page, re.MULTILINE)
        assert version in library.known
        cells = row.split(" | ")
        assert all(cell in passes for cell, passes in zip(cells, allowed, strict=True)), library.title


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


def quoted_messages() -> list[str]:
    """Return the messages in the first column of the page of troubles, with … for the parts that differ."""
    rows = re.findall(r"^\| (``.*?``(?!`)|`[^`]+`)", TROUBLES.read_text(encoding="utf-8"), re.MULTILINE)
    return [row.removeprefix("``").removesuffix("``").strip() if row.startswith("``") else row[1:-1] for row in rows]


def sentences() -> Iterator[str]:
    """Yield every text in our Python modules, with … for the values in it."""
    for part in ("faults", "harness", "results", "workloads"):
        for module in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(piece.value if isinstance(piece, ast.Constant) else "…" for piece in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def is_in(message: str, all_sentences: str) -> bool:
    """Return True if the fixed pieces of a message follow one another within one of the texts, one a line."""
    pieces = [re.escape(piece) for piece in re.split(r"\s*…\s*", message) if piece]
    return re.search("[^\n]*?".join(pieces), all_sentences) is not None


def test_the_messages_in_the_page_of_troubles_exist() -> None:
    """A message that was reworded is no longer found by users, and a made-up one never was."""
    source = "\n".join(text.replace("\n", " ") for text in sentences())
    messages = quoted_messages()
    rows = re.findall(r"^\| (?!message|---)", TROUBLES.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(messages)
    assert [] == [message for message in messages if not is_in(message, source)]
    assert [] == [message for message in messages if len(message.replace("…", "")) < 12], "too short to be found"
    assert not is_in("no Docker engine answers at …; start another engine", source)


def examples(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a tutorial (after ``$``) with the output that the page shows; … stands for omissions."""
    found = []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if not language and text.startswith("$ "):
            for part in text.removeprefix("$ ").split("\n$ "):
                command, _, output = part.replace("\\\n", "").partition("\n")
                found.append((command.split(" #")[0].strip(), output.strip()))
    return found


def assert_shown(expected: str, actual: str) -> None:
    pieces = [re.escape(piece.strip()) for piece in expected.split("…")]
    assert re.search(".*?".join(pieces), actual, re.DOTALL), f"not in the output:\n{expected}\n\noutput:\n{actual}"


def perform(command: str, folder: Path) -> str:
    words = [sys.executable, "-P", "-m", "aftershock.harness.cli", *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.stderr + done.stdout


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    """The commands that need no engine are executed, in order, beside the files that the reader has saved."""
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "yaml" and (name := re.match(r"name: (\S+)", text)):
            (tmp_path / f"{name[1]}.yaml").write_text(text, encoding="utf-8")
    offline = [
        example for example in examples(page) if re.match(r"aftershock (init|plan (check|show|new))", example[0])
    ]
    assert offline
    for command, output in offline:
        assert_shown(output, perform(command, tmp_path))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name.partition(".")[0])
def test_the_verdict_in_a_tutorial_is_that_of_its_stored_run(pack: Path, tmp_path: Path) -> None:
    """What the pages show of a run can be recomputed from the pack beside them: verdict, story and records."""
    name = pack.name.partition(".")[0]
    shown = [
        (command, output)
        for page in TUTORIALS
        for command, output in examples(page)
        if re.match(rf"aftershock (run {name}\.yaml|explain runs/\S+{name})", command)
    ]
    judged = [example for example in shown if re.match("PASS|FAIL|INCONCLUSIVE", example[1])]
    story = [example for example in shown if " explain " in example[0]]
    assert judged
    verdict = perform(f"aftershock verdict {pack}", tmp_path)
    for _, output in judged:
        assert_shown(output, verdict)
        with pytest.raises(AssertionError, match="not in the output"):
            assert_shown(re.sub(r"stopped [\d.]+ s", "stopped 0.00 s", output), verdict)
    for command, output in story:
        assert_shown(output, perform(re.sub(r"runs/\S+", str(pack), command), tmp_path))
