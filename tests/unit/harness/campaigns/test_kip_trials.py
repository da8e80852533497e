"""The trials' parts: valid plans, claims on existing parts, sabotage, and durations that a budget can rely on."""

from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.campaigns.kip import honest_settings
from aftershock.harness.campaigns.kip_budget import plan_within_budget
from aftershock.harness.campaigns.kip_trials import (
    KIP_227,
    KIP_951,
    KIP_1224,
    OLD_KAFKA,
    TRIALS,
    Trial,
    select_trials,
)
from aftershock.harness.campaigns.store import Planned, digest
from aftershock.results.studies.statement import DECIDING
from aftershock.results.studies.trials.kip227 import FOLLOWERS
from aftershock.results.studies.trials.kip951 import UNDELAYED
from aftershock.results.studies.trials.kip951_benchmark import PRODUCTION, name_of, orders
from aftershock.results.studies.trials.kip1224 import IDLE, OLD, SHARE
from aftershock.results.studies.trials.kip1224_commits import LINGER, SHARE_LINGER
from aftershock.tests.unit.faults.test_plans import MEANT

PARTS = [(trial, part) for trial in TRIALS.values() for part in trial.parts]
NAMES = [f"{trial.kip}-{part.name}" for trial, part in PARTS]


@pytest.mark.parametrize(("trial", "part"), PARTS, ids=NAMES)
def test_every_part_is_valid_and_used(trial: Trial, part: Planned) -> None:
    """Each part is a valid plan, is read by a claim, and lasts about as long as the budget assumes."""
    checked = load_plan(find(part.plan), part.settings)
    assert len(MEANT.get(part.plan, [])) == len(checked.warnings)
    assert any(part.name in claim.needs for claim in trial.claims)
    timeline = compile_plan(checked.plan, 1, checked.source, checked.slo_positions)
    assert part.takes_s >= (timeline.length_ms + timeline.timing.steady_ms) / 1000


@pytest.mark.parametrize(("trial", "part"), PARTS, ids=NAMES)
def test_sabotage_switches_the_kip_off(trial: Trial, part: Planned) -> None:
    """The sabotaged part is a valid plan that differs from the part's own, which has another record."""
    (sabotaged,) = [other for other in trial.sabotage().parts if other.name == part.name]
    load_plan(find(part.plan), sabotaged.settings)
    assert bool(part.off) == (digest(part, 1) != digest(sabotaged, 1))


@pytest.mark.parametrize(("trial", "part"), [pair for pair in PARTS if pair[1].off])
def test_a_sabotaged_run_is_judged_by_the_settings_of_the_honest_plan(trial: Trial, part: Planned) -> None:
    """This holds for plans without a cluster of their own, too."""
    (sabotaged,) = [other for other in trial.sabotage().parts if other.name == part.name]
    honest = load_plan(find(part.plan), part.changes).plan.cluster
    assert dict(honest.config) == honest_settings(sabotaged).get("config", {})


def test_every_deciding_part_can_be_sabotaged() -> None:
    """Only parts of controls, of figures, and of clients without the KIP run as they are."""
    left = {(trial.kip, part.name) for trial, part in PARTS if not part.off}
    controls = {*((227, full) for _, full in FOLLOWERS), (392, "selector-off"), (966, "no-elr"), (966, "killed")}
    controls |= {(890, name) for name in ("version-1", "early", "unverified", "clients-1")}
    planted = {(227, "broken"), (392, "short-lease"), (392, "broken"), (1224, "broken"), (1224, "stalled")}
    without = {(951, name_of(unit, arm)) for unit, order in orders() for arm in order if arm != "whole"}
    assert left <= controls | planted | without | {(1224, name) for name in ("user", "old", "open")}


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_every_claim_can_be_sabotaged(trial: Trial) -> None:
    """Sabotage changes a run of every claim, mechanism and production claim; controls and figures need none."""
    changed = {part.name for part in trial.parts if part.off}
    assert [] == [claim.id for claim in trial.claims if claim.role in DECIDING and not changed & {*claim.needs}]


def test_a_claim_has_as_many_units_as_its_runs_have_blocks() -> None:
    """Runs of KIP-951's claims have exactly the registered number of moves, kills or returns.

    The unit of its benchmark is a pair of launches.
    """
    (trial,) = select_trials("951")
    blocks = {part.name: part.blocks or 0 for part in trial.parts}
    for claim in trial.claims:
        if claim.partial:
            assert claim.rule is None or len(claim.needs) == 2 * claim.n
            continue
        assert claim.rule is None or claim.n == sum(blocks[name] for name in claim.needs), claim.id


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_every_trial_has_a_control_and_claims(trial: Trial) -> None:
    """Claims refer to existing parts; part names are unique."""
    assert {name for claim in trial.claims for name in claim.needs} <= {part.name for part in trial.parts}
    for names in ([claim.id for claim in trial.claims], [part.name for part in trial.parts]):
        assert len(names) == len(set(names))
    assert {"claim", "control"} <= {claim.role for claim in trial.claims}
    assert trial.plots({}) == ()


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_the_headline_is_run_under_kafkas_defaults(trial: Trial) -> None:
    """The claim beside the headline has its rule, units and estimand, and runs of its own under profile production."""
    place = next(place for place, claim in enumerate(trial.claims) if claim.headline)
    headline, beside = trial.claims[place : place + 2]
    assert (f"{headline.id}-production", "production") == (beside.id, beside.role)
    for name in ("rule", "unit", "n", "estimand", "smallest_effect", "pilot", "control", "assay"):
        assert getattr(headline, name) == getattr(beside, name)
    by_name = {part.name: part for part in trial.parts}
    assert len(headline.needs) == len(beside.needs)
    for name, production in zip(headline.needs, beside.needs, strict=True):
        part, ours = by_name[name], by_name[production]
        assert (part.plan, part.blocks, part.off) == (ours.plan, ours.blocks, ours.off)
        assert "cluster.profile=production" in ours.changes
        cluster = load_plan(find(ours.plan), ours.settings).plan.cluster
        assert ("production", None) == (cluster.profile, cluster.config.get("replica.fetch.backoff.ms") or None)


