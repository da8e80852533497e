"""Words of an answer, which the first lines of each verdict have."""

from dataclasses import replace

import pytest

from aftershock.results.model.answer import LINES_MAX, Answer, Normality, answer_from_json, answer_lines

NORMAL = Normality(measured=1, recovered=1, worst_us=6_400_000, observed_us=0, healed=1, before_heal=0)
ANSWER = Answer("java", "kill-1", 1, True, 0, 0, 0, 0, {"produce": 5_100_000}, None, NORMAL)


def test_one_line_says_lost_twice_stopped_and_normal_again() -> None:
    assert ANSWER.words == "lost 0 · twice 0 · stopped 5.1 s · normal again after 6.4 s (not before the heal)"
    assert answer_lines([ANSWER]) == ([("java", "kill-1", ANSWER.words)], 0)
    assert answer_from_json(ANSWER.to_json()) == ANSWER


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lost": None}, "lost ?"),
        ({"lost": 4}, "lost 4"),
        ({"lost": 4, "lost_permitted": 3}, "lost 4 (3 permitted)"),
        ({"twice": 4, "twice_permitted": 4}, "twice 4 (all permitted)"),
        ({"stopped_us": {"produce": 80_000}}, "stopped 0.08 s"),
        ({"stopped_us": {"produce": None}}, "stopped under 1 s"),
        ({"stopped_us": {"produce": 960_000, "consume": 2_000_000}}, "stopped 1.0 s, reading 2.0 s"),
        ({"stopped_us": {"consume": 2_000_000}}, "stopped 2.0 s"),
        ({"partition": ("orders/3", 9_000_000)}, "stopped 5.1 s (orders/3: 9.0 s)"),
        ({"injections": 6}, "stopped at most 5.1 s"),
        ({"normality": replace(NORMAL, before_heal=1)}, "normal again after 6.4 s (before the heal)"),
        ({"normality": replace(NORMAL, healed=0)}, "normal again after 6.4 s"),
        ({"normality": replace(NORMAL, worst_us=0)}, "normal throughout"),
        ({"normality": replace(NORMAL, recovered=0, observed_us=9_000_000)}, "not normal again in the 9.0 s observed"),
        (
            {"normality": Normality(6, 4, 6_400_000, 9_000_000, 6, 2)},
            "not normal again in the 9.0 s observed after 2 of 6 injections",
        ),
        (
            {"normality": Normality(6, 6, 6_400_000, 0, 6, 2)},
            "normal again after at most 6.4 s (2 of 6 before the heal)",
        ),
    ],
)
def test_each_figure_has_its_words(changed: dict[str, object], words: str) -> None:
    assert words in replace(ANSWER, **changed).words.split(" · ")  # type: ignore[arg-type]


def test_a_line_that_counts_nothing_has_no_counts() -> None:
    assert replace(ANSWER, counts=False).words.startswith("stopped 5.1 s")


def test_the_most_urgent_lines_remain_in_the_order_of_the_plan() -> None:
    """A loss that nothing permits is more urgent than a client that was not normal again, and that than a long stop."""
    calm = [replace(ANSWER, fault=f"f{n}", stopped_us={"produce": 1_000_000}) for n in range(LINES_MAX)]
    stopped = replace(ANSWER, fault="stopped", stopped_us={"produce": 2_000_000})
    never = replace(ANSWER, fault="never", normality=replace(NORMAL, recovered=0), stopped_us={"produce": 0})
    lost = replace(ANSWER, fault="lost", lost=1, stopped_us={})
    permitted = replace(ANSWER, fault="permitted", lost=1, lost_permitted=1, stopped_us={})
    lines, omitted = answer_lines([*calm, permitted, stopped, never, lost])
    assert omitted == 4
    assert [fault for _, fault, _ in lines] == [*(f"f{n}" for n in range(LINES_MAX - 3)), "stopped", "never", "lost"]
