"""Timelines read back from JSON."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.timeline.timeline import from_json
from aftershock.tests.unit.faults.conftest import timeline_of


def test_round_trip() -> None:
    """A written timeline reads back as the same bytes."""
    data = timeline_of(
        '{at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 9ms, jitter: 3ms}'
    ).to_json()
    assert from_json(data).to_json() == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a valid timeline"),
        (b"{}", "not a valid timeline"),
        (b'{"schema_version": 99}', "version 99 is unknown"),
        (b"[]", "not a valid timeline"),
    ],
)
def test_invalid_timeline(data: bytes, why: str) -> None:
    """Truncated, foreign or future files give a sentence."""
    with pytest.raises(PlanError, match=why):
        from_json(data)
