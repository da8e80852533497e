"""The compiler is pure: equal inputs give equal bytes; each step has its own random stream."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import Plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import from_json
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


durations = st.integers(1, 60_000).map(lambda ms: f"{ms}ms")
latencies = st.builds(
    lambda at, lasting, delay, jitter: {
        "kind": "latency", "at": at, "for": lasting, "link": "client(a) -> broker(any broker except 1)",
        "delay": f"{delay}ms", "jitter": f"{min(jitter, delay)}ms",
    },
    durations, durations, st.integers(1, 500), st.integers(0, 500),
)  # fmt: skip
kills = st.builds(
    lambda at, lasting: {"kind": "kill", "at": at, "for": lasting, "broker": "any broker except controller"},
    durations,
    durations,
)
moves = st.builds(
    lambda at, turns: {"kind": "reassign", "at": at, "topic": "orders", "rotate": turns}, durations, st.integers(1, 2)
)
faults = st.lists(latencies | kills | moves, max_size=5)


def plan_with(steps: list[dict[str, Any]]) -> Plan:
    return Plan.model_validate(
        {
            "name": "p",
            "topics": [{"name": "orders", "partitions": 3, "replication": 3}],
            "workloads": [{"name": "w", "produce": {"topic": "orders", "rate": "10/s"}}],
            "faults": steps,
        }
    )


def draws(steps: list[dict[str, Any]], seed: int) -> list[str]:
    """Return the draws and parameters of each step as a canonical, sorted multiset."""
    timeline = compile_plan(plan_with(steps), seed, "p.yaml", [])
    return sorted(
        json.dumps([s.kind, s.at_ms, s.for_ms, dict(s.parameters), dict(s.draws)], sort_keys=True)
        for s in timeline.steps
    )


@settings(deadline=None)
@given(faults, st.integers(0, 2**63))
def test_same_input_same_bytes(steps: list[dict[str, Any]], seed: int) -> None:
    """Compiling twice gives the same bytes, also after a round trip through JSON."""
    first = compile_plan(plan_with(steps), seed, "p.yaml", []).to_json()
    second = compile_plan(plan_with(steps), seed, "p.yaml", []).to_json()
    assert first == second
    assert from_json(first).to_json() == first


@settings(deadline=None)
@given(faults, latencies | kills, st.integers(0, 5), st.integers(0, 9))
def test_adding_a_step_moves_no_other_draws(
    steps: list[dict[str, Any]], new: dict[str, Any], place: int, seed: int
) -> None:
    """A step added anywhere changes no draw of the other steps."""
    added = [*steps[:place], new, *steps[place:]]
    before, after = draws(steps, seed), draws(added, seed)
    for one in before:
        after.remove(one)  # raises ValueError if the step is missing
    assert len(after) == 1


def test_explicit_id_names_the_stream() -> None:
    """A step with an explicit id keeps its draws even if its parameters change."""
    base = {"kind": "latency", "id": "slow", "at": "0s", "for": "2s", "link": "client(a) -> broker", "jitter": "5ms"}
    first = compile_plan(plan_with([{**base, "delay": "50ms"}]), 7, "p", []).steps[0]
    longer = compile_plan(plan_with([{**base, "delay": "50ms", "for": "4s"}]), 7, "p", []).steps[0]
    assert longer.draws["delay_ms"][:4] == first.draws["delay_ms"]


def test_seed_matters() -> None:
    """Different seeds give different draws, and identical steps have separate draws."""
    step = {
        "kind": "latency",
        "at": "0s",
        "for": "9s",
        "link": "client(a) -> broker",
        "delay": "90ms",
        "jitter": "90ms",
    }
    one = compile_plan(plan_with([step, step]), 1, "p", [])
    two = compile_plan(plan_with([step, step]), 2, "p", [])
    drawn = [tuple(s.draws["delay_ms"]) for s in (*one.steps, *two.steps)]
    assert len(set(drawn)) == 4


@settings(deadline=None)
@given(latencies)
def test_jitter_is_within_bounds(step: dict[str, Any]) -> None:
    """There is one delay for every started half second, each within delay ± jitter."""
    (compiled,) = compile_plan(plan_with([step]), 3, "p", []).steps
    fault = plan_with([step]).faults[0]
    drawn = compiled.draws.get("delay_ms", [])
    delay, jitter = fault.delay, fault.jitter  # type: ignore[union-attr]
    assert all(delay - jitter <= ms <= delay + jitter for ms in drawn)
    assert len(drawn) == (-(-(fault.for_ or 0) // 500) if jitter else 0)


@settings(deadline=None)
@given(faults)
def test_step_is_its_fault_again(steps: list[dict[str, Any]]) -> None:
    """A step read from a timeline equals the plan's fault with its final id."""
    plan = plan_with(steps)
    timeline = compile_plan(plan, 0, "p", [])
    planned = {fault.model_copy(update={"id": None}).model_dump_json() for fault in plan.faults}
    for step in timeline.steps:
        assert step.fault().id == step.id
        assert step.fault().model_copy(update={"id": None}).model_dump_json() in planned