def test_trials_are_selected_by_number() -> None:
    """A KIP number in any spelling, or all trials; anything else is an error."""
    assert [951] == [trial.kip for trial in select_trials("KIP-951")] == [trial.kip for trial in select_trials("951")]
    assert list(TRIALS) == [trial.kip for trial in select_trials("all")]
    with pytest.raises(AftershockError, match="no trial of `95`: use one of"):
        select_trials("95")


def test_each_unit_of_the_benchmark_has_an_order_of_its_own() -> None:
    """Launches differ in the treatment only, or in the brokers' settings; half of the units have the defaults."""
    parts = [part for part in KIP_951.parts if part.name.startswith("benchmark-")]
    assert [name_of(unit, arm) for unit, order in orders() for arm in order] == [part.name for part in parts]
    assert 6 == len({order for _, order in orders()})
    plans = {part.name: load_plan(find(part.plan), part.settings).plan for part in parts}
    for unit, order in orders():
        of_unit = [plans[name_of(unit, arm)] for arm in order]
        treatments = [plan.faults[0] for plan in of_unit]
        assert all(plan == of_unit[0].model_copy(update={"faults": plan.faults}) for plan in of_unit)
        assert all(plan.faults[1:] == of_unit[0].faults[1:] for plan in of_unit)
        assert 3 == len({repr(treatment) for treatment in treatments})
        cluster = of_unit[0].cluster
        settings = (cluster.profile, cluster.config.get("num.io.threads") or None)
        assert (("production", None) if unit in PRODUCTION else ("fast", "1")) == settings
    assert 3 == len(PRODUCTION)


def test_the_benchmark_fits_no_hour() -> None:
    """The short form of all trials leaves it out; the long form, without a budget, runs it."""
    names = {part.name for part in KIP_951.parts if part.name.startswith("benchmark-")}
    short = {part.name for part in plan_within_budget([*TRIALS.values()], 3600).parts}
    assert not names & short
    assert names <= {part.name for part in plan_within_budget([KIP_951], None).parts}


def brokers(part: Planned) -> dict[int, str]:
    checked = load_plan(Path(find(part.plan)), part.settings)
    found = checked.plan.cluster.brokers or {}
    return {broker: own.get(LINGER, own.get(SHARE_LINGER)) for broker, own in found.items()}


def test_undelayed_runs_differ_only_in_the_order_of_the_arms() -> None:
    """Each arm of the plan is once first, second, third and last, and no stored run replaces another."""
    (own,) = load_plan(find("kips/951-undelayed")).plan.workloads
    parts = [part for part in KIP_951.parts if part.name in UNDELAYED]
    runs = []
    for part in parts:
        (workload,) = load_plan(find(part.plan), part.settings).plan.workloads
        assert own == workload
        runs.append(list(workload.arms))
    assert [{*own.arms}] * 4 == [{*place} for place in zip(*runs, strict=True)]
    assert len({digest(part, 1) for part in parts}) == len(parts)


@pytest.mark.parametrize("names", [IDLE, SHARE])
def test_lingers_form_a_latin_square(names: tuple[str, ...]) -> None:
    """In three runs each broker has each linger once, and each run has all three lingers."""
    runs = [brokers(part) for part in KIP_1224.parts if part.name in names]
    assert [{"-1", "5", "0"}] * 3 == [set(run.values()) for run in runs]
    assert [{"-1", "5", "0"}] * 3 == [{run[broker] for run in runs} for broker in (1, 2, 3)]


@pytest.mark.parametrize("part", KIP_1224.parts, ids=lambda part: part.name)
def test_plans(part: Planned) -> None:
    """Each part's plan can be run with its changes; only the old default's is of another Kafka, which knows no -1."""
    assert (OLD_KAFKA if part.name == OLD else None) == part.kafka
    assert part.kafka is None or "-1" not in brokers(part).values()


def sessions_on(part: Planned) -> set[bool | None]:
    workloads = load_plan(Path(find(part.plan)), part.settings).plan.workloads
    return {arm.fetch_session for workload in workloads if workload.consume for arm in workload.arms.values()}


@pytest.mark.parametrize("part", KIP_227.parts, ids=lambda part: part.name)
def test_parts_switch_fetch_sessions(part: Planned) -> None:
    """Side-by-side parts have arms with and without sessions; followers open none, other clients have no switch."""
    followers: dict[str, set[bool | None]] = {name: set() for pair in FOLLOWERS for name in pair}
    others: dict[str, set[bool | None]] = {
        name: {None} for name in ("clients", "sessions-java", "evicted-java", "repeated")
    }
    alone = {"sessions": {True}, "broken": {True}, "evicted": {None}, **followers, **others}
    assert alone.get(part.name, {True, False}) == sessions_on(part)
