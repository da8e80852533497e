"""Commands that read judged runs, among them ``runs archive``, ``runs pack`` and ``runs export``.

The commands ``report`` and ``explain`` read stored results and don't start Spark. The exit code of ``compare`` and
``trend`` is 0 for improved, equivalent or steady, 1 for regressed, 2 for inconclusive, and 3 for an error.
"""

import json
import os
import re
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.cli.options import ERROR, EvidenceOption, JsonOption, OutOption, RunArgument
from aftershock.redaction import redact
from aftershock.results.model.text import visible

_COMPARED_RUNS_MAX = 8  # more columns do not fit on a screen

ReportFormat = Literal["html", "md"]
TextFormat = Literal["text", "md"]
FormatOption = Annotated[
    TextFormat, typer.Option("--format", help="Format of the output: plain text, or Markdown to paste.")
]
_RECORD = re.compile(r"(\d+):(\d+)")


def report(
    run_dirs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run directories, or run ids under --out.")],
    out: OutOption = Path("runs"),
    style: Annotated[
        ReportFormat, typer.Option("--format", help="Write an HTML file beside the evidence, or print Markdown.")
    ] = "html",
) -> int:
    """Write the report.html of judged runs and, for several runs in one folder, an index; or print Markdown.

    Up to eight runs also get a comparison.html with their checks side by side.
    """
    from aftershock.harness.run.runs import find_run
    from aftershock.results.report.page import write_report
    from aftershock.results.report.several import markdown, write_comparison, write_index

    paths = [find_run(run_dir, out) for run_dir in run_dirs]
    if style == "md":
        for path in paths:
            print(markdown(path))
        return 0
    code = 0
    for path in paths:
        try:
            print(write_report(path))
        except EvidenceError as error:  # continue with the next run
            print(visible(str(error)), file=sys.stderr)
            code = ERROR
    folders = {path.resolve().parent for path in paths}
    if len(paths) > 1 and len(folders) == 1:
        folder = folders.pop()
        title = f"{len(paths)} runs in {folder.name}"
        comparison = write_comparison(paths, folder, title) if len(paths) <= _COMPARED_RUNS_MAX else None
        print(*filter(None, (comparison, write_index(paths, folder, title, comparison))), sep="\n")
    elif len(paths) > 1:
        why = "no index page was written, because the runs are in several folders"
        print(f"{why}; move the runs into one folder, or report each folder by itself", file=sys.stderr)
    return code


