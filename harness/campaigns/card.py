"""Report card of an audit: what each client did in each scenario, in the forms in which it is printed and published.

A card is computed from the runs that ``campaign.json`` names; these runs are its evidence. ``reduce`` makes evidence
that is small enough for a repository. Cards of ``audit/1`` have the figures that were stored with their runs; since
``audit/2``, a row is a workload of a run, and all figures are counted from its records.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isinf
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.audit import NAME, record_in
from aftershock.harness.campaigns.evidence import Observed, replacement, size_of, write_run
from aftershock.harness.campaigns.store import Planned, Record
from aftershock.harness.cluster.topology import PROFILES
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.model.check import Check, Status, percent
from aftershock.results.model.text import amount, table
from aftershock.results.report.page import filled
from aftershock.results.studies.audit import (
    SYMBOLS,
    Advice,
    Cell,
    Change,
    Mark,
    advice_of,
    cells_of,
    changes_of,
    is_broken,
    unsupported,
)
from aftershock.results.studies.part import Part
from aftershock.results.studies.ranks import Paired
from aftershock.results.studies.recount import Recount
from aftershock.results.studies.scoring import Line, cluster_checks, score
from aftershock.results.studies.suite import CLUSTER, DIGITS, TITLES, client_of, registered

DOCUMENT, PAGE, MARKDOWN, BADGE = "audit.json", "audit.html", "audit.md", "badge.svg"
BYTES_MAX = 8_000_000
_REFUSED: Mark = "unsupported"
_SLOWDOWN = "p95: latency under the fault, relative to the steady phase"
_CHECKS = ("harness", "witness", "exposure", "integrity", "obligation", "slo")


@dataclass(frozen=True)
class OfCluster:
    """What a scenario's run says of no client: whether it failed, and its checks that belong to the cluster."""

    scenario: str
    status: Status
    checks: Sequence[Check]

    @property
    def text(self) -> str:
        """The checks of the cluster that did not pass, empty if all did."""
        broken = [f"{check.id}: {check.why}" for check in self.checks if is_broken(check)]
        others = dict.fromkeys(f"{check.id} undecided" for check in self.checks if not is_broken(check))
        return "; ".join([*broken, *others])


@dataclass(frozen=True)
class Card:
    """Cells of all scenarios that were run, by scenario; ``missing`` has the reason for each of the others.

    ``lines`` has what a row says beside its cells, for cards since ``audit/2``. ``cluster`` has what no client is to
    blame for, of each run.
    """

    suite: str
    cells: Mapping[str, Sequence[Cell]]
    missing: Mapping[str, str]
    runs: Mapping[str, str]
    about: str
    advice: Sequence[Advice]
    changes: Sequence[Change] = ()
    lines: Mapping[str, Line] = field(default_factory=dict)
    cluster: Sequence[OfCluster] = ()

    @property
    def all_cells(self) -> list[Cell]:
        return [cell for cells in self.cells.values() for cell in cells]

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(cell.client for cell in self.all_cells))

    @property
    def failed(self) -> list[str]:
        """Scenarios whose run failed, whoever is to blame."""
        return [run.scenario for run in self.cluster if run.status is Status.FAIL]

    @property
    def cluster_mark(self) -> Mark:
        """Mark of the row that belongs to no client."""
        found = [is_broken(check) for run in self.cluster for check in run.checks]
        return "broken" if any(found) else "open" if found else "kept"

    def row(self, scenario: str) -> list[Cell | None]:
        """Return a scenario's cells in the order of ``clients``; None for a client without a cell."""
        by_client = {cell.client: cell for cell in self.cells[scenario]}
        return [by_client.get(client) for client in self.clients]

    def marks(self, client: str) -> str:
        """Return how many scenarios a client kept, as ``11 of 12``."""
        own = [cell for cell in self.all_cells if cell.client == client and cell.mark != _REFUSED]
        return f"{sum(cell.mark == 'kept' for cell in own)} of {len(own)}"

    @property
    def exit_code(self) -> int:
        """0 if every client kept every promise, 1 if one was broken or slow, 2 if scenarios are missing or open.

        An upgrade that is worse in a scenario, and a run that failed, give 1, too.
        """
        marks = {cell.mark for cell in self.all_cells}
        if self.failed or marks & {"broken", "slow"} or any(one.word in ("worse", "mixed") for one in self.changes):
            return 1
        return 2 if self.missing or marks & {"open", _REFUSED} or not marks or self.cluster_mark != "kept" else 0


