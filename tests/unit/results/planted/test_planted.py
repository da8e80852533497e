"""Every planted defect is reported by its check, and no other check changes. All runs are judged together."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.checks.findings.deliveries import deliveries
from aftershock.results.checks.findings.sequences import in_doubt
from aftershock.results.evidence.evidence import read
from aftershock.results.model.check import Check
from aftershock.results.spark.tables import columns, tables
from aftershock.results.tables.dims import dims
from aftershock.tests.unit.results.planted.catalogue import Defect
from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.judging import Verdicts, alarms, judged_together, planted
from aftershock.tests.unit.results.planted.noisy import noisy_run
from aftershock.tests.unit.results.planted.world import good_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


READABLE = [defect for defect in DEFECTS.values() if "evidence" not in defect.caught]
UNREADABLE = [defect for defect in DEFECTS.values() if "evidence" in defect.caught]
BASES = sorted({one.base for one in READABLE}, key=lambda base: base.__name__)
IN_SEQUENCE = {f"integrity/{rule}": "FAIL" for rule in ("order", "backward", "beyond", "corrupt")}
SEQUENCES = [one for one in READABLE if IN_SEQUENCE.items() & one.caught.items()]
NOISY, NOISY_AT_NIGHT = 5, 20


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Verdicts:
    """Judge the planted runs of the selected tests, the clean run of each base, and some noisy runs, by name."""
    home = tmp_path_factory.mktemp("planted")
    selected = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["one"].name for item in selected if "one" in getattr(item, "fixturenames", ())}
    if any(item.name.startswith("test_exhaustive") for item in selected):
        names |= {one.name for one in SEQUENCES}
    homes = [planted(one, home) for one in READABLE if one.name in names]
    homes += [base().copy(base.__name__).write(home / base.__name__) for base in BASES]
    homes += [noisy_run(seed).write(home / f"noisy-{seed}") for seed in range(NOISY)]
    return judged_together(spark, homes)


@pytest.fixture(scope="module")
def noisy_verdicts(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Judge the noisy runs of the nightly tests."""
    home = tmp_path_factory.mktemp("noisy")
    seeds = range(NOISY, NOISY_AT_NIGHT)
    return judged_together(spark, [noisy_run(seed).write(home / f"noisy-{seed}") for seed in seeds])


def by_id(checks: tuple[Check, ...]) -> dict[tuple[str, str], str]:
    return {(check.id, check.subject): check.status.value for check in checks}


@pytest.mark.parametrize("one", READABLE, ids=lambda one: one.name)
def test_a_planted_defect_is_caught_by_its_check_alone(verdicts: Verdicts, one: Defect) -> None:
    """A check whose status differs from the clean run must be in the catalogue with that status."""
    good, result = by_id(verdicts[one.base.__name__]), by_id(verdicts[one.name])
    changed = {key: status for key, status in result.items() if status != good.get(key, "PASS")}
    assert dict(one.caught) == {name: status for (name, _), status in changed.items()}
    assert not one.says or any(one.says in check.why for check in verdicts[one.name])
    assert [] == [check.id for check in verdicts[one.name] if check.status.value != "PASS" and not check.next]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_clean_bases_raise_no_alarm(verdicts: Verdicts, base: object) -> None:
    """Otherwise an existing alarm could hide a defect."""
    assert set() == alarms(verdicts[getattr(base, "__name__", "")])


@pytest.mark.parametrize("seed", range(NOISY))
def test_a_clean_run_with_noise_raises_no_alarm(verdicts: Verdicts, seed: int) -> None:
    """Slow tails, failures within the SLOs, moved leaders and redeliveries after a rebalance are permitted."""
    assert set() == alarms(verdicts[f"noisy-{seed}"])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(NOISY, NOISY_AT_NIGHT))
def test_more_clean_runs_with_noise_raise_no_alarm(noisy_verdicts: Verdicts, seed: int) -> None:
    assert set() == alarms(noisy_verdicts[f"noisy-{seed}"])


def test_exhaustive_judging_gives_the_same_checks(spark: "SparkSession", verdicts: Verdicts, tmp_path: Path) -> None:
    """By default only blocks that the gate doubts are compared row by row; exhaustive judging compares all."""
    homes = [planted(sequence, tmp_path) for sequence in SEQUENCES]
    for spoiled, some in ((False, [good_run().write(tmp_path / "good")]), (True, homes)):
        evidence = [read(home, columns()) for home in some]
        rows, known = tables(spark, evidence), dims(spark, evidence)
        doubted = in_doubt(rows, known, deliveries(rows, known)).collect()
        assert any(row["doubted"] for row in doubted) == spoiled
    result = judged_together(spark, homes, exhaustive=True)
    for one in SEQUENCES:
        gated, looked = ([check for check in told[one.name] if check.id in IN_SEQUENCE] for told in (verdicts, result))
        assert gated == looked


@pytest.mark.parametrize("one", UNREADABLE, ids=lambda one: one.name)
def test_evidence_that_cannot_be_read_is_an_error_that_names_it(one: Defect, tmp_path: Path) -> None:
    """The error comes before any Spark job and has the reason."""
    with pytest.raises(EvidenceError, match=one.says):
        read(planted(one, tmp_path), columns())


def test_the_catalogue_has_thirty_described_defects() -> None:
    assert len(DEFECTS) >= 30
    assert all(defect.what for defect in DEFECTS.values())
