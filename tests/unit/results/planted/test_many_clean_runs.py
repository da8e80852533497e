"""Two hundred clean runs with different noise raise no false alarm."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.tests.unit.results.planted.judging import alarms, judged_together
from aftershock.tests.unit.results.planted.noisy import noisy_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.nightly, pytest.mark.spark]

RUNS = 200


@pytest.mark.timeout(1800)
def test_two_hundred_clean_runs_raise_no_alarm(spark: "SparkSession", tmp_path: Path) -> None:
    """No integrity alarm, no FAIL and no INCONCLUSIVE. Zero of 200 means a true rate below 1.5 % (p = 0.05)."""
    homes = [noisy_run(seed).write(tmp_path / str(seed)) for seed in range(RUNS)]
    result = {name: alarms(checks) for name, checks in judged_together(spark, homes).items()}
    assert RUNS == len(result)
    assert {} == {name: told for name, told in result.items() if told}
