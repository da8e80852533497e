"""Gallery of report cards in the documentation, made from the evidence in the repository.

``python -m aftershock.harness.labs.gallery FOLDER PAGE`` writes the card of each audit below FOLDER into PAGE.
``python -m aftershock.harness.labs.gallery FOLDER PAGE NAME OUT`` first reduces the audit below OUT (``OUT/audit``) to
``FOLDER/NAME``; ``aftershock audit --from FOLDER/NAME`` prints its card without Docker.
"""

import sys
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.harness.labs import audit
from aftershock.harness.labs.kip.output import replace_results
from aftershock.results.evidence.files import write_whole

BEGIN = "<!-- cards: written by `make gallery` from stored evidence -->"


def cards(folder: Path) -> str:
    """Return the cards of all audits below ``folder`` as Markdown, in the order of their names."""
    sections = []
    for home in sorted(path.parent for path in folder.glob(f"*/{audit.RUNS_NAME}")):
        card = audit.read_stored_card(home)
        reasons = [
            f"* {cell.client}, {scenario.replace('-', ' ')}: {cell.reason}"
            for scenario, cells in card.cells.items()
            for cell in cells
            if cell.reason
        ]
        why = "\n".join(["Why a cell has no ✓:", "", *reasons]) if reasons else "Every cell has a ✓."
        source = f"`aftershock audit --from {folder}/{home.name}` prints this card from its evidence."
        sections.append(f"### {home.name.replace('-', ' ')}\n\n{audit.markdown(card)}\n{source}\n\n{why}")
    return "\n\n".join(sections)


def main(folder: str, page: str, name: str = "", out: str = "") -> None:
    if name:
        print(audit.reduce(Path(out) / "audit", Path(folder) / name), "bytes")  # noqa: T201
    text = Path(page).read_text(encoding="utf-8")
    write_whole(Path(page), replace_results(text, cards(Path(folder)), BEGIN))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))
