"""Report card of an audit: what each client did in each scenario, in the forms in which it is printed and published.

A card is computed from the runs that ``campaign.json`` names; these runs are its evidence. ``reduce`` makes evidence
that is small enough for a repository.
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.audit import BLOCKS, NAME, SUITES
from aftershock.harness.campaigns.evidence import Observed, replacement, size_of, write_run
from aftershock.harness.campaigns.store import Planned, Record
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.model.text import table
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
    unsupported,
)
from aftershock.results.studies.part import Part

DOCUMENT, PAGE, MARKDOWN, BADGE = "audit.json", "audit.html", "audit.md", "badge.svg"
BYTES_MAX = 2_000_000
_REFUSED: Mark = "unsupported"
_SLOWDOWN = "p95: latency under the fault, relative to the steady phase"
_CHECKS = ("harness", "witness", "exposure", "integrity", "obligation", "slo")


@dataclass(frozen=True)
class Card:
    """Cells of all scenarios that were run, by scenario; ``missing`` has the reason for each of the others."""

    suite: str
    cells: Mapping[str, Sequence[Cell]]
    missing: Mapping[str, str]
    runs: Mapping[str, str]
    about: str
    advice: Sequence[Advice]
    changes: Sequence[Change] = ()

    @property
    def all_cells(self) -> list[Cell]:
        return [cell for cells in self.cells.values() for cell in cells]

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(cell.client for cell in self.all_cells))

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

        An upgrade that is worse in a scenario gives 1, too.
        """
        marks = {cell.mark for cell in self.all_cells}
        if marks & {"broken", "slow"} or any(change.word in ("worse", "mixed") for change in self.changes):
            return 1
        return 2 if self.missing or marks & {"open", _REFUSED} or not marks else 0


def read_card(record: Record, home: Path, planned_runs: Sequence[Planned]) -> Card:
    """Compute the card from the finished ones of the planned runs. Raises EvidenceError for a damaged run."""
    return _card(record, home, {run.name: record.finished(run, home) for run in planned_runs})


def read_stored_card(record: Record, home: Path) -> Card:
    """Compute the card from all runs of the record. Raises EvidenceError for a damaged run."""
    return _card(record, home, {name: record.stored(name) for name in SUITES[_suite_of(record.runs)]})


def _suite_of(scenarios: Iterable[str]) -> str:
    for suite, own in SUITES.items():
        if set(scenarios) <= set(own):
            return suite
    raise EvidenceError(f"no audit has the scenarios {', '.join(scenarios)}; name the folder of an audit")


def _card(record: Record, home: Path, runs: Mapping[str, str | None]) -> Card:
    cells, missing, stored, versions = dict[str, list[Cell]](), dict[str, str](), dict[str, str](), set[str]()
    advice, changes = list[Advice](), list[Change]()
    for scenario, run in runs.items():
        if run is None:
            missing[scenario] = record.left_out.get(scenario, "it has not run")
            continue
        part = Part(scenario, read_judged_run(home / run))
        if (plan := part.run.run.get("plan", scenario)) != scenario:
            raise EvidenceError(f"{home / run}: it ran the plan {plan}, not {scenario}; restore {store.NAME}")
        cells[scenario], stored[scenario] = cells_of(scenario, part), run
        versions.add(str((part.run.run.get("versions") or {}).get("kafka", "unknown")))
        advice += advice_of(scenario, part, cells[scenario])
        changes += changes_of(scenario, part, cells[scenario])
    for name, why in record.left_out.items():
        scenario, _, client = name.partition("/")
        if client:
            cells.setdefault(scenario, []).append(unsupported(scenario, client, why))
    suite, brokers = _suite_of(runs), ", ".join(sorted(versions)) or "unknown"
    about = f"{suite}, Kafka {brokers}, profile fast, {BLOCKS} repetitions of each fault"
    return Card(suite, cells, missing, stored, about, advice, changes)


def reduce(home: Path, target: Path) -> int:
    """Write the evidence of an audit to ``target``; return its size in bytes.

    Raises AftershockError if the evidence is too large, names a place of this machine, or gives another card.
    """
    record = store.read(home, NAME)
    card = read_stored_card(record, home)
    with replacement(target, BYTES_MAX) as draft:
        for scenario, run in card.runs.items():
            observed = Observed(scenario, read_judged_run(home / run))
            cells = cells_of(scenario, observed)
            advice_of(scenario, observed, cells)
            changes_of(scenario, observed, cells)
            write_run(observed, draft / run, _CHECKS)
        store.write(draft, record)
        if read_stored_card(record, draft) != card:
            raise AftershockError(f"{target}: the reduced evidence gives another card")
    return size_of(target)


