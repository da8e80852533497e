"""Composed faults: start and id of each step, draws, and problems."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import PlanError
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.kinds.process.stop import Pause
from aftershock.faults.plan.catalogue import plan_schema
from aftershock.faults.plan.check import check, load_plan
from aftershock.faults.plan.command_line import parse_inject
from aftershock.faults.plan.model import Choice, Choose, Plan, Ranged, Repeat, Then, Together, Wait, dump
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import dump_yaml as text_of
from aftershock.faults.sections.document import load
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.lanes import WIDTH, lanes
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

if TYPE_CHECKING:
    from aftershock.faults.timeline.timeline import Timeline


# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


KILL, PAUSE = "{for: 4s, kind: kill, broker: 1}", "{for: 4s, kind: pause, broker: 2}"
SLOW = 'kind: latency, link: "client(a) -> broker"'


def begun(timeline: Timeline) -> list[tuple[str, float]]:
    return [(step.id, step.at_ms / 1000) for step in timeline.steps]


def problems(*faults: str, slo: str = "") -> list[str]:
    with pytest.raises(PlanError) as caught:
        load_plan(FRAME + "".join(f"  - {fault}\n" for fault in faults) + slo)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (f"{{at: 5s, together: [{KILL}, {{at: 1s, for: 2s, kind: pause, broker: 2}}]}}", [("kill-1", 5), ("pause-1", 6)]),
        (f"then: [{KILL}, {{wait: 2s}}, {PAUSE}]", [("kill-1", 0), ("pause-1", 6)]),
        (f"then: [{KILL}, {{at: 2s, for: 1s, kind: pause, broker: 2}}, {{id: last, for: 1s, kind: pause, broker: 3}}]", [("kill-1", 0), ("pause-1", 6), ("last", 7)]),
        (f"then: [{{together: [{KILL}, {{for: 9s, kind: pause, broker: 2}}]}}, {{for: 1s, kind: pause, broker: 3}}]", [("kill-1", 0), ("pause-1", 0), ("pause-2", 9)]),
        (f"{{at: 3s, repeat: 3, every: 5s, fault: {PAUSE}}}", [("pause-1-1", 3), ("pause-1-2", 8), ("pause-1-3", 13)]),
        (f"{{repeat: 2, fault: {PAUSE}}}", [("pause-1-1", 0), ("pause-1-2", 4)]),
        ("{at: 1s, every: 5s, until: 11s, fault: {id: nap, for: 4s, kind: pause, broker: 2}}", [("nap-1", 1), ("nap-2", 6)]),
        ("{every: 5s, until: 10001ms, fault: {id: nap, for: 4s, kind: pause, broker: 2}}", [("nap-1", 0), ("nap-2", 5), ("nap-3", 10)]),
        (f"{{repeat: 2, every: 20s, fault: {{then: [{KILL}, {{repeat: 2, fault: {{id: nap, for: 2s, kind: pause, broker: 2}}}}]}}}}", [("kill-1-1", 0), ("nap-1-1", 4), ("nap-1-2", 6), ("kill-1-2", 20), ("nap-2-1", 24), ("nap-2-2", 26)]),
        (f"choose: [{{fault: {KILL}}}, {{fault: {KILL}}}]", None),
        ("then: [{kind: elect, topic: orders}, {kind: restart, broker: 1}]", None),
    ],
)  # fmt: skip
def test_times_and_ids(fault: str, expected: list[tuple[str, float]] | None) -> None:
    """`at` counts from the element's start in its container; each round appends its number to the id."""
    timeline = timeline_of(fault)
    if expected is not None:
        assert expected == begun(timeline)
    elif "choose" in fault:
        assert len(timeline.steps) == 1
    else:  # without `for`, an action is over after its allowance
        first, second = timeline.steps
        assert second.at_ms == type(first.fault()).allowance_ms


def test_ids_depend_on_no_draw() -> None:
    """Every alternative counts in the numbering, so an id does not depend on draws."""
    plan = (f"choose: [{{fault: {KILL}}}, {{fault: {{wait: 0s}}}}]", "{at: 20s, for: 4s, kind: kill, broker: 2}")
    drawn = [begun(timeline_of(*plan, seed=seed)) for seed in range(20)]
    assert {(("kill-1", 0), ("kill-2", 20)), (("kill-2", 20),)} == {tuple(steps) for steps in drawn}


