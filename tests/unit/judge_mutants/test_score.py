"""The rule by which ``tests/judge_mutants`` calls a defect caught, missed or not counted, and the published block."""

from aftershock.errors import EvidenceError
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.judge_mutants.campaign import Outcome
from aftershock.tests.judge_mutants.kinds import Plant
from aftershock.tests.judge_mutants.result import added, block
from aftershock.tests.judge_mutants.score import Score, score, statuses

LOST = Plant("orders/1@7", ("integrity/lost",), "eager", "produce", touched=frozenset({"eager"}))


def _check(name: str, status: str, arm: str | None = "eager", side: str = "produce") -> Check:
    subject = f"arm={arm} {side}" if arm else "log"
    return Check(name, name.split("/", maxsplit=1)[0], subject, Status(status), 1, 1, "", "seen", arm=arm)


def _verdict(*checks: Check) -> Verdict:
    return Verdict("r1", "demo", 7, ("eager",), checks)


BEFORE = statuses([_check("integrity/lost", "PASS"), _check("integrity/lost", "PASS", side="consume")])


def _result(plant: Plant, *checks: Check, harmless: bool = False) -> Score:
    return score(plant, harmless, BEFORE, _verdict(*checks))


def test_a_defect_is_caught_by_a_check_of_its_rule_client_and_operation() -> None:
    assert _result(LOST, _check("integrity/lost", "FAIL")).result == "caught"
    assert _result(LOST, _check("integrity/order", "FAIL")).result == "missed"
    assert _result(LOST, _check("integrity/lost", "FAIL", "patient")).result == "missed"
    assert _result(LOST, _check("integrity/lost", "FAIL", side="consume")).result == "missed"
    assert _result(LOST, _check("integrity/lost", "PASS")).result == "missed"


def test_inconclusive_suffices_only_where_the_evidence_is_open() -> None:
    unclear = Plant("orders/1@7", ("integrity/lost",), "eager", "produce", "INCONCLUSIVE")
    assert _result(LOST, _check("integrity/lost", "INCONCLUSIVE")).result == "missed"
    assert _result(unclear, _check("integrity/lost", "INCONCLUSIVE")).result == "caught"
    assert _result(unclear, _check("integrity/lost", "FAIL")).result == "caught"


def test_a_defect_is_not_counted_if_nothing_can_get_worse() -> None:
    failed = statuses([_check("integrity/lost", "FAIL")])
    undecided = statuses([_check("obligation/produce", "INCONCLUSIVE"), _check("harness/host", "INCONCLUSIVE", None)])
    stall = Plant("eager", ("obligation/produce",), "eager")
    assert (
        score(LOST, harmless=False, before=failed, judgement=_verdict(_check("integrity/lost", "FAIL"))).result
        == "undecidable"
    )
    judgement = _verdict(_check("obligation/produce", "INCONCLUSIVE"))
    assert score(stall, harmless=False, before=undecided, judgement=judgement).result == "undecidable"
    counted = statuses([_check("integrity/lost", "INCONCLUSIVE")])
    judgement = _verdict(_check("integrity/lost", "INCONCLUSIVE"))
    assert score(LOST, harmless=False, before=counted, judgement=judgement).result == "missed"


def test_another_client_that_is_blamed_is_told() -> None:
    other = _check("integrity/order", "FAIL", "patient")
    found = _result(LOST, _check("integrity/lost", "FAIL"), other)
    assert (found.result, found.others) == ("caught", ("integrity/order patient",))


def test_a_harmless_edit_is_blamed_for_any_failure() -> None:
    same = Plant("rows", slo=False)
    unknown = Plant("attempts", unknown=True)
    assert _result(same, _check("integrity/lost", "PASS"), harmless=True).result == "clean"
    assert _result(same, _check("integrity/order", "FAIL", "patient"), harmless=True).result == "blamed"
    assert _result(same, _check("integrity/lost", "INCONCLUSIVE"), harmless=True).result == "blamed"
    assert _result(unknown, _check("integrity/lost", "INCONCLUSIVE"), harmless=True).result == "clean"
    assert _result(unknown, _check("integrity/lost", "FAIL"), harmless=True).result == "blamed"
    assert _result(same, _check("slo/lost", "FAIL"), harmless=True).result == "clean"


def test_evidence_that_cannot_be_judged_is_caught_only_for_documents() -> None:
    error = EvidenceError("run.json: not JSON")
    assert score(LOST, harmless=False, before=BEFORE, judgement=error).result == "missed"
    assert score(Plant("run.json", error=True), harmless=False, before=BEFORE, judgement=error).result == "caught"
    assert score(Plant("rows"), harmless=True, before=BEFORE, judgement=error).result == "blamed"


def _outcome(seed: int, kind: str, result: str) -> Outcome:
    return Outcome(seed, kind, "demo", "orders/1@7", "FAIL of integrity/lost", Score(result, ()))


def test_counts_are_added_only_for_the_same_judge() -> None:
    first = added(None, "d1", {}, [_outcome(0, "lost-tail", "caught"), _outcome(1, "lost-tail", "missed")])
    more = added(first, "d1", {}, [_outcome(2, "lost-tail", "caught")])
    assert (more["kinds"]["lost-tail"]["caught"], more["kinds"]["lost-tail"]["missed"], more["next_seed"]) == (2, 1, 3)
    assert [row["seed"] for row in more["exceptions"]] == [1]
    anew = added(more, "d2", {}, [_outcome(3, "lost-tail", "caught")])
    assert anew["kinds"]["lost-tail"]["caught"] == 1


def test_the_block_has_recall_and_false_blame_by_kind() -> None:
    outcomes = [
        _outcome(0, "lost-tail", "caught"),
        _outcome(1, "lost-tail", "missed"),
        _outcome(2, "unedited", "clean"),
    ]
    text = block(added(None, "d1", {}, outcomes))
    assert "Of 2 defects 1 were caught (50.00 %)." in text
    assert "| 1 of 2 | 1 |  |  |" in text
    assert "| nothing: the run as it was recorded | 0 of 1 |" in text
