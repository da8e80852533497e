"""Judge planted runs together, with one set of Spark queries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.model.check import Check
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.planted.catalogue import Defect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Verdicts = Mapping[str, tuple[Check, ...]]


def planted(one: Defect, home: Path) -> Path:
    """Write the run of a defect below ``home`` and return its directory."""
    run = one.base().copy(one.name)
    one.spoil(run)
    return run.write(home / one.name)


def judged_together(spark: "SparkSession", homes: Sequence[Path], *, exhaustive: bool = False) -> Verdicts:
    """Return the checks of every run by run id."""
    from aftershock.results.checks.slo.checks import wanted  # noqa: PLC0415 - as above
    from aftershock.results.judge import evaluate, measured_again  # noqa: PLC0415 - tests without Spark should not load it
    from aftershock.results.measure.measure import measure  # noqa: PLC0415 - as above

    runs: dict[str, Evidence] = {str(one.run["run_id"]): one for one in (read(home, columns()) for home in homes)}
    asked = {name: wanted(one) for name, one in runs.items()}
    facts = measure(spark, [*runs.values()], asked, exhaustive=exhaustive)
    again = measured_again(spark, runs, asked, facts)
    return {name: evaluate(one, facts[name], again.get(name)).checks for name, one in runs.items()}


def judged_alone(spark: "SparkSession", home: Path) -> tuple[Check, ...]:
    """Return the checks of one run."""
    (checks,) = judged_together(spark, [home]).values()
    return checks


def alarms(checks: Sequence[Check]) -> set[tuple[str, str, str, str]]:
    """Return the checks that do not pass as id, subject, status and why."""
    return {
        (check.id, check.subject, check.status.value, check.why) for check in checks if check.status.value != "PASS"
    }
