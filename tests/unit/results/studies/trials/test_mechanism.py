"""Drawings of what each KIP changes, which are written as steps in ``mechanisms.toml``."""

import pytest

from aftershock.results.studies.trials.mechanism import Step, mechanism, step_of

LANES = ("producer", "leader, rack a")


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("producer -> leader, rack a: Produce: 1", Step(0, 1, "Produce: 1", new=False)),
        ("+ leader, rack a -> producer: + a hint", Step(1, 0, "+ a hint", new=True)),
        ("+ producer: waits", Step(0, 0, "waits", new=True)),
    ],
)
def test_a_step_names_its_lanes_and_what_is_new(text: str, step: Step) -> None:
    assert step_of(text, LANES) == step


@pytest.mark.parametrize("text", ["consumer: waits", "producer -> consumer: Fetch", "producer -> leader, rack a", ""])
def test_a_step_between_other_lanes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no step between the lanes producer, leader, rack a"):
        step_of(text, LANES)


def test_a_drawing_tells_its_steps_in_words() -> None:
    drawn = mechanism(848)
    assert "with KIP-848: the consumer protocol: leaves; assigns, by itself; heartbeat: one more" in drawn.svg
    assert drawn.reading.endswith("no partition stops unless it moves. Blue is what the KIP changes.")
