"""Claims and their figures: registration, paired blocks, doubtful parts, integrity checks, a trial's verdict."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.statement import UNITS_MIN, Estimate, Measured, Role, Rule, Statement, Word, unknown
from aftershock.results.studies.trials import kip227, kip392, kip794, kip848, kip890, kip951, kip966, kip1224
from aftershock.results.studies.trials.claim import (
    Claim,
    Parts,
    Registration,
    exit_code,
    integrity,
    requirements,
    state_claims,
    tally,
    verdict,
)
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.made import Values, doubted, part

HALF = {"w/new": [50.0, 60, 45, 55, 50, 52], "w/old": [100.0, 120, 90, 110, 100, 104]}
ALIKE = {"w/new": [99.0, 121, 90, 111, 99, 104], "w/old": HALF["w/old"]}
WORST = "produce.latency max in fault"


RULE = Rule("below", (0.6,), 1.0, ratio=True)


def measured(parts: Parts, name: str = "moves") -> Measured:
    return Measured(parts[name].ratio("w/new", "w/old", WORST))


def claim(role: Role = "claim", **more: Any) -> Claim:
    return Claim("half", "half as slow", ("moves",), measured, role, RULE, published="0.5", **more)


def test_blocks_are_paired() -> None:
    """If each block is half of its partner, the ratio is a half, however blocks differ from one another."""
    result = part("moves", HALF).ratio("w/new", "w/old", WORST)
    assert (pytest.approx(0.5), 6, "times") == (result.value, result.n, result.unit)
    assert result.p == pytest.approx(2 / 64)


def test_unproven_blocks_are_left_out() -> None:
    """A block without a witnessed fault counts on neither side; the remaining five blocks decide nothing."""
    spoilt = part("moves", HALF, checks=[doubted("witness/move-3", "witness")])
    assert 5 == spoilt.ratio("w/new", "w/old", WORST).n
    assert "undecided" == state_claims([claim()], {"moves": spoilt}, {})[0].word


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
def test_a_doubtful_part_leaves_its_claim_undecided(parts: Parts, why: str) -> None:
    """The part was not run, did not finish, or was measured on a starved host; the reason says which."""
    result = state_claims([claim()], parts, {"moves": "budget 10m"})[0]
    assert "undecided" == result.word
    assert why in result.why


def test_a_doubtful_part_does_not_affect_other_claims() -> None:
    """A claim on a sound part is judged."""
    other = Claim("other", "", ("gone",), _never, rule=RULE)
    words = [state_claim.word for state_claim in state_claims([other, claim()], {"moves": part("moves", HALF)}, {})]
    assert ["undecided", "confirmed"] == words


def _never(parts: Parts) -> Measured:
    raise AssertionError(parts)


@pytest.mark.parametrize(
    ("statuses", "violations"),
    [
        ([Status.PASS, Status.PASS], 0),
        ([Status.PASS, Status.INCONCLUSIVE], None),
        ([Status.INCONCLUSIVE, Status.FAIL], 4),
        ([], None),
    ],
)
def test_integrity_claims_use_the_checks_of_the_run(
    statuses: list[Status], violations: int | None, tmp_path: Path
) -> None:
    """An INCONCLUSIVE check or no check decides nothing; checks of other rules and other faults are ignored."""
    checks = [
        Check(
            "integrity/lost",
            "integrity",
            "arm=w consume",
            status,
            10,
            1,
            "",
            "as it was",
            4.0 * (status == Status.FAIL),
        )
        for status in statuses
    ]
    other = Check("integrity/order", "integrity", "arm=w consume", Status.FAIL, 10, 1, "", "")
    part_of_kills = on_disk.part(tmp_path, faults={"kill": [1, 2, 3], "elect": [4]}, checks=[*checks, other])
    result = integrity([part_of_kills], ["lost", "duplicate"], ["kill"])
    assert (violations, 3) == (result.violations, result.ours.n)


def test_a_permitted_loss_is_a_violation(tmp_path: Path) -> None:
    """A claim that nothing is lost is about records, so what the configuration permits counts as well."""
    check = Check("integrity/lost", "integrity", "arm=w produce", Status.PASS, 10, 1, "", "explained by acks=1", 3.0)
    part_of_kills = on_disk.part(tmp_path, faults={"kill": [1]}, checks=[check])
    assert 3 == integrity([part_of_kills], ["lost"], ["kill"]).violations


# ---- control, assay, registration


@pytest.mark.parametrize(("other_bound", "word"), [(0.6, "confirmed"), (0.4, "undecided")])
@pytest.mark.parametrize("role", ["control", "assay"])
def test_a_claim_needs_its_control_and_its_assay(role: Role, other_bound: float, word: Word) -> None:
    """A clear effect is no word if the control is biased or the assay shows nothing; the reason names it."""
    other = Claim("other", "", ("moves",), measured, role, Rule("below", (other_bound,), 0.45, ratio=True))
    claims = [claim(**{role: ("other",)}), other]
    statement = state_claims(claims, {"moves": part("moves", HALF)}, {})[0]
    assert (word, word == "undecided") == (statement.word, f"its {role} other is contradicted" in statement.why)


def test_the_assay_of_a_control_decides_the_control_only() -> None:
    """Arms that differ nowhere prove no control; a claim with an effect in any direction needs no further proof."""
    contrary = replace(claim(control=("other",)), rule=Rule("above", (0.6,), ratio=True))
    control = Claim("other", "", ("moves",), measured, "control", RULE, assay=("half",))
    assert (contrary, control) == requirements(contrary, [contrary, control])
    statements = state_claims([contrary, control], {"moves": part("moves", HALF)}, {})
    assert ["contradicted", "undecided"] == [entry.word for entry in statements]


ALL = {
    module.__name__: module.REGISTRATION for module in (kip227, kip392, kip794, kip848, kip890, kip951, kip966, kip1224)
}


@pytest.mark.parametrize("registration", ALL.values(), ids=[name.rpartition(".")[2] for name in ALL])
def test_every_registration_is_complete(registration: Registration) -> None:
    """One claim is the headline, controls and assays exist, and no claim is undecidable by its design.

    Each rule has six units or more and a power of 80 % for its smallest effect, by a pilot whose source is named.
    """
    ids = {claim.id for claim in registration.claims}
    assert 1 == sum(claim.headline for claim in registration.claims)
    for entry in registration.claims:
        assert ids >= {*entry.control, *entry.assay}
        assert (entry.rule is None) == (entry.role == "figure"), entry.id
        if not entry.rule:
            continue
        if entry.rule.kind == "within" and entry.role != "assay":
            assert entry.assay or registration is kip794.REGISTRATION, f"{entry.id}: equivalence without an assay"
        assert entry.n >= UNITS_MIN, entry.id
        assert entry.power is None if entry.rule.kind == "violated" else (entry.power or 0) >= 0.8, entry.id
        assert entry.pilot_source, entry.id


@pytest.mark.parametrize(
    "registration", [kip227, kip392, kip848, kip890, kip966, kip1224], ids=lambda module: module.__name__[-4:]
)
def test_each_fact_has_a_planted_violation(registration: ModuleType) -> None:
    """One of its assays must show an effect; another fact, which is confirmed where nothing happens, is no proof."""
    by_id = {entry.id: entry for entry in registration.REGISTRATION.claims}
    for entry in by_id.values():
        if entry.rule and entry.rule.kind == "fact":
            rules = [by_id[assay].rule for assay in entry.assay]
            assert [rule for rule in rules if rule and rule.kind in ("violated", "above")], entry.id


PLANTED = Rule("violated")


@pytest.mark.parametrize(("seen", "word"), [(2, "confirmed"), (0, "undecided"), (None, "undecided")])
def test_a_fact_is_undecided_if_its_assay_did_not_fire(seen: int | None, word: Word) -> None:
    """The planted violation must be counted; without it, no violation of the fact proves nothing."""

    def of(count: int | None) -> Measured:
        return Measured(Estimate(0.0, None, None, 6), violations=count)

    fact = Claim("fact", "", ("moves",), lambda _: of(0), "claim", Rule("fact"), "moves", 6, assay=("planted",))
    planted = Claim("planted", "", ("moves",), lambda _: of(seen), "assay", PLANTED, "moves", 6)
    statement = state_claims([fact, planted], {"moves": part("moves", HALF)}, {})[0]
    assert (word, word == "undecided") == (statement.word, "its assay planted is" in statement.why)


@pytest.mark.parametrize(("ran", "word"), [(1, "undecided"), (2, "confirmed")])
def test_a_run_does_not_decide_a_claim_that_was_registered_later(ran: int, word: Word) -> None:
    statement = state_claims([claim(since=2)], {"moves": part("moves", HALF)}, {}, {"moves": ran})[0]
    assert (word, ran < 2) == (statement.word, "before version 2" in statement.why)


@pytest.mark.parametrize(
    ("ours", "others", "theirs", "labels"),
    [
        ("reference", "java", HALF, ["claim", "claim"]),
        ("reference", "reference", HALF, ["claim, reference client", "claim, reference client"]),
        ("reference", "java", ALIKE, ["claim, reference client", "claim"]),  # contradicted for the other client
        ("java", "reference", HALF, ["claim", "claim"]),
    ],
)
def test_a_claim_is_of_the_kip_if_it_holds_for_a_client_that_we_did_not_write(
    ours: str, others: str, theirs: Values, labels: list[str]
) -> None:
    """The label follows from the arms of the runs; the same claim for another client counts only if it is confirmed."""
    parts = {"moves": part("moves", HALF, ours), "others": part("others", theirs, others)}
    like = replace(claim(), id="other", needs=("others",), measure=lambda parts: measured(parts, "others"), like="half")
    statements = state_claims([claim(), like], parts, {})
    assert labels == [entry.label for entry in statements]


def statement(role: Role, word: Word) -> Statement:
    return Statement(f"{role}-{word}", "", "", "a rule", unknown(), word, "because", role)


CONTROL = statement("control", "confirmed")


@pytest.mark.parametrize(
    ("statements", "word"),
    [
        ([statement("claim", "confirmed"), CONTROL], "confirmed"),
        ([statement("claim", "confirmed"), statement("mechanism", "undecided"), CONTROL], "undecided"),
        ([statement("claim", "contradicted"), statement("claim", "undecided"), CONTROL], "contradicted"),
        ([statement("claim", "confirmed"), statement("control", "undecided")], "undecided"),
        ([statement("claim", "confirmed"), statement("figure", "undecided"), CONTROL], "confirmed"),
        ([statement("claim", "confirmed"), statement("production", "excluded"), CONTROL], "excluded"),
        ([statement("claim", "excluded"), statement("control", "undecided")], "undecided"),
        ([CONTROL], "undecided"),
        ([], "undecided"),
    ],
)
def test_verdict(statements: list[Statement], word: Word) -> None:
    """Each rule has a case that only this rule decides; a trial without claims is never confirmed."""
    assert word == verdict(statements).word


def test_the_reason_counts_the_claims_and_names_the_deciding_one() -> None:
    statements = [statement("claim", "undecided"), statement("mechanism", "confirmed"), CONTROL]
    counts = "claims: 1 undecided; mechanisms: 1 confirmed; controls: 1 confirmed"
    assert counts == tally(statements)
    assert f"{counts}; claim-undecided: because" == verdict(statements).why
    assert "control" in verdict([statement("claim", "confirmed"), statement("control", "undecided")]).why


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["confirmed", "confirmed"], 0),
        (["confirmed", "undecided"], 2),
        (["undecided", "contradicted"], 1),
        (["confirmed", "excluded"], 2),
        ([], 2),
    ],
)
def test_exit_code(words: list[Word], code: int) -> None:
    """The code is 0 if all trials are confirmed and 1 if one is contradicted."""
    assert code == exit_code(words)
