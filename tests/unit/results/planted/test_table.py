"""The page about planted defects is the catalogue's own."""

from pathlib import Path

from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.table import page

PAGE = Path(__file__).parents[4] / "docs" / "CHECKS.md"


def test_the_page_is_up_to_date() -> None:
    """`make docs` writes it anew."""
    assert page() == PAGE.read_text()


def test_every_defect_is_on_the_page() -> None:
    """None is in a module that the page leaves out."""
    assert all(f"| {one.what} |" in page() for one in DEFECTS.values())