def test_ids_count_the_steps_of_a_kind() -> None:
    """`<kind>-<n>` is the n-th fault of its kind in the plan, including faults with an explicit id."""
    kill = {"kind": "kill", "at": "0s", "for": "1s", "broker": 1}
    move = {"kind": "reassign", "at": "0s", "topic": "orders", "rotate": 1}
    plan = plan_with([kill, move, {**kill, "id": "mine", "broker": 2}, {**kill, "broker": 3}])
    assert ["kill-1", "reassign-1", "mine", "kill-3"] == [step.id for step in compile_plan(plan, 0, "p", []).steps]


def test_report_only_slos_keep_their_gate() -> None:
    """An SLO with `gate: report` keeps its gate in the timeline; without a gate it is part of the verdict."""
    slos = "slo:\n  - lost == 0\n  - {slo: order == 0, gate: report, advice: wait}\n  - {slo: duplicate == 0}\n"
    checked = load_plan(FRAME + "  []\n" + slos)
    timeline = compile_plan(checked.plan, 7, checked.source, checked.slo_positions)
    rows = json.loads(timeline.to_json())["slo"]
    assert ["", "wait", ""] == [row["advice"] for row in rows]
    assert [("lost == 0", "verdict"), ("order == 0", "report"), ("duplicate == 0", "verdict")] == [
        (row["text"], row["gate"]) for row in rows
    ]
    assert ["plan.yaml:12:5", "plan.yaml:13:5", "plan.yaml:14:5"] == [row["at"] for row in rows]
    assert timeline == from_json(timeline.to_json())
    older = timeline.to_json().replace(b'"gate": "verdict",', b"")
    assert from_json(older).slo[0].gate == "verdict"


def test_the_contract() -> None:
    """The document has the keys, units and defaults that results read."""
    timeline = timeline_of(
        "{at: 2s, for: 8s, kind: kill, broker: 2}", "{at: 1s, kind: reassign, topic: orders, rotate: 1}"
    )
    document = json.loads(timeline.to_json())
    assert document == {
        "schema_version": 1,
        "name": "test",
        "why": "",
        "plan_source": "plan.yaml",
        "seed": 7,
        "cluster": {
            "kafka": "default", "racks": {"a": 1, "b": 1, "c": 1}, "profile": "fast", "controllers": 0, "config": {},
            "wire_proxy": False,
        },
        "topics": [{"name": "orders", "partitions": 6, "replication": 3, "config": {"min.insync.replicas": "2"}}],
        "workloads": [
            {
                "name": "orders",
                "produce": {
                    "topic": "orders", "rate_per_s": 60.0, "record_size_min": 1000, "record_size_max": 1000, "keys": None,
                    "acks": "all", "idempotence": True, "rack": "a", "linger_ms": 5, "deadline_ms": 30_000,
                },
                "consume": {"topic": "orders", "group": "readers", "from": "earliest", "rack": "a"},
                "arms": {"baseline": {"client": "confluent", "settings": {}, "client_rack": None}},
            }
        ],
        "timing": {
            "warmup_min_ms": 5000, "warmup_max_ms": 60_000, "steady_ms": 10_000, "fault_ms": 5000, "recovery_ms": 10_000,
        },
        "steps": [
            {
                "id": "reassign-1", "kind": "reassign", "at_ms": 1000, "for_ms": None,
                "parameters": {"topic": "orders", "rotate": 1}, "draws": {},
                "met_by": "topics", "severs": False, "takes": "leaders", "told": True,
                "silence": None, "delay_ms": 0, "entry": "reassign-1", "block": 0,
            },
            {
                "id": "kill-1", "kind": "kill", "at_ms": 2000, "for_ms": 8000,
                "parameters": {"broker": "2", "host": "gone"}, "draws": {},
                "met_by": "brokers", "severs": True, "takes": "nodes", "told": True,
                "silence": None, "delay_ms": 0, "entry": "kill-1", "block": 0,
            },
        ],
        "length_ms": 28_000,
        "slo": [],
        "abort": [],
        "blocks_ms": [],
    }  # fmt: skip
    assert timeline.to_json().endswith(b"}\n")
