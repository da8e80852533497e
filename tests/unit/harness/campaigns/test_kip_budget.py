"""Selection of claims, and of the parts that they need, within a time budget."""

from aftershock.harness.campaigns.kip_budget import plan_within_budget
from aftershock.harness.campaigns.kip_trials import Trial
from aftershock.harness.campaigns.store import Planned
from aftershock.results.studies.statement import Measured, Role, Rule
from aftershock.results.studies.trials.claim import Claim, Parts, Registration

LONG, SHORT, WHOLE = (
    Planned("long", "demo", 60.0, (), 40, 6.0),
    Planned("short", "demo", 60.0, (), 10, 20.0),
    Planned("whole", "demo", 300.0),
)


def _never(parts: Parts) -> Measured:
    raise AssertionError(parts)


def claim(name: str, *parts: Planned, role: Role = "claim", n: int = 6, **more: object) -> Claim:
    rule = None if role == "figure" else Rule("fact")
    needs = tuple(part.name for part in parts)
    return Claim(name, "", needs, _never, role, rule, n=n, **more)  # type: ignore[arg-type]  # named as the fields


def trial(kip: int, *claims: Claim, parts: tuple[Planned, ...] = (LONG, SHORT, WHOLE)) -> Trial:
    return Trial(kip, "", Registration(1, claims), parts, lambda _: ())


def test_without_budget_all_parts_run_in_full() -> None:
    found = plan_within_budget([trial(1, claim("a", LONG), claim("b", SHORT, WHOLE))], None)
    assert ({LONG, SHORT, WHOLE}, 860) == ({*found.parts}, found.takes_s)
    assert [(1, "a"), (1, "b")] == found.decides
    assert ["can decide KIP-1: a, b"] == found.forecast()


def test_the_headline_comes_first_and_a_later_claim_that_fits_is_taken() -> None:
    asked = trial(1, claim("a", LONG), claim("b", WHOLE), claim("c", SHORT, headline=True))
    found = plan_within_budget([asked], 570)
    assert ((SHORT, LONG), [(1, "b", 300.0)]) == (found.parts, found.open)
    assert {WHOLE: "budget 9.5 min"} == found.left_out
    assert ["can decide KIP-1: c, a", "not in this budget: KIP-1: b (5 min)"] == found.forecast()


def test_a_claim_needs_the_parts_of_its_control_and_assay() -> None:
    """Without them it would be undecided, so it is not run without them."""
    control, assay = claim("kill", SHORT, role="control"), claim("must", WHOLE, role="assay")
    asked = trial(1, claim("a", LONG, control=("kill",), assay=("must",)), control, assay)
    assert [] == plan_within_budget([asked], 859).decides
    found = plan_within_budget([asked], 860)
    assert ([(1, "a")], {LONG, SHORT, WHOLE}) == (found.decides, {*found.parts})


def test_a_budget_that_decides_nothing_says_what_each_claim_needs() -> None:
    """Figures may still fit; the caller runs nothing, because nothing is decided."""
    found = plan_within_budget([trial(951, claim("a", WHOLE), claim("b", LONG, SHORT))], 120)
    assert ([], ()) == (found.decides, found.parts)
    assert ["not in this budget: KIP-951: a (5 min), b (9.33 min)"] == found.forecast()


def test_stored_runs_cost_nothing() -> None:
    """A claim whose runs are stored is decided by any budget, and the budget goes to the next claim."""
    asked = trial(1, claim("a", LONG), claim("b", WHOLE))
    assert ((LONG,), [(1, "a")]) == (plan_within_budget([asked], 300).parts, plan_within_budget([asked], 300).decides)
    later = plan_within_budget([asked], 300, [LONG])
    assert ((WHOLE,), [(1, "a"), (1, "b")]) == (later.parts, later.decides)
    assert [(1, "a")] == plan_within_budget([asked], 1, [LONG]).decides


def test_a_small_budget_tests_the_headline_of_each_kip() -> None:
    asked = [trial(1, claim("b", SHORT), claim("a", LONG, headline=True)), trial(2, claim("c", WHOLE, headline=True))]
    assert [(1, "a"), (2, "c")] == plan_within_budget(asked, 610).decides


def test_after_the_headlines_the_time_for_each_claim_counts() -> None:
    """Two claims on one run of 300 s come before a claim on a run of 260 s."""
    asked = [trial(1, claim("a", SHORT)), trial(2, claim("b", LONG), claim("c", LONG, WHOLE), claim("d", LONG))]
    assert [(2, "b"), (2, "d")] == plan_within_budget(asked, 310).decides
    assert [(2, "b"), (2, "d"), (1, "a")] == plan_within_budget(asked, 560).decides
    assert [(2, "b"), (2, "d"), (1, "a"), (2, "c")] == plan_within_budget(asked, 860).decides


def test_headlines_under_kafkas_defaults_come_last() -> None:
    """Even a figure is run before them, so that they take nothing from the other claims."""
    asked = trial(
        1, claim("a", LONG), claim("a-production", WHOLE, role="production"), claim("f", SHORT, role="figure")
    )
    assert (LONG, SHORT) == plan_within_budget([asked], 620).parts
    found = plan_within_budget([asked], 860)
    assert ((LONG, SHORT, WHOLE), [(1, "a"), (1, "a-production")]) == (found.parts, found.decides)


def test_claims_without_enough_units_and_figures_come_last() -> None:
    """One death decides nothing, so its run gets only what decidable claims leave, and it is named beforehand."""
    asked = trial(1, claim("dies", WHOLE, n=1), claim("figure", SHORT, role="figure"), claim("a", LONG))
    found = plan_within_budget([asked], 300)
    assert ((LONG,), [(1, "dies")]) == (found.parts, found.undecidable)
    assert "undecided by design, fewer than 6 independent units: KIP-1: dies" == found.forecast()[-1]
    assert (LONG, WHOLE) == plan_within_budget([asked], 600).parts