def test_weights() -> None:
    """Weights of three to one hold within four standard deviations of 400 draws."""
    plan = f"choose: [{{weight: 3, fault: {KILL}}}, {{weight: 1, fault: {PAUSE}}}]"
    seen = Counter(timeline_of(plan, seed=seed).steps[0].kind for seed in range(400))
    assert 300 - 35 < seen["kill"] < 300 + 35


@pytest.mark.parametrize(
    ("words", "key", "low", "high"),
    [
        ("delay: {range: [20ms, 200ms]}", "delay", 20, 200),
        ("delay: 5ms, jitter: {range: [0ms, 3ms]}", "jitter", 0, 3),
    ],
)
def test_ranges_are_drawn_within(words: str, key: str, low: int, high: int) -> None:
    """Drawn values lie within their range and differ between seeds; one seed always draws the same values."""
    fault = f"{{for: 4s, {SLOW}, {words}}}"
    drawn = [getattr(timeline_of(fault, seed=seed).steps[0].fault(), key) for seed in range(60)]
    assert all(low <= value <= high for value in drawn)
    assert len(set(drawn)) >= min(high - low + 1, 20)
    assert timeline_of(fault, seed=3).to_json() == timeline_of(fault, seed=3).to_json()


def test_ranges_of_time() -> None:
    """`at`, `for` and `wait` may be ranges, and later elements move with them."""
    plan = f"then: [{{for: {{range: [2s, 6s]}}, kind: kill, broker: 1}}, {{wait: {{range: [1s, 3s]}}}}, {PAUSE}]"
    ends = {begun(timeline_of(plan, seed=seed))[1][1] for seed in range(40)}
    assert 3 <= min(ends) < max(ends) <= 9
    container = f"{{at: {{range: [1s, 9s]}}, together: [{KILL}, {PAUSE}]}}"
    for seed in range(9):
        (_, one), (_, two) = begun(timeline_of(container, seed=seed))
        assert (True, True) == (one == two, 1 <= one <= 9)


def test_rounds_draw_independently() -> None:
    """Each round draws its ranges and choices again."""
    plan = f"{{repeat: 10, every: 5s, fault: {{for: 4s, {SLOW}, delay: {{range: [1ms, 500ms]}}}}}}"
    assert len({step.parameters["delay"] for step in timeline_of(plan).steps}) > 5
    choice = f"{{repeat: 20, every: 10s, fault: {{choose: [{{fault: {KILL}}}, {{fault: {PAUSE}}}]}}}}"
    assert {"kill", "pause"} == {step.kind for step in timeline_of(choice).steps}


durations = st.integers(1, 9).map(lambda s: f"{s}s")
leaf = st.builds(
    lambda lasting, low, more: {"kind": "latency", "for": lasting, "link": "client(a) -> broker(any broker except 1)", "delay": {"range": [f"{low}ms", f"{low + more}ms"]}, "jitter": "1ms"},
    durations, st.integers(1, 50), st.integers(0, 50),
) | st.builds(lambda lasting: {"kind": "latency", "for": lasting, "link": "client(b) -> broker(any broker except 2)", "delay": "9ms", "jitter": "9ms"}, durations)  # fmt: skip
elements = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"together": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts, s: {"then": [*parts, {"wait": s}]}, st.lists(inner, min_size=1, max_size=3), durations),
        st.builds(lambda part, n, s: {"repeat": n, "every": s, "fault": part}, inner, st.integers(1, 3), durations),
        st.builds(lambda one, two: {"choose": [{"fault": one}, {"fault": two, "weight": 2}]}, inner, inner),
    ),
    max_leaves=6,
)


def plan_with(faults: list[dict[str, Any]]) -> Plan:
    document = load(FRAME + "  []\n").data | {"faults": faults}
    return Plan.model_validate(document)


def drawn(faults: list[dict[str, Any]], seed: int) -> list[str]:
    """Return the draws of all steps, without their numbers, as a sorted multiset."""
    steps = compile_plan(plan_with(faults), seed, "p", []).steps
    return sorted(json.dumps([s.kind, s.at_ms, s.for_ms, dict(s.parameters), dict(s.draws)], sort_keys=True) for s in steps)  # fmt: skip


