"""Runs of the zoo: for each bug that a released client had, its plan, with the broken and the fixed version as arms.

A bug's plan is ``faults/plans/zoo/<id>.yaml``. What a run's verdict said is stored in ``docs/evidence/zoo/<id>.json``,
from which ``docs/ZOO.md`` is written. Runs of another plan count as another attempt; the last attempt counts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.faults.sections.document import did_you_mean
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.campaigns.store import Planned, Record, hash_of
from aftershock.redaction import PLACE
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.model.check import check_from_json
from aftershock.results.model.text import table
from aftershock.results.studies.zoo import Attempt, Bug, Outcome, attempt_of, judge, read_bugs

NAME = "zoo"
ATTEMPTS_MAX = 3
MINUTES_MAX = 5.0
_AROUND_S = 70.0  # launch, final reads and judging
SCHEMA_VERSION = 1


def find_bug(name: str) -> Bug:
    """Return a registered bug that can run; raise AftershockError for an unknown one, and for one that can't."""
    bugs = read_bugs()
    if name not in bugs:
        raise AftershockError(f"{name}: no such bug in the zoo; {did_you_mean(name, bugs, listed=False)}")
    if why := bugs[name].obstacle:
        raise AftershockError(f"{name} can't be run: {why}")
    return bugs[name]


def planned(bug: Bug, kafka: str | None = None) -> Planned:
    plan = f"zoo/{bug.id}"
    load_s = compile_checked(load_plan(find(plan)), 0).length_ms / 1000
    return Planned(bug.id, plan, _AROUND_S + load_s, kafka=kafka)


def runnable() -> list[Bug]:
    return [bug for bug in read_bugs().values() if not bug.obstacle]


@dataclass(frozen=True)
class Entry:
    """A bug and its stored attempts, oldest first."""

    bug: Bug
    attempts: Sequence[Attempt] = ()

    @property
    def plans(self) -> Sequence[str]:
        """Digests of the plans that were tried, in their order."""
        return tuple(dict.fromkeys(attempt.plan for attempt in self.attempts))

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes of the runs of the last plan that was tried."""
        return [judge(self.bug, attempt) for attempt in self.attempts if attempt.plan == self.plans[-1]]

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the bug: that of the last plan's first run; None if it was not tried."""
        return next(iter(self.outcomes), None)

    @property
    def word(self) -> str:
        return self.outcome.word if self.outcome else "not tried"


def of_record(record: Record, home: Path) -> list[Entry]:
    """Return an entry for each bug, with the stored run of it below ``home`` as its attempt."""
    entries = []
    for bug in read_bugs().values():
        run = record.stored(bug.id)
        entries.append(Entry(bug, [attempt_in(home / run)] if run else []))
    return entries


def attempt_in(home: Path) -> Attempt:
    """Return what the verdict of the run in ``home`` says; runs of one plan with other seeds have the same digest."""
    return attempt_of(read_judged_run(home), hash_of({**dump(load_plan(home / "plan.yaml").plan), "why": None}))


