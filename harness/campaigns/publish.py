"""Results in the documentation, and their evidence in the repository, from stored runs; nothing is run.

``python -m aftershock.harness.campaigns.publish KIND ...``, where the arguments of each KIND are those of its function:

* ``evidence OUT FOLDER [KIP ...]`` reduces the trials below ``OUT/kips`` to ``FOLDER/kip<N>``
* ``launch OUT FOLDER KIP ...`` adds the headline's runs below ``OUT/kips`` to ``FOLDER/kip<N>`` as a further launch
* ``benchmark OUT FOLDER KIP`` adds the runs of a KIP's own benchmark below ``OUT/kips`` to ``FOLDER/kip<N>-benchmark``
* ``adopt FOLDER OUT KIP`` copies all stored runs of a KIP back below ``OUT/kips``, where ``aftershock kip N`` then
  makes the missing ones
* ``kips OUT EVIDENCE FOLDER PAGE`` writes the headlines of the trials in ``EVIDENCE/kip<N>``, and charts and tables
  of the trials below ``OUT/kips``, to ``FOLDER/kip<N>.md``, the promises of the KIPs' texts to ``FOLDER/promises.md``,
  and a digest into PAGE
* ``durability OUT FOLDER PAGE`` reduces the runs below OUT to FOLDER, and writes the tables of power cuts
* ``machines OUT FOLDER PAGE`` stores the checks of the plans about sick machines in FOLDER, and writes their tables
* ``zoo FOLDER PAGE [OUT]`` stores in FOLDER what the verdicts of the zoo's runs below OUT, if named, said, and writes
  the table of bugs into PAGE
* ``gallery FOLDER PAGE README [NAME OUT]`` reduces the audit below OUT, if named, to ``FOLDER/NAME``, and writes the
  cards of all audits below FOLDER, and three rows of the card ``clients`` into README
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.harness.campaigns import audit, card, durability, kip, kip_pages, store, zoo
from aftershock.harness.campaigns.kip_trials import TRIALS, select_trials
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.model.text import table
from aftershock.results.studies.trials.mechanism import mechanism
from aftershock.results.studies.trials.promises import read_promises

CLIENTS = "clients"
MACHINE_PLANS = ("grey-failures", "lost-hosts")
_SECOND_MS = 1_000
_KEPT = ("id", "subject", "phase", "n", "observed", "unit", "status")


def block_of(page: str, name: str, command: str) -> tuple[str, str, str]:
    """Return a Markdown page before, within and after its generated block ``name``, with the block's comments.

    Raises AftershockError if the page lacks the comments that begin and end the block.
    """
    begin = f"<!-- {name}: written by `make {command}` from stored evidence -->"
    end = f"<!-- {name} end -->"
    before, found_begin, remainder = page.partition(begin)
    within, found_end, after = remainder.partition(end)
    if not (found_begin and found_end):
        raise AftershockError(f"the page lacks the lines {begin} and {end}; add both where the results belong")
    return before + begin, within.strip("\n") + "\n", end + after


def write_block(path: Path, results: str, command: str, name: str = "results") -> None:
    """Replace the generated block ``name`` of a Markdown page."""
    before, _, after = block_of(path.read_text(encoding="utf-8"), name, command)
    write_whole(path, f"{before}\n\n{results}\n\n{after}")


def evidence(out: str, folder: str, *kips: str) -> None:
    for trial in [trial for number in kips or ("all",) for trial in select_trials(number)]:
        home, target = kip.home_of(trial, Path(out)), Path(folder) / f"kip{trial.kip}"
        _print_size(target, kip.reduce_trial(trial, home, target))
        if kip.partial_claims(trial.claims, kip.record_of(trial, home).runs):
            benchmark(out, folder, str(trial.kip))


def benchmark(out: str, folder: str, number: str) -> None:
    """Add the runs of a KIP's own benchmark to those that are stored."""
    (trial,) = select_trials(number)
    target = Path(folder) / f"kip{trial.kip}-benchmark"
    _print_size(target, kip.reduce_trial(trial, kip.home_of(trial, Path(out)), target, partial=True))


def adopt(folder: str, out: str, number: str) -> None:
    (trial,) = select_trials(number)
    for name in (f"kip{trial.kip}", f"kip{trial.kip}-benchmark"):
        if (Path(folder) / name / store.NAME).is_file():
            kip.adopt(trial, Path(folder) / name, kip.home_of(trial, Path(out)))


