"""Every planted defect is caught by its check, and no other check raises an alarm. All are judged in one go."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted.catalogue import Defect
from planted.defects import DEFECTS

from aftershock.errors import EvidenceError
from aftershock.results.check import Check
from aftershock.results.evidence import Evidence, read
from aftershock.results.tables import columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Verdicts = Mapping[str, tuple[Check, ...]]
READABLE = [one for one in DEFECTS.values() if "evidence" not in one.caught]
UNREADABLE = [one for one in DEFECTS.values() if "evidence" in one.caught]


def planted(one: Defect, home: Path) -> Path:
    run = one.base().copy(one.name)
    one.spoil(run)
    return run.write(home / one.name)


@pytest.fixture(scope="module")
def verdicts(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The checks of every planted run, and of the good run of each base, by name."""
    home = tmp_path_factory.mktemp("planted")
    bases = {one.base for one in READABLE}
    homes = [planted(one, home) for one in READABLE]
    homes += [base().copy(base.__name__).write(home / base.__name__) for base in bases]
    return judged_together(spark, [read(each, columns()) for each in homes])


def judged_together(spark: "SparkSession", runs: list[Evidence]) -> Verdicts:
    from aftershock.results.judge import judged  # noqa: PLC0415 - tests without Spark should not load it
    from aftershock.results.measure import measure  # noqa: PLC0415 - as above
    from aftershock.results.objectives import wanted  # noqa: PLC0415 - as above

    names = {str(one.run["run_id"]): one for one in runs}
    facts = measure(spark, runs, {name: wanted(one) for name, one in names.items()})
    return {name: judged(one, facts[name]).checks for name, one in names.items()}


def by_id(checks: tuple[Check, ...]) -> dict[tuple[str, str], str]:
    return {(check.id, check.subject): check.status.value for check in checks}


@pytest.mark.parametrize("one", READABLE, ids=lambda one: one.name)
def test_a_planted_defect_is_caught_by_its_check_alone(verdicts: Verdicts, one: Defect) -> None:
    """A check whose status is not what it is in the good run must be one that the catalogue names, with that status."""
    good, found = by_id(verdicts[one.base.__name__]), by_id(verdicts[one.name])
    changed = {key: status for key, status in found.items() if status != good.get(key, "PASS")}
    assert dict(one.caught) == {name: status for (name, _), status in changed.items()}
    assert not one.says or any(one.says in check.why for check in verdicts[one.name])
    told = [check for check in verdicts[one.name] if check.status.value != "PASS"]
    assert all(check.next for check in told), [check.id for check in told if not check.next]


def test_good_runs_raise_no_alarm(verdicts: Verdicts) -> None:
    """What the defects are planted in has none."""
    alarms = {
        (base.__name__, check.id, check.subject, check.why)
        for base in {one.base for one in READABLE}
        for check in verdicts[base.__name__]
        if check.status.value != "PASS"
    }
    assert set() == alarms


@pytest.mark.parametrize("one", UNREADABLE, ids=lambda one: one.name)
def test_evidence_that_cannot_be_read_is_an_error_that_names_it(one: Defect, tmp_path: Path) -> None:
    """Before Spark has a look at it, and with the reason."""
    with pytest.raises(EvidenceError, match=one.says):
        read(planted(one, tmp_path), columns())


def test_the_catalogue_is_large() -> None:
    """The proof is of thirty kinds at least."""
    assert len(DEFECTS) >= 30
    assert all(one.what for one in DEFECTS.values())
