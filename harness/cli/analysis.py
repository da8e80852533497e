"""The commands that tell of judged runs: ``explain`` and ``report``. Nothing is measured, so no Spark is started.

The half of the command line that compares: arms and runs with each other, and tonight with the nights before.

Streams as in ``cli.py``; exit codes are 0 improved, equivalent or steady, 1 regressed, 2 inconclusive, 3 an error.

Questions to evidence: ``sql``, and ``runs archive``, which makes the history that it can ask as well.
"""

import json
import re
import sys
from collections.abc import Iterable
from datetime import date
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


def register_report(app: typer.Typer) -> None:
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
    from aftershock.harness.run.runs import find_run
    from aftershock.results.report.several import markdown

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
    from aftershock.harness.run.runs import find_run
    from aftershock.results.explain import output
    from aftershock.results.explain import record as record_module

    path = find_run(run_dir, out)
    if record is None:
        story = output.story(path)
        said = output.story_markdown(story) if style == "md" else output.story_text(story)
        print(json.dumps(story.to_json(), indent=1) if as_json else said, end="\n" if as_json else "")
        return 0
    found = record_module.followed(path, *_record(record))
    said = output.record_markdown(found) if style == "md" else output.record_text(found)
    print(json.dumps(found.to_json(), indent=1) if as_json else said, end="\n" if as_json else "")
    return 0


def _record(text: str) -> tuple[int, int]:
    found = _RECORD.fullmatch(text)
    if found is None:
        raise AftershockError(f"{text!r} is no record; name it PRODUCER:SEQ, as 0:1580, the way reports and checks do")
    return int(found[1]), int(found[2])


def _report_html(paths: list[Path]) -> int:
    """Writes the reports and the index and prints their paths; a run that can't be reported is said, and skipped."""
    from aftershock.results.report.page import write_report as write
    from aftershock.results.report.several import write_comparison, write_index

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


Format = Literal["text", "md"]
OutOption_cli_compare = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register_compare(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(compare)
    app.command()(trend)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN]", help="One: its arms. Two: before, and after.")],
    out: OutOption_cli_compare = Path("runs"),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="'produce.latency p95 in fault', 'produce.gap', 'recovery'."),
    ] = None,
    margin: Annotated[str, typer.Option(metavar="PERCENT", help="What is too small to matter.")] = "25%",
    control: Annotated[
        str | None, typer.Option(metavar="ARM", help="Of two runs: divide by this arm's values.")
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="For a terminal, or for a pull request.")] = "text",
    as_json: JsonOption = False,
) -> int:
    """Compare the arms of a judged run with each other, or two runs of one plan, block by block."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.compare import runs as compared
    from aftershock.results.compare.blocks import parse
    from aftershock.results.compare.runs import Asked, arms_of, between

    first, *others = [find_run(run, out) for run in runs]
    if len(others) > 1 or (control and not others):
        raise AftershockError("compare takes one run, or two (the one before first); --control needs two")
    asked = Asked(tuple(map(parse, metric or ())), _margin(margin), control)
    found = between(first, others[0], asked) if others else arms_of(first, asked)
    if not found:
        raise AftershockError(f"{first} has no workload with two arms to compare; name a second run")
    shown = compared.markdown(found) if style == "md" else compared.text(found)
    print(json.dumps(compared.document(found), indent=1) if as_json else shown)
    return compared.exit_code(found)


def trend(
    ledger: Annotated[Path, typer.Option(metavar="FILE|DIR", help="The ledger, or the folder it is in.")] = Path(),
    add: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Add this judged run first.")] = None,
    out: OutOption_cli_compare = Path("runs"),
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the series for Apache Otava.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE", help="Look at nights from this day on.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Say which nightly series have changed, since when, and by how much."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.compare import history
    from aftershock.results.compare import history as known_issues
    from aftershock.results.compare import trend as trend_text
    from aftershock.results.compare.trend import trends
    from aftershock.results.evidence.files import write_whole
    from aftershock.results.evidence.stored import stored

    path = history.ledger_in(ledger)
    for said in history.add(path, [stored(find_run(run, out)) for run in add or ()]):
        print(said, file=sys.stderr)
    read, begin = history.read_ledger(path), _day(since)
    lines = [line for line in read.lines if line.night >= begin]
    if csv is not None:
        text, filled = trend_text.otava(lines)
        write_whole(csv, text)
        print(f"{csv}: {filled} cells without a value have their neighbour's", file=sys.stderr)
    found = trends(lines, known_issues.read_known_issues(path.parent / known_issues.KNOWN_ISSUES_FILE))
    print(
        json.dumps(trend_text.document(found, read.broken), indent=1)
        if as_json
        else trend_text.text(found, read.broken)
    )
    return trend_text.exit_code(found, read.broken)


def _margin(text: str) -> float:
    """``10%`` as 1.1: ratios from 1/1.1 to 1.1."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise AftershockError(f"a margin of {text} can't be; give more than 0% and at most 100%, like 10%")
    return 1 + share


def _day(text: str | None) -> date:
    try:
        return date.fromisoformat(text) if text else date.min
    except ValueError as wrong:
        raise AftershockError(f"{text} is no day; write it like 2026-11-21") from wrong


OutOption_cli_sql = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
WordsArgument = Annotated[
    list[str], typer.Argument(metavar="[RUN]... QUERY", help='Runs, by path or id, and the query: "select ...".')
]
EvidenceOption = Annotated[
    str | None, typer.Option(metavar="URI", help="Evidence elsewhere: hdfs://, s3a://, file:/, as Hadoop writes it.")
]


def register_sql(app: typer.Typer, runs: typer.Typer) -> None:
    """Add the commands."""
    app.command()(sql)
    runs.command()(archive)


def sql(
    words: WordsArgument,
    out: OutOption_cli_sql = Path("runs"),
    evidence: EvidenceOption = None,
    history: Annotated[Path | None, typer.Option(metavar="DIR", help="What `runs archive` made.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array, an object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a head.")] = False,
    spark: Annotated[str | None, typer.Option(metavar="MASTER", help="A Spark master, or sc://host:port.")] = None,
) -> int:
    """Query runs in Spark SQL: outcomes, log, metrics, latency_hist, checks, phases, journal, events."""
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.runs import find_run
    from aftershock.results.spark.sql import Question, as_table, ask
    from aftershock.results.spark.sql import as_csv as csv_lines
    from aftershock.results.spark.sql import as_json as json_lines

    *names, text = words
    if sum(map(bool, (names, evidence, history))) != 1:
        raise AftershockError("say what to query: RUN..., or --evidence URI, or --history DIR; the query comes last")
    if as_json and as_csv:
        raise AftershockError("--json or --csv, not both")
    lines = json_lines if as_json else csv_lines if as_csv else as_table
    question = Question(text, [find_run(name, out) for name in names], evidence, history, out)
    ask(question, spark, Progress().say, lambda rows: _print(lines(rows.columns, rows.toLocalIterator())))
    return 0


def archive(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Judged runs, by path or id.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The history's folder; made when it isn't there.")],
    out: OutOption_cli_sql = Path("runs"),
) -> int:
    """Copy what judging made of runs into a history, which `sql --history` queries as one."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.spark.sql import archive as archived

    for path in [find_run(name, out) for name in runs]:
        for file in archived(path, to):
            print(file)
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
