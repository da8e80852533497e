"""The commands that tell of judged runs: ``explain`` and ``report``. Nothing is measured, so no Spark is started."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftershock.errors import AftershockError, EvidenceError

ERROR = 3
ASIDE_MAX = 8  # as many columns as a screen has room for

ReportFormat = Literal["html", "md"]
StoryFormat = Literal["text", "md"]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
_RECORD = re.compile(r"(\d+):(\d+)")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("report")(report)
    app.command("explain")(explain)


def report(
    run_dirs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run directories, or run ids under --out.")],
    out: OutOption = Path("runs"),
    style: Annotated[ReportFormat, typer.Option("--format", help="A file beside the evidence, or text here.")] = "html",
) -> int:
    """Report judged runs: write each report.html again and, of several in one folder, an index; or print Markdown.

    Of up to eight runs the checks are also put side by side, in comparison.html.
    """
    from aftershock.harness.runs import find_run
    from aftershock.results.report import markdown

    paths = [find_run(run_dir, out) for run_dir in run_dirs]
    if style == "html":
        return _report_html(paths)
    for path in paths:
        print(markdown(path))
    return 0


def explain(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a run id under --out.")],
    record: Annotated[
        str | None, typer.Option(metavar="PRODUCER:SEQ", help="Follow one record, through every attempt.")
    ] = None,
    out: OutOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print it as a JSON document.")] = False,
    style: Annotated[StoryFormat, typer.Option("--format", help="Plain text, or Markdown to paste.")] = "text",
) -> int:
    """Tell the story of a run: each fault, what every client saw of it, and the slowest records with their reasons."""
    from aftershock.harness.runs import find_run
    from aftershock.results import explain as telling

    path = find_run(run_dir, out)
    if record is None:
        story = telling.story(path)
        said = telling.story_markdown(story) if style == "md" else telling.story_text(story)
        print(json.dumps(story.to_json(), indent=1) if as_json else said, end="\n" if as_json else "")
        return 0
    found = telling.followed(path, *_record(record))
    said = telling.record_markdown(found) if style == "md" else telling.record_text(found)
    print(json.dumps(found.to_json(), indent=1) if as_json else said, end="\n" if as_json else "")
    return 0


def _record(text: str) -> tuple[int, int]:
    found = _RECORD.fullmatch(text)
    if found is None:
        raise AftershockError(f"{text!r} is no record; name it PRODUCER:SEQ, as 0:1580, the way reports and checks do")
    return int(found[1]), int(found[2])


def _report_html(paths: list[Path]) -> int:
    """Writes the reports and the index and prints their paths; a run that can't be reported is said, and skipped."""
    from aftershock.results.report import write, write_comparison, write_index

    code = 0
    for path in paths:
        try:
            print(write(path))
        except EvidenceError as unjudged:
            print(unjudged, file=sys.stderr)
            code = ERROR
    folders = {path.resolve().parent for path in paths}
    if len(paths) > 1 and len(folders) == 1:
        folder = folders.pop()
        title = f"{len(paths)} runs in {folder.name}"
        aside = write_comparison(paths, folder, title) if len(paths) <= ASIDE_MAX else None
        print(*filter(None, (aside, write_index(paths, folder, title, aside))), sep="\n")
    elif len(paths) > 1:
        print("no index: the runs are not in one folder; move them together, or report those of each", file=sys.stderr)
    return code
