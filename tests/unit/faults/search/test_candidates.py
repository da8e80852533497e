"""Candidates of a minimisation: delta debugging with oracles that know the culprits, and fault units of a plan."""

import math
from collections.abc import Generator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aftershock.faults.search.candidates import ddmin, fault_name, fault_units, needs_wire_proxy, with_faults
from aftershock.tests.unit.faults.search.following import ids, plan, slow

ITEMS_MAX = 24


def minimise(count: int, culprits: frozenset[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the minimum of ``count`` items, and every tested subset."""
    tested: list[tuple[int, ...]] = []

    def fails(subset: tuple[int, ...]) -> Generator[None, None, bool]:
        tested.append(subset)
        yield from ()
        return culprits <= set(subset)

    search = ddmin(tuple(range(count)), fails)
    try:
        next(search)
    except StopIteration as end:
        return end.value, tested
    raise AssertionError("fails never yields")


@given(
    st.integers(1, ITEMS_MAX).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1), min_size=1)))
)
def test_the_minimum_is_the_set_of_culprits(drawn: tuple[int, frozenset[int]]) -> None:
    """Any set of culprits that are all needed is found, in order, without other items (1-minimal)."""
    count, culprits = drawn
    left, tested = minimise(count, culprits)
    assert tuple(sorted(culprits)) == left
    assert len(tested) <= count * count + 3 * count  # the paper's bound
    assert len(tested) == len(set(tested))


@given(st.integers(1, 200), st.data())
def test_one_culprit_costs_a_logarithm(count: int, data: st.DataObject) -> None:
    """Each halving takes two runs at most: eight for one culprit of twelve."""
    culprit = data.draw(st.integers(0, count - 1))
    left, tested = minimise(count, frozenset({culprit}))
    assert (culprit,) == left
    assert len(tested) <= 2 * math.ceil(math.log2(count))


@given(st.integers(2, 16), st.integers(0, 2**16 - 1))
def test_the_minimum_is_one_minimal_for_any_oracle(count: int, salt: int) -> None:
    """With any oracle, monotonic or not, the result fails and no single item can be removed."""
    everything = tuple(range(count))

    def bad(subset: tuple[int, ...]) -> bool:
        return subset == everything or (bool(subset) and hash((salt, subset)) % 3 == 0)

    def fails(subset: tuple[int, ...]) -> Generator[None, None, bool]:
        yield from ()
        return bad(subset)

    search = ddmin(everything, fails)
    try:
        next(search)
    except StopIteration as end:
        left = end.value
    assert bad(left)
    assert [] == [item for item in left if len(left) > 1 and bad(tuple(other for other in left if other != item))]


COMPOSED = plan(
    slow("f0", 5),
    {"at": "9s", "then": [{"together": [slow("f1", 0), slow("f2", 1)]}, {"wait": "3s"}, slow("f3", 0)]},
    {"at": "30s", "every": "4s", "until": "50s", "fault": slow("f4", 0)},
    {"choose": [{"fault": slow("f5", 0)}, {"fault": slow("f6", 0)}]},
)
F1 = ("faults", 1, "then", 0, "together", 0)


def test_units_stand_where_faults_do() -> None:
    """Units have the order of the plan; a choice is one unit."""
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


def test_remaining_faults_start_when_the_plan_did() -> None:
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
