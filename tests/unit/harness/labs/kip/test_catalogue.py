"""What the trials are made of: plans that check, claims on parts that there are, times that a budget can trust."""

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.labs.kip.trials import TRIALS, Planned, Trial, select_trials
from aftershock.results.compare.comparison import BLOCKS_MIN

PARTS = [(trial, part) for trial in TRIALS.values() for part in trial.parts]
NAMES = [f"{trial.kip}-{part.name}" for trial, part in PARTS]


@pytest.mark.parametrize(("trial", "part"), PARTS, ids=NAMES)
def test_parts(trial: Trial, part: Planned) -> None:
    """Each is a good plan at its shortest, is read by a claim, and lasts about as long as a budget believes."""
    shortest = None if part.blocks is None else min(part.blocks, BLOCKS_MIN)
    checked = load_plan(find(part.plan), part.settings(shortest))
    assert checked.warnings == ()
    assert any(part.name in claim.needs for claim in trial.claims)
    timeline = compile_plan(checked.plan, 1, checked.source, checked.slo_positions)
    told_s = part.around_s + part.block_s * (shortest or 0)
    assert told_s >= (timeline.length_ms + timeline.timing.steady_ms) / 1000


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_trials(trial: Trial) -> None:
    """Claims are on parts that there are, named once; each trial has a control, and something that it claims."""
    assert {name for claim in trial.claims for name in claim.needs} <= {part.name for part in trial.parts}
    for names in ([claim.id for claim in trial.claims], [part.name for part in trial.parts]):
        assert len(names) == len(set(names))
    assert {"claim", "control"} <= {claim.role for claim in trial.claims}
    assert trial.plots({}) == ()


def test_chosen() -> None:
    """By number, however it is written, or all of them; anything else is a sentence."""
    assert [951] == [trial.kip for trial in select_trials("KIP-951")] == [trial.kip for trial in select_trials("951")]
    assert list(TRIALS) == [trial.kip for trial in select_trials("all")]
    with pytest.raises(AftershockError, match="no trial of `95`: use one of"):
        select_trials("95")
