"""Gallery of report cards in the documentation, made from the evidence in the repository.

``python -m aftershock.harness.labs.gallery FOLDER PAGE README`` writes the card of each audit below FOLDER into PAGE,
and a short form of the card ``clients`` into README. With two further arguments, NAME and OUT, it first reduces the
audit below OUT (``OUT/audit``) to ``FOLDER/NAME``; ``aftershock audit --from FOLDER/NAME`` prints its card without
Docker.
"""

import sys
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.harness.labs import card as lab
from aftershock.harness.labs.kip.output import replace_results
from aftershock.results.evidence.files import write_whole
from aftershock.results.text import table

CLIENTS = "clients"
BEGIN = "<!-- cards: written by `make gallery` from stored evidence -->"


def cards(folder: Path) -> str:
    """Return the cards of all audits below ``folder`` as Markdown, in the order of their names."""
    sections = []
    for home in sorted(path.parent for path in folder.glob(f"*/{lab.RUNS_NAME}")):
        card = lab.read_stored_card(home)
        reasons = [
            f"* {cell.client}, {scenario.replace('-', ' ')}: {cell.reason}"
            for scenario, cells in card.cells.items()
            for cell in cells
            if cell.reason
        ]
        why = "\n".join(["Why a cell has no ✓:", "", *reasons]) if reasons else "Every cell has a ✓."
        source = f"`aftershock audit --from {folder}/{home.name}` prints this card from its evidence."
        sections.append(f"### {home.name.replace('-', ' ')}\n\n{lab.markdown(card)}\n{source}\n\n{why}")
    return "\n\n".join(sections)


def brief(card: lab.Card) -> str:
    """Return a card as a table of marks, with the median of the recovery, or with what was slow or broken."""
    rows = [
        [
            scenario.replace("-", " "),
            *(lab.marked(cell, lambda cell: cell.brief or lab.median(cell)) for cell in card.row(scenario)),
        ]
        for scenario in card.cells
    ]
    return "".join(table(["", *card.clients], rows)).rstrip()


def main(folder: str, page: str, readme: str, name: str = "", out: str = "") -> None:
    if name:
        print(lab.reduce(Path(out) / "audit", Path(folder) / name), "bytes")  # noqa: T201
    if not (Path(folder) / CLIENTS).is_dir():
        raise AftershockError(f"{folder} has no card {CLIENTS}; run an audit, and name {CLIENTS} and its --out here")
    card = lab.read_stored_card(Path(folder) / CLIENTS)
    for path, results in ((Path(page), cards(Path(folder))), (Path(readme), brief(card))):
        text = path.read_text(encoding="utf-8")
        write_whole(path, replace_results(text, results, BEGIN))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))