@settings(max_examples=40, deadline=None)  # each compiles two plans
@given(st.lists(elements, max_size=3), elements, st.integers(0, 3), st.integers(0, 9))
def test_adding_an_element_moves_no_other_draws(
    faults: list[dict[str, Any]], new: dict[str, Any], place: int, seed: int
) -> None:
    """An element added anywhere in the list changes no draw of the other elements."""
    before, after = drawn(faults, seed), drawn([*faults[:place], new, *faults[place:]], seed)
    for step in before:
        after.remove(step)  # raises if it isn't there any more


def test_adding_within_a_container_moves_no_other_draws() -> None:
    """A new step before a step with an id in one `then` moves it in time but does not change its draws."""
    ranged = f"{{id: slow, for: 4s, {SLOW}, delay: {{range: [1ms, 500ms]}}, jitter: 1ms}}"
    (alone,) = timeline_of(f"then: [{ranged}]").steps
    _, second = timeline_of(f"then: [{KILL}, {ranged}]").steps
    assert (alone.parameters, alone.draws, 4000) == (second.parameters, second.draws, second.at_ms)


@settings(max_examples=40, deadline=None)  # each compiles two plans
@given(st.lists(elements, max_size=3))
def test_yaml_and_back_is_the_identity(faults: list[dict[str, Any]]) -> None:
    """A composed plan survives a round trip through YAML, and compiles to the same bytes."""
    plan = plan_with(faults)
    again = Plan.model_validate(load(text_of(dump(plan))).data)
    assert plan == again
    assert compile_plan(plan, 3, "p", []).to_json() == compile_plan(again, 3, "p", []).to_json()


def test_built_in_python() -> None:
    """Python objects give the same plan as YAML, and pass the same checks."""
    kill, pause = Kill(for_="4s", broker=1), Pause(for_="4s", broker=2)
    ranged = Ranged(**{"kind": "pause", "for": {"range": ["1s", "3s"]}, "broker": 3})
    choose = Choose(choose=(Choice(fault=Wait(wait="0s")), Choice(weight=2, fault=ranged)))
    built = plan_with([]).model_copy(update={"faults": (Then(then=(Together(together=(kill, pause)), Repeat(repeat=2, fault=choose))),)})  # type: ignore[arg-type]  # fmt: skip
    text = "then: [{together: [%s, %s]}, {repeat: 2, fault: {choose: [{fault: {wait: 0s}}, {weight: 2, fault: {kind: pause, for: {range: [1s, 3s]}, broker: 3}}]}}]"
    check(built)
    assert timeline_of(text % (KILL, PAUSE)).steps == compile_plan(built, 7, "plan.yaml", []).steps
    with pytest.raises(PlanError, match=r"^plan.faults\[0\].then\[0\].broker: the cluster has no node 9"):
        check(plan_with([]).model_copy(update={"faults": (Then(then=(Kill(for_="4s", broker=9),)),)}))


