"""The registered suite: it can't be changed in silence, and its limits follow from settings of brokers alone."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.studies import suite
from aftershock.results.studies.suite import Row, client_of, copies, parse, registered

FAST = {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "5000"}


@pytest.fixture
def document() -> dict[str, Any]:
    return tomllib.loads((resources.files(suite.__package__) / "audit.toml").read_text(encoding="utf-8"))


def change_a_limit(document: dict[str, Any]) -> None:
    document["row"][0]["limit"]["slack"] = 2


def change_a_reason(document: dict[str, Any]) -> None:
    document["terms"]["backoff"]["why"] = "it fits the data"


def change_a_rule(document: dict[str, Any]) -> None:
    document["rules"]["explained_min"] = 0.2


@pytest.mark.parametrize("change", [change_a_limit, change_a_reason, change_a_rule])
def test_a_changed_registration_is_refused(document: dict[str, Any], change: Any) -> None:
    """Also as another version, whose digest must be registered first; unchanged, it is read."""
    assert registered() == parse(document)
    change(document)
    with pytest.raises(EvidenceError, match=r"version 2 was registered with \w{16}; raise `version`, and register"):
        parse(document)
    document["version"] = 3
    with pytest.raises(EvidenceError, match="version 3 was registered with None"):
        parse(document)


@pytest.mark.parametrize(
    ("row", "settings", "limit_s"),
    [
        ("leader-crashes", FAST, 2 + 1 + 3 + 2 * 1 + 1),
        ("half-open", FAST, 5 + 2 * 1 + 1),
        ("disk-full", FAST, 1.5 * 5 + 2 * 1 + 1),
        ("leader-slow", FAST, 2 * 0.2 + 0.1),
        # Kafka's defaults, where a profile sets none
        ("leader-crashes", {}, 2 + 1 + 9 + 2 * 1 + 1),
        ("half-open", {}, 30 + 2 * 1 + 1),
    ],
)
def test_a_limit_follows_from_the_settings_of_the_brokers(row: str, settings: dict[str, str], limit_s: float) -> None:
    (entry,) = (entry for entry in registered().rows if entry.id == row)
    assert limit_s == pytest.approx(registered().limit_s(entry, settings))


def test_every_term_is_used_and_has_its_reason() -> None:
    used = {term for row in registered().rows for term in row.limit}
    assert used == {*registered().terms}
    assert all(term["why"] for term in registered().terms.values())
    assert all(row.why for row in registered().rows)
    assert {*registered().counts_s} == {row.figure for row in registered().rows}
    assert "quorum + session + 2 backoff + slack" == registered().rows[0].formula


@pytest.mark.parametrize("row", registered().rows, ids=lambda row: row.id)
def test_the_page_shows_the_limit_of_each_row(row: Row) -> None:
    page = (Path(__file__).parents[4] / "docs" / "AUDIT.md").read_text()
    title = row.id.replace("-", " ")
    lines = [line for line in page.splitlines() if line.replace(",", "").startswith(f"| {title} ")]
    assert lines
    assert all(f"= {registered().limit_s(row, FAST):g} s |" in line for line in lines)


def test_names_of_copies() -> None:
    assert ["java", "java-2nd", "java-3rd"] == copies("java", 3)
    assert {"java"} == {client_of(arm) for arm in copies("java", 3)}
    assert ["java-advised-2nd", "java-advised"] == ["java-advised-2nd", client_of("java-advised-2nd")]
