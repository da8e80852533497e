"""The stored measurements of the clean run are those that Spark makes today."""

from dataclasses import fields

import pytest

from aftershock.results.measure.facts import Facts
from aftershock.tests.unit.results.stored_facts import CLEAN_RUN, clean_facts, text_of

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_the_stored_facts_are_as_measured(facts: Facts) -> None:
    """The file is byte for byte what would be written today, and it is read back as it was measured."""
    assert CLEAN_RUN.read_text() == text_of(facts)
    unread = {"bins", "bin_us", "spectra", "racks", "slowest", "perf", "cuts", "calms"}
    stored = clean_facts()
    for name in {field.name for field in fields(Facts)} - unread:
        assert getattr(stored, name) == getattr(facts, name), name
