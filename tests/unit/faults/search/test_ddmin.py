"""Delta debugging with oracles that know the culprits."""

import math
from collections.abc import Generator

from hypothesis import given
from hypothesis import strategies as st

from aftershock.faults.search.candidates import ddmin

ITEMS_MAX = 24


def found(count: int, culprits: frozenset[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the minimum of ``count`` items, and every tested subset."""
    asked: list[tuple[int, ...]] = []

    def fails(subset: tuple[int, ...]) -> Generator[None, None, bool]:
        asked.append(subset)
        yield from ()
        return culprits <= set(subset)

    search = ddmin(tuple(range(count)), fails)
    try:
        next(search)
    except StopIteration as end:
        return end.value, asked
    raise AssertionError("fails never yields")


@given(
    st.integers(1, ITEMS_MAX).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1), min_size=1)))
)
def test_what_is_left_are_the_culprits(drawn: tuple[int, frozenset[int]]) -> None:
    """Any set of culprits that are all needed is found, in order, without other items (1-minimal)."""
    count, culprits = drawn
    left, asked = found(count, culprits)
    assert tuple(sorted(culprits)) == left
    assert len(asked) <= count * count + 3 * count  # the paper's bound
    assert len(asked) == len(set(asked))


@given(st.integers(1, 200), st.data())
def test_one_culprit_costs_a_logarithm(count: int, data: st.DataObject) -> None:
    """Each halving takes two runs at most: eight for one culprit of twelve."""
    culprit = data.draw(st.integers(0, count - 1))
    left, asked = found(count, frozenset({culprit}))
    assert (culprit,) == left
    assert len(asked) <= 2 * math.ceil(math.log2(count))


@given(st.integers(2, 16), st.integers(0, 2**16 - 1))
def test_any_oracle_is_left_one_minimal(count: int, salt: int) -> None:
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
