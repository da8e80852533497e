"""The timeline as text lanes."""

from hypothesis import given
from hypothesis import strategies as st

from aftershock.faults.timeline.lanes import WIDTH, lanes
from aftershock.tests.unit.faults.conftest import timeline_of

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


PICTURE = """\
test, seed 7: 41 s of load after warm-up

                  -10            0              10             20             30
phase             steady .......|faults ........................|recovery .....|
slow                             =========-
dead                                     ============------------
                  seconds from the end of steady; = in force, - time to heal

  slow: latency at 0 s for 6 s
    link: client(a) -> broker, delay: 50ms, jitter: 0s, every: 500ms
  dead: kill at 5 s for 8 s; broker: 1, host: gone"""


def test_picture() -> None:
    """Phases are on top, each fault has a lane, and the axis is in seconds."""
    timeline = timeline_of(
        '{id: slow, at: 0s, for: 6s, kind: latency, link: "client(a) -> broker", delay: 50ms}',
        "{id: dead, at: 5s, for: 8s, kind: kill, broker: 1}",
    )
    assert lanes(timeline) == PICTURE


@given(st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(1, 4_000_000)), max_size=4))
def test_never_wider_than_a_terminal(steps: list[tuple[int, int]]) -> None:
    """No line is longer than 80 columns, for any plan and any names."""
    faults = [
        f'{{id: a-very-long-name-for-a-fault-{n}, at: {at}ms, for: {lasting}ms, kind: latency, delay: 5ms, link: "client(a) -> broker"}}'
        for n, (at, lasting) in enumerate(steps)
    ]
    assert max(map(len, lanes(timeline_of(*faults)).splitlines())) <= WIDTH