def launch(out: str, folder: str, *kips: str) -> None:
    for trial in [trial for number in kips for trial in select_trials(number)]:
        target = Path(folder) / f"kip{trial.kip}"
        _print_size(target, kip.add_launch(trial, kip.home_of(trial, Path(out)), target))


def kips(out: str, evidence: str, folder: str, readme: str) -> None:
    """Write the pages of the KIPs in ``folder``; charts and tables of KIPs that have not run stay as published."""
    digested, by_kip = [], dict[int, dict[str, kip_pages.Row]]()
    promises = read_promises()
    for trial in TRIALS.values():
        page, stored_in = Path(folder) / f"kip{trial.kip}.md", Path(evidence) / f"kip{trial.kip}"
        result, stored = (kip.read_result(trial, home) for home in (kip.home_of(trial, Path(out)), stored_in))
        _, block, _ = block_of(page.read_text(encoding="utf-8"), "results", "kips")
        apart = Path(evidence) / f"kip{trial.kip}-benchmark"
        of_benchmark = kip.read_result(trial, apart) if (apart / store.NAME).is_file() else None
        rows = kip_pages.rows_of(result, block, of_benchmark)
        by_kip[trial.kip] = {row.id: row for row in rows}
        write_whole(Path(folder) / f"kip{trial.kip}.svg", f"{mechanism(trial.kip).svg}\n")
        if result.parts:
            # most charts need whole runs
            plots = kip.plots_of(trial, result) if result.whole or trial.draws_evidence else None
            for position, plot in enumerate(plots or (), 1):
                write_whole(Path(folder) / f"kip{trial.kip}-{position}.svg", f"{plot.svg}\n")
            in_tables = [row for row in rows if row.id not in {claim.id for claim in trial.claims if claim.partial}]
            write_block(page, kip_pages.section(result, in_tables, plots, block), "kips")
        if kip_pages.benchmark_parts(trial):
            sql = page.with_name(f"kip{trial.kip}-benchmark.sql").read_text(encoding="utf-8")
            write_block(page, kip_pages.benchmark(trial, of_benchmark, rows, sql), "kips", "benchmark")
        words = kip_pages.promises_in_words(trial.kip, promises.get(trial.kip, ()), by_kip[trial.kip])
        write_block(page, kip_pages.answer(trial, stored, kip.launches(trial, stored_in), words), "kips", "answer")
        sql, record = page.with_suffix(".sql").read_text(encoding="utf-8"), kip.record_of(trial, stored_in)
        write_block(page, kip_pages.recount(sql, record, stored_in.as_posix()), "kips", "recount")
        digested.append((stored, rows))
    titles = {number: TRIALS[number].title for number in promises}
    write_block(Path(folder) / "promises.md", kip_pages.promises_page(titles, promises, by_kip), "kips")
    write_block(Path(readme), kip_pages.digest(digested), "kips")


def power_cuts(out: str, folder: str, page: str) -> None:
    _print_size(folder, durability.reduce(Path(out) / durability.NAME, Path(folder)))
    result = durability.read_result(store.read(Path(folder), durability.NAME), Path(folder))
    write_block(Path(page), durability.markdown(result), "durability")


def zoo_of_bugs(folder: str, page: str, out: str = "") -> None:
    if out:
        home = Path(out) / zoo.NAME
        zoo.keep(Path(folder), zoo.of_record(store.read(home, zoo.NAME), home))
    write_block(Path(page), zoo.markdown(zoo.read_entries(Path(folder))), "zoo")


def sick_machines(out: str, folder: str, page: str) -> None:
    """Write the tables of the newest runs; a plan without a run keeps the checks that are stored."""
    keep_checks(Path(out), Path(folder))
    for plan in MACHINE_PLANS:
        stored = read_object(Path(folder) / f"{plan}.json")
        write_block(Path(page), machines_table(stored["checks"]), "machines", plan)


def keep_checks(out: Path, folder: Path) -> None:
    """Store the SLO checks of the newest run of each plan below ``out``; leave out plans without a run."""
    folder.mkdir(parents=True, exist_ok=True)
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted(out.rglob("verdict.json"), key=lambda path: path.parent.name):
        verdict = read_object(path)
        if verdict.get("plan") in MACHINE_PLANS:
            newest[verdict["plan"]] = verdict
    for plan, latest in newest.items():
        checks = [{key: check[key] for key in _KEPT} for check in latest["checks"] if check["kind"] == "slo"]
        document = {"plan": plan, "run_id": latest["run_id"], "status": latest["status"], "checks": checks}
        write_whole(folder / f"{plan}.json", json.dumps(document, indent=1) + "\n")


