"""One Spark session and one good run, shared by all tests of the results."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.model.facts import Facts
from aftershock.results.spark.conf import ROWS_MAX, Load
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, clean_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from aftershock.results.spark.session import session  # noqa: PLC0415 - tests without Spark should not load it

    load = Load(rows=ROWS_MAX + 1)  # tests judge many runs at once
    with session(tmp_path_factory.mktemp("spark") / "spark.log", load=load) as started:
        yield started


@pytest.fixture(scope="session")
def made() -> Made:
    return clean_run(columns())


@pytest.fixture(scope="session")
def evidence(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return read(made.write(tmp_path_factory.mktemp("clean") / "run"), columns())


@pytest.fixture(scope="session")
def facts(spark: "SparkSession", evidence: Evidence) -> Facts:
    return measured(spark, evidence)


def measured(spark: "SparkSession", evidence: Evidence) -> Facts:
    """The measurements that SLOs and report need of one run."""
    from aftershock.results.checks.slo.checks import wanted  # noqa: PLC0415 - as above
    from aftershock.results.measure.measure import measure  # noqa: PLC0415 - as above

    run_id = str(evidence.run["run_id"])
    return measure(spark, [evidence], {run_id: wanted(evidence)})[run_id]
