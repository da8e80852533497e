"""The trials' parts: valid plans, claims on existing parts, and durations that a budget can rely on."""

from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.labs.kip.trials import KIP_227, KIP_1224, OLD_KAFKA, TRIALS, Planned, Trial, select_trials
from aftershock.results.compare.comparison import BLOCKS_MIN
from aftershock.results.trials.kip227 import CPU_FULL, CPU_SESSION, FOLLOWERS_FULL, FOLLOWERS_SESSION
from aftershock.results.trials.kip1224 import IDLE, OLD, SHARE
from aftershock.results.trials.kip1224_commits import LINGER, SHARE_LINGER

PARTS = [(trial, part) for trial in TRIALS.values() for part in trial.parts]
NAMES = [f"{trial.kip}-{part.name}" for trial, part in PARTS]


@pytest.mark.parametrize(("trial", "part"), PARTS, ids=NAMES)
def test_every_part_is_valid_and_used(trial: Trial, part: Planned) -> None:
    """Each part is a valid plan at its shortest, is read by a claim, and lasts about as long as the budget assumes."""
    shortest = None if part.blocks is None else min(part.blocks, BLOCKS_MIN)
    checked = load_plan(find(part.plan), part.settings(shortest))
    assert checked.warnings == ()
    assert any(part.name in claim.needs for claim in trial.claims)
    timeline = compile_plan(checked.plan, 1, checked.source, checked.slo_positions)
    told_s = part.around_s + part.block_s * (shortest or 0)
    assert told_s >= (timeline.length_ms + timeline.timing.steady_ms) / 1000


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_every_trial_has_a_control_and_claims(trial: Trial) -> None:
    """Claims refer to existing parts; part names are unique."""
    assert {name for claim in trial.claims for name in claim.needs} <= {part.name for part in trial.parts}
    for names in ([claim.id for claim in trial.claims], [part.name for part in trial.parts]):
        assert len(names) == len(set(names))
    assert {"claim", "control"} <= {claim.role for claim in trial.claims}
    assert trial.plots({}) == ()


def test_trials_are_selected_by_number() -> None:
    """A KIP number in any spelling, or all trials; anything else is an error."""
    assert [951] == [trial.kip for trial in select_trials("KIP-951")] == [trial.kip for trial in select_trials("951")]
    assert list(TRIALS) == [trial.kip for trial in select_trials("all")]
    with pytest.raises(AftershockError, match="no trial of `95`: use one of"):
        select_trials("95")


def brokers(part: Planned) -> dict[int, str]:
    checked = load_plan(Path(find(part.plan)), part.settings(part.blocks))
    found = checked.plan.cluster.brokers or {}
    return {broker: own.get(LINGER, own.get(SHARE_LINGER)) for broker, own in found.items()}


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
    workloads = load_plan(Path(find(part.plan)), part.settings(part.blocks)).plan.workloads
    return {arm.fetch_session for workload in workloads if workload.consume for arm in workload.arms.values()}


@pytest.mark.parametrize("part", KIP_227.parts, ids=lambda part: part.name)
def test_parts_switch_fetch_sessions(part: Planned) -> None:
    """Side-by-side parts have arms with and without sessions; CPU parts have one kind each; followers open none."""
    followers: dict[str, set[bool | None]] = {FOLLOWERS_SESSION: set(), FOLLOWERS_FULL: set()}
    alone = {CPU_SESSION: {True}, CPU_FULL: {False}, "sessions": {True}, "evicted": {None}, **followers}
    assert alone.get(part.name, {True, False}) == sessions_on(part)