def machines_table(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row for each metric and window, and a column for each client and workload."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for check in checks:
        window = check["phase"]
        if window is None or "arm=" not in check["subject"]:
            continue
        column = check["subject"].replace("workload=", "").replace("arm=", "")
        columns[column] = None
        metric = check["id"].removeprefix("slo/").removesuffix(f"-{window}").removesuffix(f"-{window[6:]}")
        rows.setdefault((metric, window.removeprefix("fault/")), {})[column] = _figure(check)
    lines = [
        [f"{metric.replace('-', ' ').replace('.', ' ')}, {window}", *(figures.get(column, "-") for column in columns)]
        for (metric, window), figures in rows.items()
    ]
    return "".join(table(["metric, window", *columns], lines)).rstrip()


def _figure(check: Mapping[str, Any]) -> str:
    observed, unit = check["observed"], check["unit"]
    if observed is None:
        return "-"
    if unit not in ("ms", "s"):
        return f"{observed:.4g} {unit}"
    ms = observed * (1000 if unit == "s" else 1)
    return f"{ms:.0f} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"


def gallery(folder: str, page: str, readme: str, name: str = "", out: str = "") -> None:
    if name:
        require_tried(card.read_stored_card(audit.record_in(Path(out) / audit.NAME), Path(out) / audit.NAME))
        _print_size(name, card.reduce(Path(out) / audit.NAME, Path(folder) / name))
    if not (Path(folder) / CLIENTS).is_dir():
        raise AftershockError(f"{folder} has no card {CLIENTS}; run an audit, and name {CLIENTS} and its --out here")
    write_block(Path(page), cards(Path(folder)), "gallery", "cards")
    write_block(Path(readme), brief(_stored_card(Path(folder) / CLIENTS)), "gallery", "cards")


def require_tried(found: card.Card) -> None:
    """Raise AftershockError if a card gives advice that was not tried."""
    for advice in found.advice:
        if not advice.saved.n:
            where = f"{advice.client}, {advice.scenario.replace('-', ' ')}"
            raise AftershockError(
                f"{where}: its advice was not tried; run the audit of a card for the gallery with --try-advice"
            )


def cards(folder: Path) -> str:
    """Return the cards of all audits below ``folder`` as Markdown, in the order of their names."""
    sections = []
    for home in sorted(path.parent for path in folder.glob(f"*/{store.NAME}")):
        stored = _stored_card(home)
        reasons = [
            f"* {cell.client}, {scenario.replace('-', ' ')}: {cell.reason}"
            for scenario, cells in stored.cells.items()
            for cell in cells
            if cell.reason
        ]
        why = "\n".join(["Why a cell has no ✓:", "", *reasons]) if reasons else "Every cell has a ✓."
        source = f"`aftershock audit --from {folder}/{home.name}` prints this card from its evidence."
        sections.append(f"### {home.name.replace('-', ' ')}\n\n{card.markdown(stored)}\n{source}\n\n{why}")
    return "\n\n".join(sections)


IN_README = ("leader-crashes", "coordinator-killed", "acks-lost")
"""Scenarios of the README's table: in them the clients of the gallery differ the most."""


def brief(stored: card.Card) -> str:
    """Return rows of a card as a table of marks, with the median of the recovery, or with what was slow or broken."""
    rows = [
        [
            scenario.replace("-", " "),
            *(card.marked(cell, lambda cell: cell.brief or card.median(cell)) for cell in stored.row(scenario)),
        ]
        for scenario in IN_README
        if scenario in stored.cells
    ]
    return "".join(table(["", *stored.clients], rows)).rstrip()


def _stored_card(home: Path) -> card.Card:
    return card.read_stored_card(audit.record_in(home), home)


def _print_size(what: object, size: int) -> None:
    print(f"{what}: {size} bytes")  # noqa: T201


KINDS: Mapping[str, Callable[..., None]] = {
    "evidence": evidence,
    "launch": launch,
    "benchmark": benchmark,
    "adopt": adopt,
    "kips": kips,
    "durability": power_cuts,
    "machines": sick_machines,
    "zoo": zoo_of_bugs,
    "gallery": gallery,
}


if __name__ == "__main__":
    try:
        KINDS[sys.argv[1]](*sys.argv[2:])
    except AftershockError as error:
        sys.exit(str(error))
