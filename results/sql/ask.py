"""Asks runs, evidence elsewhere, or a history one question, in a Spark session that begins and ends with it.

Rules: Spark's log is kept only where something went wrong, and is named then.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from aftershock.errors import AftershockError
from aftershock.results.evidence import Evidence, read, told_apart
from aftershock.results.session import JVM_LOST, session
from aftershock.results.spark.conf import UNKNOWN, load_of
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.tables import columns
from aftershock.results.sql import history, views
from aftershock.results.sql.statement import answered, first_word, refused

Say = Callable[[str], None]
Show = Callable[[DataFrame], None]


@dataclass(frozen=True)
class Question:
    """A query, and of what: run directories, or the evidence at a URI, or a history. ``out``: where results lie."""

    text: str
    runs: Sequence[Path]
    evidence: str | None
    history: Path | None
    out: Path


def ask(question: Question, master: str | None, say: Say, show: Show) -> None:
    """Has the answer shown. AftershockError where evidence is bad, or where Spark can't do what was asked."""
    first_word(question.text)  # no query: said before a JVM is started for it
    runs = [read(run, columns()) for run in question.runs]
    told_apart(runs)
    parts = [part for one in runs for parts in one.parquet.values() for part in parts]
    load = load_of(parts) if runs else UNKNOWN
    with _log() as log, session(log, master, load) as spark:
        if question.history:
            history.create_views(spark, question.history)
        else:
            _create_views(spark, question, runs, say)
        _shown(answered(spark, question.text), show)


def _create_views(spark: SparkSession, question: Question, runs: Sequence[Evidence], say: Say) -> None:
    if question.evidence:
        runs = [read_at(spark, question.evidence, question.out, columns())]
    views.create_views(spark, runs)
    for missing in views.unjudged(runs, question.text):
        say(f"{missing}: none yet; judge the run first: aftershock verdict")


def _shown(rows: DataFrame, show: Show) -> None:
    try:
        show(rows)
    except (PySparkException, *JVM_LOST) as broken:
        raise refused(broken) from None


@contextmanager
def _log() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aftershock-sql-"))
    log = folder / "spark.log"
    try:
        yield log
    except AftershockError as error:
        if log.exists():
            error.add_note(f"Spark's log: {log}")
        raise
    log.unlink(missing_ok=True)
    folder.rmdir()
