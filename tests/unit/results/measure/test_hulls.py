"""Coarse filters on record times: they keep every requested record and have few intervals."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.tables.gate import HULLS_MAX, Span, hulls

AT = st.integers(-50, 50)
SPAN = st.tuples(st.none() | AT, st.none() | AT)


@given(st.lists(SPAN, min_size=1, max_size=12))
def test_hulls_contain_every_span(spans: list[Span]) -> None:
    """This holds for any number of spans with any bounds."""
    result = hulls(spans)
    assert len(result) <= HULLS_MAX
    for moment in range(-60, 60):
        wanted = any((since is None or since <= moment) and (until is None or moment < until) for since, until in spans)
        assert any(start <= moment < end for start, end in result) or not wanted


@given(st.lists(st.tuples(AT, AT), max_size=HULLS_MAX))
def test_few_spans_are_their_own_hulls(spans: list[Span]) -> None:
    """Hulls of few spans are the spans themselves, sorted and disjoint."""
    result = hulls(spans)
    assert all(end < start for (_, end), (start, _) in pairwise(result))
    for start, end in result:
        assert all(any(since <= moment < until for since, until in spans) for moment in range(start, end))


def test_the_nearest_spans_are_joined() -> None:
    """Joining the nearest spans adds the least extra time."""
    assert hulls((at, at + 1) for at in (0, 10, 20, 23, 40)) == [(0, 1), (10, 11), (20, 24), (40, 41)]