def explain(
    run_dir: RunArgument,
    record: Annotated[
        str | None, typer.Option(metavar="PRODUCER:SEQ", help="Follow one record through all its attempts.")
    ] = None,
    out: OutOption = Path("runs"),
    as_json: JsonOption = False,
    style: FormatOption = "text",
) -> int:
    """Explain each fault of a run, its effect on the clients, and the slowest records with their causes."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.explain import output
    from aftershock.results.explain.record import record_history

    path = find_run(run_dir, out)
    if record is None:
        story = output.story(path)
        document = story.to_json()
        text = output.story_markdown(story) if style == "md" else output.story_text(story)
    else:
        match = _RECORD.fullmatch(record)
        if match is None:
            advice = "write PRODUCER:SEQ, for example 0:1580, as reports and checks do"
            raise AftershockError(f"{record!r} is not a record; {advice}")
        history = record_history(path, int(match[1]), int(match[2]))
        document = history.to_json()
        text = output.record_markdown(history) if style == "md" else output.record_text(history)
    print(json.dumps(document, indent=1) if as_json else text, end="\n" if as_json else "")
    return 0


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN [RUN]", help="Run whose arms to compare, or two runs to compare: the earlier run first."
        ),
    ],
    out: OutOption = Path("runs"),
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC", help="A metric, for example 'produce.latency p95 in fault', 'produce.gap' or 'recovery'."
        ),
    ] = None,
    margin: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Largest difference at which values of a metric count as equivalent."),
    ] = "25%",
    control: Annotated[
        str | None,
        typer.Option(
            metavar="ARM",
            help="Divide the values of each run by the values of this arm. Two runs are inconclusive without it.",
        ),
    ] = None,
    style: FormatOption = "text",
    as_json: JsonOption = False,
) -> int:
    """Compare the arms of a judged run, or two runs of one plan, by the blocks (repetitions) of the plan's faults.

    Two runs differ in their hosts or nights, so they are inconclusive unless --control names an arm to divide by.
    """
    from aftershock.harness.run.runs import find_run
    from aftershock.results.compare import runs as comparison
    from aftershock.results.compare.blocks import parse

    first, *second = [find_run(run, out) for run in runs]
    if len(second) > 1 or (control and not second):
        raise AftershockError("compare takes one run, or two (the earlier one first); --control needs two")
    try:
        share = float(margin.strip().removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise AftershockError(f"--margin {margin} is not valid; give more than 0% and at most 100%, for example 10%")
    # a margin of 10 % allows ratios from 1/1.1 to 1.1
    request = comparison.Options(tuple(map(parse, metric or ())), 1 + share, control)
    pairs = comparison.between(first, second[0], request) if second else comparison.arms_of(first, request)
    if not pairs:
        raise AftershockError(f"{first} has no workload with two arms to compare; name a second run")
    text = comparison.markdown(pairs) if style == "md" else comparison.text(pairs)
    print(json.dumps(comparison.document(pairs), indent=1) if as_json else text)
    return comparison.exit_code(pairs)


def trend(
    ledger: Annotated[
        Path, typer.Option(metavar="FILE|DIR", help="File with the history of nightly figures, or its folder.")
    ] = Path(),
    add: Annotated[list[str] | None, typer.Option(metavar="RUN", help="First add this judged run to the file.")] = None,
    out: OutOption = Path("runs"),
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the nightly figures as a CSV file for Apache Otava.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Ignore nights before this date, for example 2026-11-21.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Report which nightly figures have changed, since when, and by how much."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.compare import history
    from aftershock.results.compare import trend as trend_text
    from aftershock.results.evidence.files import write_whole
    from aftershock.results.evidence.stored import read_judged_run

    path = history.ledger_in(ledger)
    for message in history.add(path, [read_judged_run(find_run(run, out)) for run in add or ()]):
        print(message, file=sys.stderr)
    read = history.read_ledger(path)
    try:
        begin = date.fromisoformat(since) if since else date.min
    except ValueError as error:
        raise AftershockError(f"--since {since} is not a date; write it like 2026-11-21") from error
    lines = [line for line in read.lines if line.night >= begin]
    if csv is not None:
        text, filled = trend_text.otava(lines)
        write_whole(csv, text)
        print(f"{csv}: {filled} cells without a value have the value of the neighbouring cell", file=sys.stderr)
    series = trend_text.trends(lines, history.read_known_issues(path.parent / history.KNOWN_ISSUES_FILE))
    if as_json:
        print(json.dumps(trend_text.document(series, read.broken), indent=1))
    else:
        print(trend_text.text(series, read.broken))
    return trend_text.exit_code(series, read.broken)


def sql(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[RUN]... QUERY", help='Run directories or run ids, and then the query: "select ...".'),
    ],
    out: OutOption = Path("runs"),
    evidence: EvidenceOption = None,
    history: Annotated[Path | None, typer.Option(metavar="DIR", help="Query a history made by `runs archive`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array with one object for each row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
    spark: Annotated[
        str | None, typer.Option(metavar="MASTER", help="Spark master, or sc://host:port (default: local[2]).")
    ] = None,
) -> int:
    """Query the tables outcomes, log, metrics, latency_hist, checks, phases, journal, events of runs in Spark SQL."""
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.runs import find_run
    from aftershock.results.spark import sql as query

    *names, text = words
    if sum(map(bool, (names, evidence, history))) != 1:
        raise AftershockError("name what to query: RUN..., --evidence URI or --history DIR; the query comes last")
    if as_json and as_csv:
        raise AftershockError("--json and --csv exclude each other; give one of them")
    lines = query.as_json if as_json else query.as_csv if as_csv else query.as_table
    question = query.Question(text, [find_run(name, out) for name in names], evidence, history, out)
    query.ask(
        question,
        spark,
        Progress().log,
        lambda rows: sys.stdout.writelines(line + "\n" for line in lines(rows.columns, rows.toLocalIterator())),
    )
    return 0


def archive(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Judged runs: run directories, or run ids under --out.")
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the history, created if missing.")],
    out: OutOption = Path("runs"),
) -> int:
    """Copy the judged data of runs into a history, which `sql --history` queries as a whole."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.spark.sql import archive as archive_run

    for path in [find_run(name, out) for name in runs]:
        for file in archive_run(path, to):
            print(file)
    return 0


def pack(
    run_dir: RunArgument,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write (default: RUN.pack.zip in this folder)."),
    ] = None,
    out: OutOption = Path("runs"),
) -> int:
    """Write a run's evidence to one file that other machines can judge, without secrets, host names and paths."""
    from aftershock.harness.run.runs import find_run, size
    from aftershock.results.evidence.pack import SUFFIX
    from aftershock.results.evidence.pack import pack as pack_run

    path = find_run(run_dir, out)
    target = to or Path(path.resolve().name.removesuffix(".pack") + SUFFIX)
    print(f"{target}: {size(pack_run(path, target))}")
    return 0


def export(
    run_dir: RunArgument,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenTelemetry collector (OTLP over HTTP): http://HOST:4318.")
    ] = None,
    grafana: Annotated[
        str | None, typer.Option(metavar="URL", help="Grafana to annotate; its token is read from GRAFANA_TOKEN.")
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="File of the textfile collector of Prometheus' node exporter."),
    ] = None,
    out: OutOption = Path("runs"),
) -> int:
    """Send a run to an OpenTelemetry collector or Grafana, or write its verdict as gauges for Prometheus."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.evidence.files import read_object
    from aftershock.results.evidence.stored import verdict_of
    from aftershock.results.report.prometheus import write_gauges
    from aftershock.results.report.trace import annotate_grafana, export_trace, trace_of

    if not (otlp or grafana or prometheus):
        raise AftershockError("nowhere to send the run: give --otlp URL, --grafana URL or --prometheus FILE.prom")
    home = find_run(run_dir, out)
    if prometheus:
        if prometheus.suffix != ".prom":
            raise AftershockError(f"{prometheus}: the collector reads files whose names end in .prom; name it so")
        write_gauges(verdict_of(home), read_object(home / "run.json"), prometheus)
        print(f"{prometheus}: the verdict of {home.name}")
    if not (otlp or grafana):
        return 0
    root = trace_of(home)
    if otlp:
        export_trace(root, otlp)
        print(f"{redact(otlp)}: a trace of {len(root.children)} phases and faults")
    if grafana:
        written = annotate_grafana(root, grafana, os.environ.get("GRAFANA_TOKEN", ""))
        print(f"{redact(grafana)}: {written} annotations")
    return 0
