"""Questions to evidence: ``sql``, and ``runs archive``, which makes the history that it can ask as well."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError

OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
WordsArgument = Annotated[
    list[str], typer.Argument(metavar="[RUN]... QUERY", help='Runs, by path or id, and the query: "select ...".')
]
EvidenceOption = Annotated[
    str | None, typer.Option(metavar="URI", help="Evidence elsewhere: hdfs://, s3a://, file:/, as Hadoop writes it.")
]


def register(app: typer.Typer, runs: typer.Typer) -> None:
    """Add the commands."""
    app.command()(sql)
    runs.command()(archive)


def sql(
    words: WordsArgument,
    out: OutOption = Path("runs"),
    evidence: EvidenceOption = None,
    history: Annotated[Path | None, typer.Option(metavar="DIR", help="What `runs archive` made.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array, an object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a head.")] = False,
    spark: Annotated[str | None, typer.Option(metavar="MASTER", help="A Spark master, or sc://host:port.")] = None,
) -> int:
    """Query runs in Spark SQL: outcomes, log, metrics, latency_hist, checks, phases, journal, events."""
    from aftershock.harness.progress import Progress
    from aftershock.harness.runs import find_run
    from aftershock.results.sql.ask import Question, ask
    from aftershock.results.sql.printed import as_csv as csv_lines
    from aftershock.results.sql.printed import as_json as json_lines
    from aftershock.results.sql.printed import as_table

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
    out: OutOption = Path("runs"),
) -> int:
    """Copy what judging made of runs into a history, which `sql --history` queries as one."""
    from aftershock.harness.runs import find_run
    from aftershock.results.sql.history import archive as archived

    for path in [find_run(name, out) for name in runs]:
        for file in archived(path, to):
            print(file)
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