def test_every_problem_at_once() -> None:
    """Unknown keys, kinds and names and invalid values are reported in every alternative and at both ends of ranges."""
    messages = problems(
        "{at: 5, together: [{for: 4s, kind: kil, broker: 1}, {for: 4s, kind: kill, broker: 9}]}",
        "then: [{kind: kill, broker: 1}, {wait: 1}, {wait: 2s}]",
        "{repeat: 0, evry: 5s, fault: {for: 2s, kind: pause, broker: 7}}",
        "{every: 5s, fault: {for: 2s, kind: pause, broker: 1}}",
        "{at: 9s, every: 5s, until: 9s, fault: {for: 2s, kind: pause, broker: 1}}",
        "{repeat: 2, until: 9s, every: 1s, fault: {for: 2s, kind: pause, broker: 1}}",
        "choose: [{weight: 0, fault: {for: 2s, kind: pause, broker: 8}}]",
        f"{{for: 4s, {SLOW}, delay: {{range: [200ms, 20ms]}}}}",
        f"{{for: 4s, {SLOW}, delay: {{range: [20ms, 1]}}, jitter: {{range: [1ms]}}}}",
        f"{{for: 4s, {SLOW}, delay: 50ms, jitter: {{range: [20ms, 90ms]}}}}",
        "{for: 4s, kind: pause, broker: {range: [2, 5]}}",
        "wait: 3s",
        "hello",
        "{at: 3s}",
    )
    assert [
        "plan.yaml:10:10: `at`: 5 is not a duration: give a number with its unit: 50ms, 4s, 1.5s or 2m",
        "plan.yaml:10:40: there is no fault of kind `kil`; did you mean `kill`? All kinds: `aftershock plan faults`",
        "plan.yaml:10:87: the cluster has no node 9: its brokers are 1 to 3",
        "plan.yaml:11:12: a kill needs `for`: give its duration, like `for: 8s`",
        "plan.yaml:11:44: `wait`: 1 is not a duration: give a number with its unit: 50ms, 4s, 1.5s or 2m",
        "plan.yaml:12:14: `repeat` must be at least 1, got `0`",
        "plan.yaml:12:17: unknown key `evry`; did you mean `every`?",
        "plan.yaml:12:65: the cluster has no node 7: its brokers are 1 to 3",
        "plan.yaml:13:5: give the number of rounds by either `repeat: 3` or `every: 5s, until: 40s`",
        "plan.yaml:14:5: `until` counts from the same moment as `at` and must be later, or no round starts",
        "plan.yaml:15:5: give the number of rounds by either `repeat: 3` or `every: 5s, until: 40s`",
        "plan.yaml:16:13: `choose` needs 2 or more entries: add one",
        "plan.yaml:16:23: `weight` must be at least 1, got `0`",
        "plan.yaml:16:64: the cluster has no node 8: its brokers are 1 to 3",
        "plan.yaml:17:66: `delay`: the range starts at 200ms and ends at the lower 20ms: swap the two values",
        "plan.yaml:18:66: `delay`: `range` takes two values of one type, low to high: [20ms, 200ms], [1, 5], [10/s, 50/s] or [1kB, 1MB]",
        "plan.yaml:18:94: `jitter`: `range` takes two values of one type, low to high: [20ms, 200ms], [1, 5], [10/s, 50/s] or [1kB, 1MB]",
        "plan.yaml:19:5: `jitter` of 90ms exceeds the lowest delay of 50ms; lower `jitter`",
        "plan.yaml:20:36: the cluster has no node 5: its brokers are 1 to 3",
        "plan.yaml:21:5: `wait` has an effect only in `then` or in `choose`: remove `wait` here",
        "plan.yaml:22:5: a fault needs a `kind`: `aftershock plan faults` lists the kinds",
        "plan.yaml:23:5: a fault needs a `kind`: `aftershock plan faults` lists the kinds",
    ] == messages


def test_too_many_steps() -> None:
    """More than 500 steps, at any nesting, are refused without expanding them."""
    nested = PAUSE
    for _ in range(8):
        nested = f"{{repeat: 500, every: 20s, fault: {nested}}}"
    assert [
        "plan.yaml:10:5: with this entry the plan exceeds the limit of 500 faults and waits: repeat the entry less often"
    ] == problems(nested)
    assert 500 == len(timeline_of(f"{{repeat: 500, every: 20s, fault: {PAUSE}}}").steps)


def test_a_day_at_most() -> None:
    """Durations that add up to more than a day are refused."""
    (problem,) = problems(f"then: [{{wait: 24h}}, {KILL}]")
    assert problem.startswith("plan.yaml:10:25: the fault ends more than a day after the end of steady")


def test_too_many_ranges() -> None:
    """More than four ranges in one fault, with more than sixteen corners, are refused."""
    ranged = ", ".join(f"k{n}: {{range: [1, 2]}}" for n in range(5))
    (problem,) = problems(f"{{kind: kill, for: 4s, broker: 1, {ranged}}}")
    assert "5 ranges in one fault exceed the limit of 4" in problem


def test_rounds_that_conflict() -> None:
    """Overlapping rounds of one fault conflict; the check reports it once."""
    (problem,) = problems(f"{{repeat: 5, every: 2s, fault: {KILL}}}")
    assert "plan.yaml:10:35: this kill conflicts with `kill-1-1`, which lasts until 4s on node 1" in problem


def test_a_conflict_that_depends_on_draws() -> None:
    """Conflicts that depend on draws are reported by the compiler for the seed, with their position."""
    text = (
        FRAME
        + f"  - choose: [{{fault: {KILL}}}, {{fault: {PAUSE}}}]\n  - {{at: 1s, for: 2s, kind: pause, broker: 1}}\n"
    )
    checked = load_plan(text)
    seen = Counter[str]()
    for seed in range(30):
        try:
            compile_plan(checked.plan, seed, checked.source, checked.slo_positions, checked.source_map)
            seen["peace"] += 1
        except PlanError as error:
            seen[error.problems[0].replace(f"seed {seed} ", "")] += 1
    assert {
        "peace",
        "plan.yaml:11:5: with this pause conflicts with `kill-1`, which lasts until 4s on node 1: let the earlier fault end before the later fault begins",
    } == set(seen)


