"""Markdown reference of all ``aftershock`` commands, written to ``docs/CLI.md`` by ``make docs``."""

import sys
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from aftershock.harness.cli.__main__ import app

_HEAD = """# Commands

Written by `make docs` from the command line itself: do not edit.

Progress and messages go to standard error, results to standard output. Exit codes: 0 PASS, 1 FAIL, 2 INCONCLUSIVE,
3 ERROR (usage, plan, engine or harness), 130 interrupted. `kip` exits 0 for confirmed, 1 for contradicted, 2 otherwise;
`compare` and `trend` exit 1 for regressed, `plan check --strict` for a warning.

PLAN is a path, or the name of a shipped plan such as `demo`. RUN is a run directory, or a run id under `--out`.
"""


def page() -> str:
    sections = sorted(_sections(get_command(app), "aftershock"))
    return "\n".join([_HEAD, *(text for _, text in sections)])


def _sections(command: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            yield from _sections(child, f"{name} {word}")
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([name, *(parameter.metavar or parameter.name.upper() for parameter in arguments), "[OPTIONS]"])
    lines = [f"## {name}\n", command.help.strip() + "\n", f"```\n{usage if options else usage[:-10]}\n```\n"]
    if command.params:
        lines += ["| argument or option | meaning |", "|---|---|"]
        for parameter in arguments:
            lines.append(f"| `{parameter.metavar or parameter.name.upper()}` | {_cell(parameter)} |")
        for parameter in options:
            value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
            lines.append(f"| `{max(parameter.opts, key=len)}{value}` | {_cell(parameter)} |")
        lines.append("")
    yield name, "\n".join(lines)


def _cell(parameter: Any) -> str:
    default = parameter.default
    has_default = default not in (None, False, ()) and not callable(default) and parameter.param_type_name == "option"
    text = (parameter.help or "").replace("\n", " ").replace("|", "\\|")
    return f"{text} Default: `{default}`." if has_default else text


if __name__ == "__main__":
    sys.stdout.write(page())
