"""Promises of the texts: each is tested or says why not, and each claim of a trial is promised or our own."""

from pathlib import Path

import pytest

from aftershock.harness.campaigns.kip_trials import TRIALS
from aftershock.results.studies.trials.promises import Promise, read_own, read_promises

ROOT = Path(__file__).parents[5]
KIPS = (951, 227, 794, 392, 1224)
"""KIPs whose texts were read."""


@pytest.mark.parametrize("kip", KIPS)
def test_every_claim_is_promised_or_our_own(kip: int) -> None:
    """No id is misspelt, none is forgotten, and none is both."""
    registered = {claim.id for claim in TRIALS[kip].claims}
    promised = {claim for promise in read_promises()[kip] for claim in promise.claims}
    own = read_own()[kip].keys()
    assert promised | own == registered, f"add to promises.toml: {registered - promised - own}"
    assert set() == promised & own


def test_promises_are_of_the_five_texts() -> None:
    """No promise stands twice."""
    assert {*KIPS} == read_promises().keys() == read_own().keys()
    for promises in read_promises().values():
        assert len(promises) == len({(promise.section, promise.promise) for promise in promises})


def test_the_named_contract_tests_exist() -> None:
    tests = {promise.test for promises in read_promises().values() for promise in promises if promise.test}
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"claims": ("kept",), "untestable": "never built"},
        {"open": "a count", "untestable": "never built"},
        {"test": "tests/contract/test_it.py::test_it"},
        {"claims": ("kept",), "finding": "holds"},
    ],
)
def test_a_promise_needs_one_answer(fields: dict[str, str]) -> None:
    """Refused are none, a test beside a reason why none is possible, and half of a finding."""
    with pytest.raises(ValueError, match="Motivation: It is fast: "):
        Promise("Motivation", "It is fast", **fields)  # type: ignore[arg-type]
    Promise("Motivation", "It is fast", claims=("kept",), open="end to end")


def test_every_headline_compares_its_statistic_with_the_kips() -> None:
    assert all(claim.statistic for trial in TRIALS.values() for claim in trial.claims if claim.headline)
