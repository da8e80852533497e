"""Fault units of a plan, and the plan with some of them only."""

from typing import Any

from aftershock.faults.search.candidates import fault_name, fault_units, needs_wire_proxy, with_faults
from aftershock.tests.unit.faults.search.following import ids, plan, slow

COMPOSED = plan(
    slow("f0", 5),
    {"at": "9s", "then": [{"together": [slow("f1", 0), slow("f2", 1)]}, {"wait": "3s"}, slow("f3", 0)]},
    {"at": "30s", "every": "4s", "until": "50s", "fault": slow("f4", 0)},
    {"choose": [{"fault": slow("f5", 0)}, {"fault": slow("f6", 0)}]},
)
F1 = ("faults", 1, "then", 0, "together", 0)


def test_units_stand_where_faults_do() -> None:
    """Units are in the order of the plan; a choice is one unit."""
    last = ("faults", 3)
    assert [("faults", 0), F1, (*F1[:5], 1), ("faults", 1, "then", 2), ("faults", 2, "fault"), last] == [
        *fault_units(COMPOSED)
    ]
    assert ["f0", "f1", "choose (entry 4)"] == [fault_name(COMPOSED, loc) for loc in (("faults", 0), F1, last)]


def test_a_container_goes_with_its_last_fault() -> None:
    """The remaining faults start when the plan's first fault did; waits inside are kept."""
    left = with_faults(COMPOSED, [("faults", 1, "then", 2)])
    assert [{"at": "0s", "then": [{"wait": "3s"}, slow("f3", 0)]}] == left["faults"]
    assert [] == with_faults(COMPOSED, [])["faults"]


def test_what_is_left_begins_when_the_plan_did() -> None:
    """`until` counts from the same moment and moves too; the rest of the document is unchanged."""
    document = plan(slow("f0", 5), {"at": "30s", "every": "4s", "until": "50s", "fault": slow("f4", 0)}, slow("f1", 40))
    left = with_faults(document, [("faults", 1, "fault"), ("faults", 2)])
    assert [("5s", "25s"), ("15s", None)] == [(each["at"], each.get("until")) for each in left["faults"]]
    assert {**document, "faults": left["faults"]} == left
    assert {"f0", "f1", "f4"} == ids(document)


def test_a_drawn_beginning_stays() -> None:
    """A drawn start is unknown yet, so no entry is moved."""
    drawn: dict[str, Any] = {**slow("f1", 0), "at": {"range": ["20s", "30s"]}}
    assert [drawn] == with_faults(plan(slow("f0", 5), drawn), [("faults", 1)])["faults"]


def test_which_plans_need_the_wire_proxy() -> None:
    """A plan needs the wire proxy if it has a protocol fault at any depth."""
    drop = {"for": "2s", "kind": "drop_response", "api": "Produce"}
    assert needs_wire_proxy(plan({"choose": [{"fault": drop}, {"fault": slow("f0", 0)}]}))
    assert not needs_wire_proxy(COMPOSED)
