"""Generated blocks of the documentation: they are what the evidence in the repository gives today."""

from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.campaigns import audit, card, durability, publish, store

DOCS = Path(__file__).parents[4] / "docs"
EVIDENCE = DOCS / "evidence"


def published(page: Path, name: str, command: str) -> str:
    return publish.block_of(page.read_text(encoding="utf-8"), name, command)[1].strip()


def test_the_published_power_cuts_are_those_of_the_evidence() -> None:
    folder = EVIDENCE / "durability"
    result = durability.read_result(store.read(folder, durability.NAME), folder)
    assert published(DOCS / "DURABILITY.md", "results", "durability") == durability.markdown(result).strip()


def test_the_published_cards_are_those_of_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)  # the page names the evidence as seen from there
    folder = Path("docs/evidence/gallery")
    assert published(DOCS / "GALLERY.md", "cards", "gallery") == publish.cards(folder).strip()
    clients = card.read_stored_card(audit.record_in(folder / "clients"), folder / "clients")
    assert published(DOCS.parent / "README.md", "cards", "gallery") == publish.brief(clients).strip()


def test_only_the_text_between_the_markers_is_replaced(tmp_path: Path) -> None:
    begin, end = "<!-- results: written by `make kips` from stored evidence -->", "<!-- results end -->"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter")
    publish.write_block(page, "new", "kips")
    assert f"before\n{begin}\n\nnew\n\n{end}\nafter" == page.read_text()
    with pytest.raises(AftershockError, match="the page lacks the lines <!-- cards: written by `make gallery`"):
        publish.write_block(page, "new", "gallery", "cards")