def read_card(record: Record, home: Path, planned_runs: Sequence[Planned]) -> Card:
    """Compute the card from the finished ones of the planned runs. Raises EvidenceError for a damaged run."""
    return _card(record, home, {run.name: record.finished(run, home) for run in planned_runs})


def read_stored_card(record: Record, home: Path) -> Card:
    """Compute the card from all runs of the record. Raises EvidenceError for a damaged run."""
    return _card(record, home, {name: record.stored(name) for name in _scenarios_of(record)})


def _scenarios_of(record: Record) -> Sequence[str]:
    """Return the scenarios of the smallest suite that has all stored runs."""
    known = next((own for own in map(_plans, (False, True)) if {*record.runs} <= {*own}), None)
    if known is None:
        raise EvidenceError(f"no audit has the scenarios {', '.join(record.runs)}; name the folder of an audit")
    return known


def _plans(further: bool) -> Sequence[str]:  # noqa: FBT001 -- mapped over both
    return registered().plans(further=further)


def _card(record: Record, home: Path, runs: Mapping[str, str | None]) -> Card:
    cells, missing, stored, versions = dict[str, list[Cell]](), dict[str, str](), dict[str, str](), set[str]()
    advice, changes, lines, cluster = list[Advice](), list[Change](), dict[str, Line](), list[OfCluster]()
    units = set[str]()
    for scenario, run in runs.items():
        if run is None:
            missing[scenario] = record.left_out.get(scenario, "it has not run")
            continue
        part = Part(scenario, read_judged_run(home / run))
        if (plan := part.run.run.get("plan", scenario)) != scenario:
            raise EvidenceError(f"{home / run}: it ran the plan {plan}, not {scenario}; restore {store.NAME}")
        for row in _rows(record, scenario, part):
            cells[row.scenario], stored[row.scenario] = row.cells, run
            lines |= {row.scenario: row.line} if row.line else {}
            advice += row.advice
            changes += row.changes
        cluster.append(OfCluster(scenario, part.run.verdict.status, cluster_checks(part)))
        versions.add(str((part.run.run.get("versions") or {}).get("kafka", "unknown")))
        units.add(_units(part))
    for name, why in record.left_out.items():
        scenario, _, client = name.partition("/")
        rows = [scenario] if record.version == 1 else [row.id for row in registered().rows_of(scenario)]
        for row_id in rows if client else ():
            cells.setdefault(row_id, []).append(unsupported(row_id, client, why))
    suite = f"{NAME}/{record.version}{'' if {*runs} <= {*_plans(False)} else '+'}"
    about = [suite, f"Kafka {', '.join(sorted(versions)) or 'unknown'}", "profile fast", *sorted(units)]
    if record.version > 1:
        about.append(f"limits registered as {registered().digest}")
    return Card(suite, cells, missing, stored, ", ".join(about), advice, changes, lines, cluster)


@dataclass(frozen=True)
class _Row:
    scenario: str
    line: Line | None
    cells: list[Cell]
    advice: Sequence[Advice]
    changes: Sequence[Change]