def figures(cell: Cell) -> str:
    """Return the figures of a cell in a few words: recovery with its interval, longest gap, what was lost, slowdown."""
    parts = []
    if cell.recovery.n:
        bounds = (cell.recovery.low_s, cell.recovery.high_s)
        low, high = ("never" if value is None else f"{value:.1f}" for value in bounds)
        parts.append(f"{median(cell)} ({low} to {high})")
    if cell.before_heal is not None:
        parts.append(f"{cell.before_heal} of {cell.recovery.n} before the heal")
    if cell.gap_s is not None:
        parts.append(f"gap {cell.gap_s:.1f} s")
    elif parts:
        parts.append("gap longer than a repetition")
    counts = {"failed": cell.failed, "twice": cell.duplicates, "lost": cell.lost}
    parts += [f"{count} {word}" for word, count in counts.items() if count]
    if cell.slowdown is not None:
        parts.append(f"p95 {cell.slowdown:.{0 if cell.slowdown >= 10 else 1}f} times")  # noqa: PLR2004 -- two digits
    return ", ".join(parts) or ("" if cell.mark == _REFUSED else "no figures")


def marked(cell: Cell | None, words: Callable[[Cell], str] = figures) -> str:
    """Return a cell's mark and its figures; nothing for a client that did not run in a scenario."""
    return f"{SYMBOLS[cell.mark]} {words(cell)}".rstrip() if cell else ""


def median(cell: Cell) -> str:
    """Return the median of the recovery; nothing for a cell without one."""
    if not cell.recovery.n:
        return ""
    return "never" if cell.recovery.median_s is None else f"{cell.recovery.median_s:.1f} s"


def text(card: Card) -> str:
    """Return the card for a terminal of 80 columns: a line for each client and scenario."""
    width = max((len(client) for client in card.clients), default=0)
    lines = [
        card.about,
        "recovery: median (interval), from the fault until the client works as before",
        _SLOWDOWN,
        "",
    ]
    for scenario, cells in card.cells.items():
        lines.append(scenario)
        for cell in cells:
            lines.append(f"{SYMBOLS[cell.mark]:>3} {cell.client:{width}}  {figures(cell)}")
            if cell.reason:
                lines.append(f"    {cell.reason}")
    lines += [f"{scenario}: {why}" for scenario, why in card.missing.items()]
    lines += ["", *(f"{client}: {card.marks(client)} scenarios without a remark" for client in card.clients)]
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
    rows = [[scenario.replace("-", " "), *map(marked, card.row(scenario))] for scenario in card.cells]
    notes = "".join(f"\n* not run: {scenario}: {why}" for scenario, why in card.missing.items())
    refused = dict.fromkeys((cell.client, cell.reason) for cell in card.all_cells if cell.mark == _REFUSED)
    notes += "".join(f"\n* n/a: {client}: {reason}" for client, reason in refused)
    notes += "".join(f"\n* {advice.text}" for advice in card.advice)
    for (before, after), changes in _by_upgrade(card).items():
        words = [[change.scenario.replace("-", " "), change.word, change.text] for change in changes]
        notes += f"\n\n{''.join(table(['scenario', f'{before} → {after}', 'in the same repetitions'], words))}"
    about = f"{card.about}. Recovery: median (interval); {_SLOWDOWN}."
    return f"{about}\n\n{''.join(table(['scenario', *card.clients], rows))}{notes}\n"


def document(card: Card) -> dict[str, Any]:
    """Return the content of ``audit.json``."""
    about = {"suite": card.suite, "about": card.about, "runs": card.runs, "missing": card.missing}
    cells, advice = [*map(asdict, card.all_cells)], [*map(asdict, card.advice)]
    changes = [_finite(asdict(change)) for change in card.changes]
    return {**about, "cells": cells, "advice": advice, **({"changes": changes} if changes else {})}


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
    colour = "#c62828" if "broken" in marks else "#b26a00" if marks & {"slow", "open"} or not marks else "#2e7d32"
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
    whys = {name: load(find(f"audit/{name}")).data["why"] for name in card.cells}
    write_whole(home / DOCUMENT, json.dumps(document(card), indent=1) + "\n")
    write_whole(home / MARKDOWN, markdown(card))
    write_whole(home / BADGE, badge(card))
    return write_whole(home / PAGE, filled(PAGE, card=card, whys=whys, symbols=SYMBOLS, marked=marked))