def keep(folder: Path, entries: Iterable[Entry]) -> None:
    """Add the attempts of ``entries`` to the stored evidence; raise AftershockError for a fourth plan of a bug."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {entry.bug.id: entry for entry in read_entries(folder)}
    for entry in entries:
        known = {attempt.run_id for attempt in stored[entry.bug.id].attempts}
        new = [attempt for attempt in entry.attempts if attempt.run_id not in known]
        if not new:
            continue
        together = Entry(entry.bug, (*stored[entry.bug.id].attempts, *new))
        if len(together.plans) > ATTEMPTS_MAX:
            raise AftershockError(f"{entry.bug.id}: {len(together.plans)} plans were tried; {ATTEMPTS_MAX} are allowed")
        rows = [
            asdict(attempt) | {"checks": [check.to_json() for check in attempt.checks]} for attempt in together.attempts
        ]
        document = json.dumps({"schema_version": SCHEMA_VERSION, "attempts": rows}, indent=1)
        document = document.replace(str(Path.home()), "~")  # shipped programs are in the user's cache folder
        if place := PLACE.search(document):
            raise AftershockError(f"{entry.bug.id}: its evidence names {place[0]!r}, which must not be published")
        write_whole(folder / f"{entry.bug.id}.json", document + "\n")


def read_entries(folder: Path) -> list[Entry]:
    """Return an entry for each registered bug, with the attempts in ``folder``; raise EvidenceError for damage."""
    entries = []
    for bug in read_bugs().values():
        path = folder / f"{bug.id}.json"
        rows: Sequence[Mapping[str, Any]] = read_object(path)["attempts"] if path.exists() else ()
        try:
            attempts = [
                Attempt(**{**row, "checks": tuple(check_from_json(check) for check in row["checks"])}) for row in rows
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"{path}: not evidence of the zoo ({error!r}); restore the file") from error
        entries.append(Entry(bug, attempts))
    return entries


def text(entry: Entry) -> str:
    """Return a bug and what the last verdict said of its two versions, for a terminal."""
    bug, outcome = entry.bug, entry.outcome
    lines = [f"{bug.id}: {bug.title}", f"  {bug.versions} ({bug.tracker}); promise: {bug.promise}"]
    if outcome is None:
        return "\n".join([*lines, f"  not tried{f': {bug.obstacle}' if bug.obstacle else ''}"])
    lines.append(f"  {outcome.word}{f': {outcome.checks[0]}: {outcome.why}' if outcome.checks else ''}")
    return "\n".join(lines)


def document(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the JSON document that ``aftershock zoo run --json`` and ``zoo all --json`` print."""
    rows = [
        {
            "bug": entry.bug.id,
            "word": entry.word,
            "checks": list(entry.outcome.checks) if entry.outcome else [],
            "runs": [attempt.run_id for attempt in entry.attempts],
        }
        for entry in entries
    ]
    return {"schema_version": SCHEMA_VERSION, "bugs": rows}


def exit_code(entries: Iterable[Entry]) -> int:
    """Return 1 if a fixed version was blamed, else 2 if a bug was not found, else 0."""
    words = {entry.word for entry in entries}
    return 1 if "fixed blamed" in words else 2 if words - {"found"} else 0


def counts_in_words(entries: Sequence[Entry]) -> str:
    """Return the counts of ``docs/ZOO.md`` in a sentence each."""
    tried = [entry for entry in entries if entry.outcome]
    found = [entry for entry in tried if entry.word == "found"]
    without_slo = sum(not entry.outcome.by_slo for entry in found if entry.outcome)
    blamed = sum(outcome.word == "fixed blamed" for entry in tried for outcome in entry.outcomes)
    runs = sum(len(entry.outcomes) for entry in tried)
    again = [entry for entry in tried if len(entry.outcomes) > 1]
    same = sum(len({outcome.word for outcome in entry.outcomes}) == 1 for entry in again)
    sentences = (
        f"{len(tried)} of {len(entries)} registered bugs were tried.",
        f"The verdict alone told the broken version from the fixed one for **{len(found)} of {len(tried)}**,",
        f"for {without_slo} of them by checks that need no SLO.",
        f"Fixed versions were blamed in {blamed} of {runs} runs.",
        f"A second run said the same for {same} of {len(again)} bugs.",
    )
    return " ".join(sentences)


def markdown(entries: Sequence[Entry]) -> str:
    rows = [_row(entry) for entry in entries]
    head = ["bug", "tracker", "versions", "promise", "verdict", "by", "runs", "min"]
    notes = [f"* `{entry.bug.id}` is not run: {entry.bug.obstacle}" for entry in entries if entry.bug.obstacle]
    return "\n".join([counts_in_words(entries), "", "".join(table(head, rows)).rstrip(), "", *notes]).rstrip()


def _row(entry: Entry) -> list[str]:
    bug, outcome = entry.bug, entry.outcome
    same = f"{sum(other.word == entry.word for other in entry.outcomes)} of {len(entry.outcomes)}" if outcome else ""
    minutes = f"{entry.attempts[-1].minutes:.1f}" if entry.attempts else ""
    by = ", ".join(outcome.checks[:2]) if outcome else ""
    return [f"{bug.id}: {bug.title}", bug.tracker, bug.versions, bug.promise, entry.word, by, same, minutes]
