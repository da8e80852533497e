"""docs/CHECKS.md lists the catalogue of planted defects."""

from pathlib import Path

from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.table import page

PAGE = Path(__file__).parents[4] / "docs" / "CHECKS.md"


def test_the_page_is_up_to_date() -> None:
    """The stored page equals the output of `make docs`."""
    assert page() == PAGE.read_text()


def test_every_defect_is_on_the_page() -> None:
    """No module of defects is missing on the page."""
    text = page()
    assert [] == [defect.name for defect in DEFECTS.values() if f"| {defect.what} |" not in text]
