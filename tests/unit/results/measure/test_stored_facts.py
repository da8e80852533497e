"""The stored measurements of the clean run equal Spark's current measurements."""

from dataclasses import fields

from aftershock.results.model.facts import Facts
from aftershock.tests.unit.results.stored_facts import CLEAN_RUN, clean_facts, text_of


def test_stored_facts_equal_measured_facts(facts: Facts) -> None:
    """The file equals a newly written file byte for byte, and reading it gives the measurements."""
    assert CLEAN_RUN.read_text() == text_of(facts)
    unread = {"bins", "bin_us", "spectra", "racks", "slowest", "perf", "cuts", "calms"}
    stored = clean_facts()
    for name in {field.name for field in fields(Facts)} - unread:
        assert getattr(stored, name) == getattr(facts, name), name
