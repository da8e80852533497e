"""Answers of a run: what is read from the measurements for each client and fault."""

from dataclasses import replace

from aftershock.results.checks.answers import answers
from aftershock.results.checks.integrity import integrity_results
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.model.answer import Answer
from aftershock.results.model.facts import Explained, Facts, Finding, LongestGap, Recovered, Stall
from aftershock.tests.unit.results.evidence_factory import S

BASELINE, PATIENT = "orders/baseline", "orders/patient"
EXAMINED = {("lost", "produce", BASELINE): 3_000, ("lost", "consume", BASELINE): 6_000}
FINDINGS = {key: Finding(*key, n, 0) for key, n in EXAMINED.items()}


def of_run(evidence: Evidence, facts: Facts) -> dict[tuple[str, str | None], Answer]:
    return {(one.client, one.fault): one for one in answers(evidence, facts, integrity_results(evidence, facts))}


def test_each_client_has_an_answer_for_each_fault(evidence: Evidence) -> None:
    """Nothing observed is not zero."""
    found = of_run(evidence, Facts())
    faults = ("latency-1", "kill-1", "reassign-1")
    assert list(found) == [(client, fault) for client in ("baseline", "patient") for fault in faults]
    assert {(one.lost, one.twice, one.normality) for one in found.values()} == {(None, None, None)}
    assert all(not one.stopped_us for one in found.values())


def test_a_stop_belongs_to_the_fault_before_it_until_the_next_inject(evidence: Evidence) -> None:
    """``kill-1`` is injected at 26 s, ``reassign-1`` at 36 s. A stall across an inject counts for each for its part."""
    stalls = (
        Stall("produce", BASELINE, None, 30 * S, 38 * S),
        Stall("produce", BASELINE, 3, 27 * S, 38 * S, topic="orders"),
        Stall("produce", BASELINE, 4, 30 * S, 37 * S, topic="orders"),
        Stall("produce", PATIENT, None, 27 * S, 28 * S),
    )
    gaps = {
        ("produce.gap", BASELINE, "fault/kill-1"): LongestGap(9, 4 * S),
        ("consume.gap", BASELINE, "fault/kill-1"): LongestGap(9, 70_000),
        ("consume.gap", BASELINE, "fault/reassign-1"): LongestGap(9, 3 * S),
    }
    found = of_run(evidence, Facts(stalls=stalls, longest=gaps))
    killed, turned = found["baseline", "kill-1"], found["baseline", "reassign-1"]
    assert (killed.stopped_us, killed.partition) == ({"produce": 6 * S, "consume": 70_000}, ("orders/3", 9 * S))
    # the reader had a gap, but no record waited for it
    assert (turned.stopped_us, turned.partition) == ({"produce": 2 * S, "consume": None}, None)
    assert found["patient", "kill-1"].stopped_us == {"produce": 1 * S}


def test_losses_are_counted_once_with_what_a_cause_permits(evidence: Evidence) -> None:
    """A loss has no time, so with several faults it is in a line about the run."""
    lost = replace(FINDINGS["lost", "produce", BASELINE], broken=4, explained=(Explained("a cause", "a file", 3),))
    found = of_run(evidence, Facts(findings=FINDINGS | {("lost", "produce", BASELINE): lost}))
    assert (found["baseline", None].lost, found["baseline", None].lost_permitted) == (4, 3)
    assert {one.counts for (client, fault), one in found.items() if client == "baseline" and fault} == {False}
    clean = of_run(evidence, Facts(findings=FINDINGS))
    assert ("baseline", None) not in clean
    assert (clean["baseline", "kill-1"].counts, clean["baseline", "kill-1"].lost) == (True, 0)


def test_the_repetitions_of_a_fault_are_one_answer(evidence: Evidence) -> None:
    """The worst return counts; a client that was not normal again once was not normal again."""
    steps = [step | {"entry": "each"} for step in evidence.steps]
    several = replace(evidence, timeline={**evidence.timeline, "steps": steps})
    rows = {
        ("latency-1", BASELINE): Recovered(9, 2 * S, 10 * S, 2, heal_us=8 * S),
        ("kill-1", BASELINE): Recovered(9, 9 * S, 10 * S, 2, heal_us=8 * S),
        ("reassign-1", BASELINE): Recovered(9, None, 7 * S, 2, heal_us=3 * S),
    }
    (found,) = [one for one in of_run(several, Facts(recoveries=rows)).values() if one.client == "baseline"]
    assert (found.fault, found.injections) == ("each", 3)
    assert found.normality is not None
    assert vars(found.normality) == {
        "measured": 3,
        "recovered": 2,
        "worst_us": 9 * S,
        "observed_us": 7 * S,
        "healed": 3,
        "before_heal": 1,
    }
