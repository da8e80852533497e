"""One lost record among ten million is found with its id and raises no other alarm."""

from pathlib import Path

import pytest

from aftershock.tests.unit.results.measuring import apart
from aftershock.tests.unit.results.planted.judging import judged_alone
from aftershock.tests.unit.results.planted.world import good_run
from aftershock.tests.unit.results.planted.worlds import many

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

RECORDS = 10_000_000
LOST = 7_654_321


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Write a run of 10 million records, sent, logged and, except one, delivered."""
    run = many(good_run().copy("large"), RECORDS)
    run.slos("lost == 0")
    rows = run.frames["consume"]
    run.frames["consume"] = rows[rows["seq"] != LOST]
    return run.write(tmp_path / "large")


@pytest.mark.timeout(3600)
def test_one_lost_record_in_ten_million_is_found(large: Path) -> None:
    """The reader's loss check and the plan's `lost == 0` fail; the checks of order, offsets and epochs pass."""
    checks = apart(judged_alone, large)
    result = {(check.id, check.subject): check.samples for check in checks if check.status.value != "PASS"}
    assert {("slo/lost", "all arms"), ("integrity/lost", "arm=baseline consume")} == result.keys()
    assert {((0, LOST),)} == {*result.values()}
