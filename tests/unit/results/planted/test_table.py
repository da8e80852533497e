"""The page about planted defects is the catalogue's own."""

from pathlib import Path

from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.table import page

PAGE = Path(__file__).parents[4] / "docs" / "CHECKS.md"


def test_the_page_is_up_to_date() -> None:
    """The stored page is what `make docs` writes."""
    assert page() == PAGE.read_text()


def test_every_defect_is_on_the_page() -> None:
    """No defect is in a module that the page leaves out."""
    text = page()
    assert [] == [defect.name for defect in DEFECTS.values() if f"| {defect.what} |" not in text]
