"""What a session leaves to read: ``session.json``, ``index.html``, and a section of pytest's terminal summary.

On GitHub also annotations on the plans' lines, and the summary of the job's step.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.harness.github import tell
from aftershock.harness.pool.pool import Pool
from aftershock.harness.suite.leased_run import pool_of
from aftershock.harness.suite.session import Entry, Suite
from aftershock.harness.suite.verdicts import Judged, unjudged
from aftershock.results.report.index import write_index

_NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Kept:
    """The cluster of a failed test's run: its own run id, if it could be kept, else why not."""

    entry: Entry
    cluster: str = ""
    bootstrap: str = ""
    why: str = ""


def finish(suite: Suite, judged: Mapping[str, Judged], failed: Collection[str], start: Path) -> list[str]:
    """Keep or remove the clusters, tell GitHub, write ``session.json`` and the index; gives the terminal's lines.

    ``failed``: the tests that did not pass. Paths are shown as seen from ``start``.
    """
    runs = {entry.run_id: judged.get(entry.run_id) or unjudged(suite.out / entry.run_id) for entry in suite.entries()}
    told = [_line(entry, runs[entry.run_id], start) for entry in suite.entries()]
    kept: list[Kept] = []
    try:
        kept = _put_away(suite, failed)
    except AftershockError as error:
        told.append(f"the clusters could not be put away: {error}; `aftershock heal` removes what is left")
    if runs:
        told += _annotations(runs.values())
        told.append(f"index: {_shown(_written(suite, runs, kept), start)}")
    return [*told, *[line for one in kept for line in _about(one)]]


def _annotations(runs: Iterable[Judged]) -> list[str]:
    """GitHub's workflow commands, none elsewhere: in a terminal that pytest writes to, each needs a line of its own."""
    commands = StringIO()
    tell(dict.fromkeys(run.counts.home for run in runs if run.counts.verdict), out=commands)
    return commands.getvalue().splitlines()


def _put_away(suite: Suite, failed: Collection[str]) -> list[Kept]:
    """Keep the clusters of failed tests' runs if that was asked for, and remove all others."""
    pool = pool_of(suite)
    asked = [_kept(pool, suite, entry) for entry in suite.entries() if suite.keep_failed and entry.test in failed]
    pool.close(_silent)
    kept = {one.entry.test for one in asked if one.cluster}
    # a test's earlier run on the same cluster needs no excuse
    return [one for one in asked if one.cluster or one.entry.test not in kept]


def _kept(pool: Pool, suite: Suite, entry: Entry) -> Kept:
    try:
        cluster = pool.keep(suite.out / entry.run_id)
    except AftershockError as error:
        return Kept(entry, why=str(error))
    if cluster is None:
        return Kept(entry, why="it served a later test; run this one alone to keep it")
    with closing(cluster):
        return Kept(entry, cluster.run_id, cluster.bootstrap(None))


def _written(suite: Suite, runs: Mapping[str, Judged], kept: Sequence[Kept]) -> Path:
    document = {
        "schema_version": 1,
        "session": suite.folder.name,
        "runs": [_row(entry, runs[entry.run_id]) for entry in suite.entries()],
        "kept": [one.cluster for one in kept if one.cluster],
    }
    (suite.folder / "session.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return write_index([run.home for run in runs.values()], suite.folder, suite.folder.name)


def _row(entry: Entry, run: Judged) -> dict[str, str | None]:
    return {
        "run": entry.run_id,
        "test": entry.test,
        "status": run.status.value if run.verdict else None,
        "why": run.why or None,
        "repeated_as": run.again.home.name if run.again else None,
    }


def _line(entry: Entry, run: Judged, start: Path) -> str:
    if not run.verdict:
        return f"{_NOT_JUDGED:<12} {entry.test}  {_shown(run.home, start)}: {run.why.splitlines()[0]}"
    again = f"  (the host was starved; {run.again.home.name} counts)" if run.again else ""
    return f"{run.status:<12} {entry.test}  {_shown(run.home / 'report.html', start)}{again}"


def _about(kept: Kept) -> Iterator[str]:
    if not kept.cluster:
        yield f"not kept: the cluster of {kept.entry.test}: {kept.why}"
        return
    yield f"kept: the cluster of {kept.entry.test}, bootstrap {kept.bootstrap}"
    yield f"  look at it:  aftershock cluster status --run {kept.cluster}"
    yield f"  clean it up: aftershock cluster down --run {kept.cluster}"


def _shown(path: Path, start: Path) -> Path:
    return path.relative_to(start) if path.is_relative_to(start) else path


def _silent(_: str) -> None:
    """What was put away as it should be needs no word."""
