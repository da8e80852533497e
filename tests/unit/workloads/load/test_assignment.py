from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from aftershock.workloads.load.assignment import parse_assignment

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench


def test_an_assignment_survives_the_way_to_its_worker(bench: Bench) -> None:
    """What the worker reads is what the runner wrote, the kind of setting values included."""
    told = bench.produce(settings={"linger.ms": 0.5, "retries": 3, "enable.idempotence": False, "acks": "1"}, keys=3)
    for assignment in (told, bench.consume(group="g", from_="latest", client_rack="b")):
        assert parse_assignment(assignment.model_dump_json()) == assignment


@pytest.mark.parametrize(
    "changes",
    [
        {"rate_per_s": 0},
        {"record_size_min": 91},
        {"producer_id": -1},
        {"keys": 0},
        {"worker": "../elsewhere"},
        {"worker": ".hidden"},
        {"partition": 3},
        {"acks": "2"},
    ],
)
def test_nonsense_is_refused(bench: Bench, changes: dict[str, Any]) -> None:
    """A half-specified or impossible client never starts, and no worker's name leads out of its directory."""
    with pytest.raises(ValidationError):
        bench.produce(**changes)


@pytest.mark.parametrize("changes", [{"in_flight": 4}, {"rate_per_s": None}, {"rate_per_s": None, "in_flight": 0}])
def test_a_committer_has_one_load(bench: Bench, changes: dict[str, Any]) -> None:
    """A rate or so many in flight: both, or neither, is no load."""
    with pytest.raises(ValidationError):
        bench.commit(**changes)
