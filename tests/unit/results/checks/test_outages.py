"""Client faults excuse late records of their own client and time, and of nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aftershock.results.checks.harness import harness_checks
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.outages import FROZEN, KILLED, client_outages
from aftershock.results.model.facts import Facts
from aftershock.tests.unit.results.evidence_factory import Made, Row, S
from aftershock.tests.unit.results.measuring import named, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BASELINE = "orders/baseline"
BEGUN, HEALED = 20 * S, 24 * S


def lines(verb: str, *, healed: bool = True) -> list[Row]:
    """Return the journal of a fault that stopped one arm's producer for four seconds."""
    targets = {"brokers": [], "links": [], "topics": [], "clients": ["orders-baseline-produce"], "roles": {}}
    line = {"fault": "held-1", "kind": "k", "targets": targets, "undo": {"verb": verb, "args": {}}}
    entries = [line | {"t_us": BEGUN, "state": "intended"}, line | {"t_us": BEGUN + S, "state": "injected"}]
    return [*entries, line | {"t_us": HEALED, "state": "healed"}] if healed else entries


def test_outages_last_from_intent_to_heal(evidence: Evidence) -> None:
    """Only undos of client faults count, for their own side and arm; without a heal, the outage lasts to the end."""
    for verb in (KILLED, FROZEN):
        with_fault = replace(evidence, journal=(*evidence.journal, *lines(verb)))
        assert client_outages(with_fault, KILLED, FROZEN) == {("produce", BASELINE): ((BEGUN, HEALED),)}
    assert client_outages(replace(evidence, journal=tuple(lines(FROZEN))), KILLED) == {}
    assert client_outages(evidence, KILLED, FROZEN) == {}
    (span,) = client_outages(replace(evidence, journal=tuple(lines(KILLED, healed=False))), KILLED)["produce", BASELINE]
    assert span == (BEGUN, max(phase.end_us for phase in evidence.phases))


def test_a_rehearsal_excuses_nothing(evidence: Evidence) -> None:
    """A rehearsal has no undo, so no client is excused."""
    assert client_outages(replace(evidence, journal=tuple(lines("nothing"))), KILLED, FROZEN) == {}


def test_lateness_is_excused_for_that_time_and_that_client_only(
    spark: "SparkSession", made: Made, tmp_path: Path
) -> None:
    """Records sent late or not at all are excused within the fault; one second of lateness outside it fails."""
    spoiled = made.copy()
    spoiled.journal += lines(KILLED)
    for row in spoiled.produce:
        if row["producer_id"] == 0 and BEGUN <= row["intended_us"] < HEALED:
            row |= {"sent_us": None, "done_us": HEALED, "status": "failed", "error": "CLIENT_DOWN"}
    late = spoiled.copy()
    for row in late.produce:
        if row["producer_id"] == 0 and HEALED <= row["intended_us"] < HEALED + S:
            row["sent_us"] = row["intended_us"] + S
    runs = named({"excused": spoiled, "late": late}, tmp_path)
    facts = together(spark, runs)
    assert {"baseline": "PASS", "patient": "PASS"} == generators(runs["excused"], facts["excused"])
    assert {"baseline": "INCONCLUSIVE", "patient": "PASS"} == generators(runs["late"], facts["late"])


def generators(evidence: Evidence, facts: Facts) -> dict[str, str]:
    """Return the status of each arm's load-generator check."""
    return {
        str(one.check.arm): one.check.status
        for one in harness_checks(evidence, facts)
        if one.check.id == "harness/generator"
    }