def _rows(record: Record, scenario: str, part: Part) -> list[_Row]:
    """Return the rows of a scenario's run."""
    if record.version == 1:
        cells = cells_of(scenario, part)
        return [_Row(scenario, None, cells, advice_of(scenario, part, cells), changes_of(scenario, part, cells))]
    settings = broker_settings(part.run.timeline["cluster"])
    rows = registered().rows_of(scenario)
    counts = {workload: Recount(part, workload) for workload in {row.workload for row in rows}}
    scores = [score(row, counts[row.workload], registered(), settings) for row in rows]
    return [_Row(one.line.scenario, one.line, [*one.cells], one.advice, one.changes) for one in scores]


def broker_settings(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a run's brokers had, without Kafka's defaults."""
    profile = PROFILES[cluster.get("profile", "fast")]
    return {**profile.broker, **{name: str(value) for name, value in (cluster.get("config") or {}).items()}}


def _units(part: Part) -> str:
    """Return how often each fault of a run was repeated, for how many copies of each client."""
    blocks = max((step.get("block") or 1 for step in part.run.timeline["steps"]), default=1)
    arms = {arm for workload in part.run.timeline["workloads"] for arm in workload["arms"]}
    count = max(Counter(map(client_of, arms)).values(), default=1)
    return f"{blocks} repetitions of each fault" + (f" for {count} copies of each client" if count > 1 else "")


def reduce(home: Path, target: Path) -> int:
    """Write the evidence of an audit to ``target``; return its size in bytes.

    Raises AftershockError if the evidence is too large, names a place of this machine, or gives another card.
    """
    record = record_in(home)
    card = read_stored_card(record, home)
    with replacement(target, BYTES_MAX) as draft:
        for scenario, run in ((name, run) for name in _scenarios_of(record) if (run := record.stored(name))):
            observed = Observed(scenario, read_judged_run(home / run))
            _rows(record, scenario, observed)
            write_run(observed, draft / run, _CHECKS if record.version == 1 else None)
        store.write(draft, record)
        if read_stored_card(record, draft) != card:
            raise AftershockError(f"{target}: the reduced evidence gives another card")
    return size_of(target)


def figures(cell: Cell) -> str:
    """Return the figures of a cell in a few words: recovery with its interval, longest gap, what was lost, slowdown.

    Since ``audit/2`` the first figure is that of the row, with the rank of the client and by how much it is behind.
    """
    parts = []
    if cell.rank is not None:
        parts.append(f"rank {cell.rank}")
    if cell.recovery.n:
        bounds = (cell.recovery.low_s, cell.recovery.high_s)
        low, high = ("never" if value is None else f"{value:.{cell.digits}f}" for value in bounds)
        parts.append(median(cell) if cell.is_bound else f"{median(cell)} ({low} to {high})")
    if cell.before_heal is not None:
        parts.append(f"{cell.before_heal} of {cell.recovery.n} before the heal")
    if cell.behind is not None:
        parts.append(f"{_paired(cell.behind, cell.digits)} behind {cell.best}")
    if cell.gap_s is not None:
        parts.append(f"gap {cell.gap_s:.1f} s")
    elif parts:
        parts.append("gap longer than a repetition")
    counts = {"failed": cell.failed, "twice": cell.duplicates, "lost": cell.lost}
    parts += [f"{count} {word}" for word, count in counts.items() if count]
    if cell.slowdown is not None:
        parts.append(f"p95 {cell.slowdown:.{0 if cell.slowdown >= 10 else 1}f} times")  # noqa: PLR2004 -- two digits
    return ", ".join(parts) or ("" if cell.mark == _REFUSED else "no figures")


def _paired(behind: Paired, digits: int) -> str:
    bound = "at least " if behind.at_least else ""
    values = (behind.median_s, behind.low_s, behind.high_s)
    middle, low, high = (f"{round(value, digits) + 0.0:.{digits}f}" for value in values)  # without a negative zero
    return f"{bound}{middle} s ({low} to {high}, n = {behind.n})"


def marked(cell: Cell | None, words: Callable[[Cell], str] = figures) -> str:
    """Return a cell's mark and its figures; nothing for a client that did not run in a scenario."""
    return f"{SYMBOLS[cell.mark]} {words(cell)}".rstrip() if cell else ""


def median(cell: Cell) -> str:
    """Return the median of the recovery; nothing for a cell without one."""
    if not cell.recovery.n:
        return ""
    if cell.is_bound:
        return "not before the heal" if cell.before_heal is not None else f"longer than {cell.recovery.median_s:.1f} s"
    return "never" if cell.recovery.median_s is None else f"{cell.recovery.median_s:.{cell.digits}f} s"


def alone(line: Line) -> str:
    """Return what the cluster alone needs: the figure of the reference client with ideal settings, and its range."""
    own, digits = line.alone, DIGITS[line.figure]
    if own.median_s is None:
        return "not measured"
    median_s, low_s, high_s = (f"{value or 0.0:.{digits}f}" for value in (own.median_s, own.low_s, own.high_s))
    return f"at least {median_s} s" if line.alone_is_bound else f"{median_s} s ({low_s} to {high_s})"


def difference(line: Line) -> str:
    """Return whether the clients of a row differ, and their share of the variance; nothing for a single one."""
    if line.explained is None:
        return ""
    word = "the clients differ" if line.told_apart else "no difference"
    return f"{word} ({percent(line.explained)} of the variance)"


def cluster_text(card: Card) -> str:
    """Return the cell of the row that belongs to no client, with the runs that failed, whoever is to blame."""
    found = [f"{run.scenario.replace('-', ' ')}: {run.text}" for run in card.cluster if run.text]
    failed = ", ".join(scenario.replace("-", " ") for scenario in card.failed)
    parts = [*(found or ["every check of the brokers passed"]), f"runs that FAILED: {failed or 'none'}"]
    return f"{SYMBOLS[card.cluster_mark]} {'; '.join(parts)}"


def text(card: Card) -> str:
    """Return the card for a terminal of 80 columns: a line for each client and scenario."""
    width = max((len(client) for client in card.clients), default=0)
    lines = [card.about]
    if not card.lines:
        lines.append("recovery: median (interval), from the fault until the client works as before")
    lines += [_SLOWDOWN, ""]
    for scenario, cells in card.cells.items():
        lines.append(scenario)
        if line := card.lines.get(scenario):
            lines.append(f"    {TITLES[line.figure]}: limit {amount(line.limit_s, 's')} = {line.formula}")
            lines.append(f"    the cluster alone: {alone(line)}")
            lines += [f"    {difference(line)}"] if line.explained is not None else []
        for cell in cells:
            lines.append(f"{SYMBOLS[cell.mark]:>3} {cell.client:{width}}  {figures(cell)}")
            if cell.reason:
                lines.append(f"    {cell.reason}")
    lines += [f"{scenario}: {why}" for scenario, why in card.missing.items()]
    lines += ["", *(f"{client}: {card.marks(client)} scenarios without a remark" for client in card.clients)]
    lines += [f"{CLUSTER}: {cluster_text(card)}"]
    for advice in card.advice:
        lines += ["", advice.text]
    for (before, after), changes in _by_upgrade(card).items():
        lines += ["", f"{before} → {after}, in the same repetitions"]
        lines += [f"{change.scenario}: {change.text}" for change in changes]
    return "\n".join("\n".join(textwrap.wrap(line, 80, subsequent_indent=" " * 4)) for line in lines)


def _by_upgrade(card: Card) -> dict[tuple[str, str], list[Change]]:
    found: dict[tuple[str, str], list[Change]] = {}
    for change in card.changes:
        found.setdefault((change.before, change.after), []).append(change)
    return found


def markdown(card: Card) -> str:
    """Return the card as a table for a README."""
    columns = ["scenario", *(["limit", "the cluster alone", "difference"] if card.lines else []), *card.clients]
    rows = [
        [scenario.replace("-", " "), *_beside(card, scenario), *map(marked, card.row(scenario))]
        for scenario in card.cells
    ]
    notes = f"\n* {CLUSTER}: {cluster_text(card)}"
    notes += "".join(f"\n* not run: {scenario}: {why}" for scenario, why in card.missing.items())
    refused = dict.fromkeys((cell.client, cell.reason) for cell in card.all_cells if cell.mark == _REFUSED)
    notes += "".join(f"\n* n/a: {client}: {reason}" for client, reason in refused)
    notes += "".join(f"\n* {advice.text}" for advice in card.advice)
    for (before, after), changes in _by_upgrade(card).items():
        words = [[change.scenario.replace("-", " "), change.word, change.text] for change in changes]
        notes += f"\n\n{''.join(table(['scenario', f'{before} → {after}', 'in the same repetitions'], words))}"
    figure = "Figure of a row, see its limit" if card.lines else "Recovery"
    about = f"{card.about}. {figure}: median (interval); {_SLOWDOWN}."
    return f"{about}\n\n{''.join(table(columns, rows))}{notes}\n"


def _beside(card: Card, scenario: str) -> list[str]:
    """Return the cells of a row that belong to no client."""
    if not card.lines:
        return []
    line = card.lines.get(scenario)
    return (
        [f"{TITLES[line.figure]}: {amount(line.limit_s, 's')}", alone(line), difference(line)] if line else ["", "", ""]
    )


def document(card: Card) -> dict[str, Any]:
    """Return the content of ``audit.json``."""
    about = {"suite": card.suite, "about": card.about, "runs": card.runs, "missing": card.missing}
    cells, advice = [*map(asdict, card.all_cells)], [*map(asdict, card.advice)]
    changes = [_finite(asdict(change)) for change in card.changes]
    lines = [*map(asdict, card.lines.values())]
    cluster = [{"scenario": run.scenario, "status": run.status, "why": run.text} for run in card.cluster]
    return {
        **about,
        "cells": cells,
        **({"rows": lines} if lines else {}),
        "cluster": cluster,
        "advice": advice,
        **({"changes": changes} if changes else {}),
    }


def _finite(change: dict[str, Any]) -> dict[str, Any]:
    """Return a change with null for what is infinite, which JSON has no number for."""
    differences = [
        {key: None if isinstance(value, float) and isinf(value) else value for key, value in difference.items()}
        for difference in change["differences"]
    ]
    return {**change, "differences": differences}


def badge(card: Card) -> str:
    """Return an SVG badge with the number of scenarios that each client kept."""
    label, value = "aftershock", "; ".join(f"{client} {card.marks(client)}" for client in card.clients) or "no runs"
    marks = {cell.mark for cell in card.all_cells}
    colour = (
        "#c62828"
        if "broken" in marks or card.failed
        else "#b26a00"
        if marks & {"slow", "open"} or not marks
        else "#2e7d32"
    )
    left, right = 8 + 7 * len(label), 8 + 7 * len(value)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {value}"><rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" y="14">{value}</text></g></svg>\n'
    )


def write(card: Card, home: Path) -> Path:
    """Write the card as JSON, page, Markdown and badge; return the page's path."""
    plans = dict.fromkeys(line.plan for line in card.lines.values())
    whys = {name: load(find(f"audit/{name}")).data["why"] for name in plans}
    write_whole(home / DOCUMENT, json.dumps(document(card), indent=1) + "\n")
    write_whole(home / MARKDOWN, markdown(card))
    write_whole(home / BADGE, badge(card))
    return write_whole(home / PAGE, filled(PAGE, card=card, whys=whys, symbols=SYMBOLS, titles=TITLES, words=_WORDS))


_WORDS = {"figures": figures, "alone": alone, "difference": difference, "cluster": cluster_text, "amount": amount}
"""Texts of the card for its page."""
