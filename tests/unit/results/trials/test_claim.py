"""Claims and their figures: paired blocks, doubtful parts, integrity checks, and the verdict of a trial."""

from functools import partial
from pathlib import Path

import pytest

from aftershock.results.checks.check import Check, Status
from aftershock.results.trials.claim import Claim, Parts, exit_code, integrity, state_claims, verdict
from aftershock.results.trials.statement import Judged, Role, Statement, Word, below, unknown
from aftershock.tests.unit.results.trials import on_disk
from aftershock.tests.unit.results.trials.made import doubted, part

HALF = {"w/new": [50.0, 60, 45, 55, 50, 52], "w/old": [100.0, 120, 90, 110, 100, 104]}
WORST = "produce.latency max in fault"


def judged(parts: Parts) -> Judged:
    return below(parts["moves"].ratio("w/new", "w/old", WORST), 0.6)


def claim(role: Role = "claim") -> Claim:
    return Claim("half", "half as slow", "below 0.6", ("moves",), judged, "0.5", role)


def test_blocks_are_paired() -> None:
    """If each block is half of its partner, the ratio is a half, however blocks differ from one another."""
    result = part("moves", HALF).ratio("w/new", "w/old", WORST)
    assert (pytest.approx(0.5), 6, "times") == (result.value, result.n, result.unit)
    assert result.p == pytest.approx(2 / 64)


def test_unproven_blocks_are_left_out() -> None:
    """A block without a witnessed fault counts on neither side; the remaining five blocks decide nothing."""
    spoilt = part("moves", HALF, checks=[doubted("witness/move-3", "witness")])
    assert 5 == spoilt.ratio("w/new", "w/old", WORST).n
    assert "inconclusive" == state_claims([claim()], {"moves": spoilt}, {})[0].word


def test_a_block_without_a_value() -> None:
    """If all records of a block failed there is no ratio and no statement; p is that of the sign test."""
    result = part("moves", HALF | {"w/old": [None, *HALF["w/old"][1:]]}).ratio("w/new", "w/old", WORST)
    assert (None, 6) == (result.value, result.n)
    assert result.p == pytest.approx(2 / 64)


def test_a_sound_part_is_judged_by_its_claim() -> None:
    """The statement keeps id, role and published figure of its claim."""
    result = state_claims([claim()], {"moves": part("moves", HALF)}, {})[0]
    assert ("half", "confirmed", "claim", "0.5") == (result.id, result.word, result.role, result.published)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({}, "not run: budget 10m"),
        ({"moves": part("moves", HALF, status="interrupted")}, "did not finish"),
        ({"moves": part("moves", HALF, checks=[doubted("harness/host", "harness")])}, "the host was starved"),
    ],
)
def test_a_doubtful_part_leaves_its_claim_inconclusive(parts: Parts, why: str) -> None:
    """The part was not run, did not finish, or was measured on a starved host; the reason says which."""
    result = state_claims([claim()], parts, {"moves": "budget 10m"})[0]
    assert "inconclusive" == result.word
    assert why in result.why


def test_a_doubtful_part_does_not_affect_other_claims() -> None:
    """A claim on a sound part is judged."""
    other = Claim("other", "", "", ("gone",), partial(_never))
    words = [state_claim.word for state_claim in state_claims([other, claim()], {"moves": part("moves", HALF)}, {})]
    assert ["inconclusive", "confirmed"] == words


def _never(parts: Parts) -> Judged:
    raise AssertionError(parts)


@pytest.mark.parametrize(
    ("statuses", "word"),
    [
        ([Status.PASS, Status.PASS], "confirmed"),
        ([Status.PASS, Status.INCONCLUSIVE], "inconclusive"),
        ([Status.INCONCLUSIVE, Status.FAIL], "contradicted"),
        ([], "inconclusive"),
    ],
)
def test_integrity_claims_use_the_checks_of_the_run(statuses: list[Status], word: str, tmp_path: Path) -> None:
    """An INCONCLUSIVE check or no check leaves the claim inconclusive; checks of other rules are ignored."""
    checks = [
        Check("integrity/lost", "integrity", "arm=w consume", status, 10, 1, "", "as it was") for status in statuses
    ]
    other = Check("integrity/order", "integrity", "arm=w consume", Status.FAIL, 10, 1, "", "")
    result = integrity(on_disk.part(tmp_path, checks=[*checks, other]), ["lost", "duplicate"])
    assert (word, len(statuses)) == (result.word, result.ours.n)


def statement(role: Role, word: Word) -> Statement:
    return Statement(f"{role}-{word}", "", "", "", unknown(), word, "because", role)


CONTROL = statement("control", "confirmed")


@pytest.mark.parametrize(
    ("statements", "word"),
    [
        ([statement("claim", "confirmed"), CONTROL], "confirmed"),
        ([statement("claim", "confirmed"), statement("claim", "not seen"), CONTROL], "not seen"),
        ([statement("claim", "not seen"), statement("claim", "inconclusive"), CONTROL], "inconclusive"),
        ([statement("claim", "contradicted"), statement("claim", "inconclusive"), CONTROL], "contradicted"),
        ([statement("claim", "confirmed"), statement("control", "inconclusive")], "inconclusive"),
        ([statement("claim", "not seen"), statement("control", "contradicted")], "inconclusive"),
        ([statement("claim", "confirmed"), statement("report", "contradicted"), CONTROL], "confirmed"),
        ([CONTROL], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_verdict(statements: list[Statement], word: Word) -> None:
    """Each rule has a case that only this rule decides; a trial without claims is never confirmed."""
    assert word == verdict(statements).word


def test_the_reason_names_the_deciding_statement() -> None:
    assert "claim-not seen: because" == verdict([statement("claim", "not seen"), CONTROL]).why
    assert "control" in verdict([statement("claim", "confirmed"), statement("control", "inconclusive")]).why


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["confirmed", "confirmed"], 0),
        (["confirmed", "inconclusive"], 2),
        (["confirmed", "not seen"], 2),
        (["inconclusive", "contradicted"], 1),
        ([], 2),
    ],
)
def test_exit_code(words: list[Word], code: int) -> None:
    """The code is 0 if all trials are confirmed and 1 if one is contradicted."""
    assert code == exit_code(words)
