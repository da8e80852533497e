"""The words of the zoo, from checks of the broken and of the fixed version."""

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.zoo import BROKEN, FIXED, PROMISES, Attempt, Bug, judge, read_bugs

PASSED = {BROKEN: 3, FIXED: 4}


def check(check_id: str, arm: str | None, status: Status = Status.FAIL, *, gate: bool = True) -> Check:
    kind = check_id.partition("/")[0]
    return Check(check_id, kind, f"arm={arm}", status, 10, 1, "records", f"why {check_id}", arm=arm, gate=gate)


def attempt(*checks: Check, passed: dict[str, int] = PASSED) -> Attempt:
    return Attempt("run", "plan", 1, "4.3.1", 2.0, checks, passed)


BUG = Bug("x", "rule", "X", "issue 1", "librdkafka", "1", "2", "stuck", ("integrity/lost", "client/*"))
LOST, DIED = check("integrity/lost", BROKEN), check("client/died", BROKEN)
SLOW = check("slo/produce.gap", BROKEN)


@pytest.mark.parametrize(
    ("checks", "word", "deciding"),
    [
        ((LOST,), "found", ("integrity/lost",)),
        ((DIED, LOST), "found", ("client/died", "integrity/lost")),
        ((), "not found", ()),
        ((check("integrity/lost", BROKEN, Status.INCONCLUSIVE),), "not found", ()),
        ((check("integrity/lost", BROKEN, gate=False),), "not found", ()),
        ((SLOW,), "other reason", ("slo/produce.gap",)),
        ((LOST, check("slo/produce.gap", FIXED)), "fixed blamed", ("slo/produce.gap",)),
        ((LOST, check("slo/produce.gap", FIXED, gate=False)), "found", ("integrity/lost",)),
        ((LOST, check("harness/generator", FIXED, Status.INCONCLUSIVE)), "fixed undecided", ("integrity/lost",)),
        ((LOST, check("harness/generator", BROKEN, Status.INCONCLUSIVE)), "found", ("integrity/lost",)),
        ((LOST, check("witness/cut", None, Status.INCONCLUSIVE)), "open", ("witness/cut",)),
    ],
)
def test_words(checks: tuple[Check, ...], word: str, deciding: tuple[str, ...]) -> None:
    outcome = judge(BUG, attempt(*checks))
    assert (word, deciding) == (outcome.word, outcome.checks)


def test_a_fixed_version_without_a_passed_check_is_undecided() -> None:
    assert "fixed undecided" == judge(BUG, attempt(LOST, passed={BROKEN: 3})).word


def test_an_slo_counts_apart() -> None:
    by_slo = Bug("x", "rule", "X", "issue 1", "librdkafka", "1", "2", "late", ("slo/*", "obligation/*"))
    assert judge(by_slo, attempt(SLOW)).by_slo
    assert not judge(by_slo, attempt(SLOW, check("obligation/consume", BROKEN))).by_slo


def test_registered_bugs_are_complete() -> None:
    for bug in read_bugs().values():
        assert bug.promise in PROMISES
        assert bug.chosen in ("review", "rule")
        assert bug.checks or bug.obstacle
        assert bug.broken != bug.fixed