def test_certain_conflicts_are_reported_by_the_check() -> None:
    """A choice elsewhere in the plan does not hide a conflict between two certain faults."""
    (problem,) = problems(f"{{at: 60s, choose: [{{fault: {KILL}}}, {{fault: {PAUSE}}}]}}", KILL, "{at: 1s, for: 2s, kind: pause, broker: 1}")  # fmt: skip
    assert "plan.yaml:12:5: this pause conflicts with `kill-2`" in problem


def test_slos_name_rounds() -> None:
    """An SLO may name one round or the whole fault; a round that does not exist is unknown."""
    nap = "{repeat: 3, every: 9s, fault: {id: nap, for: 4s, kind: pause, broker: 2}}"
    slo = 'slo: ["produce.gap < 9s in fault/nap-3", "recovery < 9s after nap-9", "produce.gap < 9s in fault/nap"]\n'
    assert ["plan.yaml:11:42: the plan has no fault `nap-9`; did you mean `nap-3`?"] == problems(nap, slo=slo)


def test_slo_of_an_alternative_that_was_not_drawn() -> None:
    """The compiler refuses an SLO about a fault that was not drawn; alternatives may share an id to avoid that."""
    slo = 'slo: ["recovery < 9s after loss"]\n'
    one = FRAME + "  - choose: [{fault: {id: loss, for: 4s, kind: pause, broker: 2}}, {fault: {for: 4s, kind: kill, broker: 1}}]\n" + slo  # fmt: skip
    both = one.replace("{fault: {for:", "{fault: {id: loss, for:")
    outcomes = set()
    for seed in range(20):
        for name, text in (("one", one), ("both", both)):
            checked = load_plan(text)
            try:
                compile_plan(checked.plan, seed, checked.source, checked.slo_positions, checked.source_map)
                outcomes.add((name, "fine"))
            except PlanError as error:
                outcomes.add((name, error.problems[0].replace(f"seed {seed} ", "")))
    said = "plan.yaml:11:7: with the plan has no fault `loss`; known here: kill-1"
    assert {("one", "fine"), ("one", said), ("both", "fine")} == outcomes


def test_changes_reach_inside() -> None:
    """`--set` addresses a nested element by id or index, and may set a range."""
    text = FRAME + f"  - then: [{KILL}, {{repeat: 2, fault: {{id: nap, for: 2s, kind: pause, broker: 2}}}}]\n"
    changes = ("faults.0.then.0.for=6s", "faults.0.then.1.repeat=3", "faults.0.then.1.fault.for={range: [1s, 2s]}")
    checked = load_plan(text, changes)
    timeline = compile_plan(checked.plan, 0, checked.source, ())
    assert (6000, 4) == (timeline.steps[0].for_ms, len(timeline.steps))
    assert checked.plan == load_plan(checked.text).plan


def test_thirty_steps_in_lanes() -> None:
    """Rounds share a lane and a line of description, and no line is wider than a terminal."""
    picture = lanes(timeline_of("{repeat: 30, every: 6s, fault: {id: nap, for: 2s, kind: pause, broker: 2}}"))
    assert max(map(len, picture.splitlines())) <= WIDTH
    assert ["nap-1..30"] == [line.split()[0] for line in picture.splitlines() if line.startswith("nap")]
    assert "  nap-1..30: pause at 0, 6, 12," in picture


def test_the_schema_knows_it() -> None:
    """The JSON Schema contains every composition, and ranges for all values except kind and id."""
    schema = plan_schema()
    assert {"Together", "Then", "Repeat", "Choose", "Wait", "Range"} <= schema["$defs"].keys()
    assert "/Ranged" not in json.dumps(schema)
    latency = schema["$defs"]["Latency"]["properties"]
    ranged = {name for name, field in latency.items() if {"$ref": "#/$defs/Range"} in field.get("anyOf", ())}
    assert latency.keys() - {"kind", "id"} == ranged


def test_by_hand_nothing_is_drawn() -> None:
    """A range on the command line is refused, because nothing is drawn there."""
    with pytest.raises(PlanError, match="inject latency: ranges are only allowed in plans"):
        parse_inject("latency", ["delay={range: [1ms, 2ms]}", "link=client(a) -> broker"], "4s", Cluster(), (), "x")
