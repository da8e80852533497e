"""Broken evidence gives ERROR or INCONCLUSIVE with file and reason, never PASS.

All runs are judged together, so the clean run among them shows that no broken run affects another.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.unit.results.evidence_factory import Made, S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aftershock.results.judge import Judge


pytestmark = pytest.mark.spark

PART = "outcomes/produce-0.parquet"


def cut(home: Path) -> None:
    (home / PART).write_bytes((home / PART).read_bytes()[:-100])


def without_column(home: Path) -> None:
    pq.write_table(pq.read_table(home / PART).drop_columns(["done_us"]), home / PART)


def retyped(home: Path) -> None:
    table = pq.read_table(home / PART)
    at = table.column_names.index("seq")
    pq.write_table(table.set_column(at, "seq", table["seq"].cast("string")), home / PART)


def phases_backwards(home: Path) -> None:
    phases = json.loads((home / "phases.json").read_text())
    phases[1]["start_us"], phases[1]["end_us"] = phases[1]["end_us"], phases[1]["start_us"]
    (home / "phases.json").write_text(json.dumps(phases))


def unreadable_by_spark_only(home: Path) -> None:
    """Spoil the pages of a Parquet file and keep its footer."""
    spoiled = bytearray((home / PART).read_bytes())
    spoiled[4:2000] = bytes(1996)
    (home / PART).write_bytes(spoiled)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, f"{PART}: truncated or not Parquet"),
    "column": (without_column, f"{PART}: column 'done_us' is missing"),
    "kind": (retyped, f"{PART}: column 'seq' is string, not bigint"),
    "backwards": (phases_backwards, "phases.json: steady ends before it begins"),
}


def named(made: Made, run_id: str) -> Made:
    other = made.copy()
    other.run["run_id"] = run_id
    return other


def empty(made: Made) -> Made:
    """Write every file without rows."""
    made.produce, made.consume, made.log, made.metrics = [], [], [], []
    return made


def without_records_in_a_phase(made: Made) -> Made:
    """Remove the records produced during the second fault."""
    made.produce = [row for row in made.produce if not 26 * S <= row["intended_us"] < 34 * S]
    kept = {(row["producer_id"], row["seq"]) for row in made.produce}
    made.consume = [row for row in made.consume if (row["producer_id"], row["seq"]) in kept]
    made.log = [row for row in made.log if (row["producer_id"], row["seq"]) in kept]
    return made


def with_a_clock_that_went_back(made: Made) -> Made:
    """Return a run with a record that is acknowledged before it was sent."""
    row = made.produce[700]
    row["done_us"] = row["sent_us"] - 50
    return made


def killed(home: Path) -> None:
    """Remove manifest, phases and log, cut the last line of the events in half, and set the status to running."""
    run = json.loads((home / "run.json").read_text()) | {"status": "running"}
    (home / "run.json").write_text(json.dumps(run))
    for name in ("manifest.json", "phases.json", "log/part-0.parquet"):
        (home / name).unlink()
    with (home / "events.jsonl").open("a") as events:
        events.write('{"t_us": 5, "ar')


@pytest.fixture
def judge(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Judge":
    """Return a judge that uses the session of the tests."""
    from aftershock.results.judge import Judge  # noqa: PLC0415 - tests without Spark should not load it

    one = Judge(tmp_path / "spark.log", None, lambda _: None)
    monkeypatch.setattr(one, "_session", lambda _: spark)
    return one


def test_bad_evidence_is_never_pass(judge: "Judge", made: Made, tmp_path: Path) -> None:
    """Each broken run is refused or INCONCLUSIVE for its own reason, and the clean run passes."""
    homes = {name: named(made, name).write(tmp_path / name) for name in ("good", *REFUSED, "killed", "torn")}
    for name, (spoil, _) in REFUSED.items():
        spoil(homes[name])
    killed(homes["killed"])
    unreadable_by_spark_only(homes["torn"])
    for name, spoiled in (
        ("empty", empty),
        ("gap", without_records_in_a_phase),
        ("clock", with_a_clock_that_went_back),
        ("twin", lambda one: one),
    ):
        homes[name] = spoiled(named(made, name)).write(tmp_path / name)
    homes["twin-2"] = Path(shutil.copytree(homes["twin"], tmp_path / "twin-2"))
    torn = homes.pop("torn")
    told = judge.many(homes.values())
    by_name = {name: told[home] for name, home in homes.items()}

    for name, (_, says) in REFUSED.items():
        refused(by_name[name], f"{homes[name]}/{says}")
    for name in ("twin", "twin-2"):
        refused(by_name[name], str(homes["twin"]), str(homes["twin-2"]), "run 'twin'")
    refused(judge.many([torn])[torn], str(torn), "Spark could not read the evidence", "spark.log")

    assert verdict(by_name["good"]).status is Status.PASS
    assert {check.status for check in of_records(by_name["empty"])} == {Status.INCONCLUSIVE}
    assert verdict(by_name["killed"]).status is Status.INCONCLUSIVE
    assert check_of(by_name["killed"], "harness/complete").why.startswith("the run is running")
    assert check_of(by_name["gap"], "slo/produce.gap-fault").status is not Status.PASS
    clock = check_of(by_name["clock"], "harness/clock")
    assert (clock.status, clock.observed) == (Status.INCONCLUSIVE, 1.0)
    assert "PASS" not in {verdict(by_name[name]).status for name in ("empty", "killed", "gap", "clock")}


def refused(judgement: object, *says: str) -> None:
    """Return whether the judgement is an error of one line with all these parts."""
    assert isinstance(judgement, EvidenceError)
    assert [part for part in says if part not in str(judgement)] == []
    assert "\n" not in str(judgement)


def verdict(judgement: object) -> Verdict:
    assert isinstance(judgement, Verdict), judgement
    return judgement


def of_records(judgement: object) -> list[Check]:
    return [check for check in verdict(judgement).checks if check.kind in ("slo", "compare", "exposure")]


def check_of(judgement: object, id_: str) -> Check:
    return next(check for check in verdict(judgement).checks if check.id == id_)


def test_a_failure_on_changed_evidence_is_no_bug(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of a foreign run may have any shape; the other runs are judged. Untouched evidence is not blamed."""
    from aftershock.results import judge as module  # noqa: PLC0415 - tests without Spark should not load it

    homes = {name: named(made, name).write(tmp_path / name) for name in ("good", "changed")}
    for home in homes.values():
        (home / "plan.yaml").write_text("name: plan\n")
        (home / "manifest.json").write_text(json.dumps(manifest_of(home)))
    brokers = json.loads((homes["changed"] / "run.json").read_text()) | {"brokers": [{"id": 7, "rack": "a"}]}
    (homes["changed"] / "run.json").write_text(json.dumps(brokers))
    judged = Verdict("good", "plan", 1, (), ())

    def judge_in(_: object, runs: Sequence[Evidence], **__: object) -> list[Verdict]:
        if any(run.home == homes["changed"] for run in runs):
            raise TypeError("unhashable type:\n'list'")
        return [judged for _ in runs]

    monkeypatch.setattr(module, "judge_in", judge_in)
    trusting = module.Judge(tmp_path / "spark.log", None, lambda _: None, trust=True)
    monkeypatch.setattr(trusting, "_session", lambda _: None)
    judgements = trusting.many(homes.values())
    assert judged == judgements[homes["good"]]
    refused(judgements[homes["changed"]], f"{homes['changed']}: the evidence can't be judged (TypeError: unhashable")
    monkeypatch.setattr(module, "judge_in", lambda *_, **__: {}["a bug"])
    with pytest.raises(KeyError, match="a bug"):
        trusting.many([homes["good"]])
