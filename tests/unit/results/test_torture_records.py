"""Torture experiments 2 and 7 with Spark, at a small scale, and planted defects that they must report."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.results.spark.tables import columns
from aftershock.results.tables import gate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_7_replaced_records(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tables; a comparison of counts alone overlooks every replaced record, and the experiment says so."""
    from aftershock.results.evidence.evidence import read  # noqa: PLC0415 - tests without Spark should not load it
    from aftershock.tests.torture import e7_replaced_records as experiment  # noqa: PLC0415 - as above

    large = experiment.opened(read(experiment.generated(tmp_path, 100_000), columns(), None), spark)
    replaced = experiment.draw(large.each, random.Random(2))  # noqa: S311
    for in_log in (True, False):
        outcome = experiment.examine(large, replaced, in_log=in_log)
        assert ((), 2 * len(replaced)) == (tuple(outcome.bad), outcome.cases)
    fingerprint = gate._fingerprint
    constant = ("records", "places", "places_sum")
    monkeypatch.setattr(
        gate,
        "_fingerprint",
        lambda counting: [
            gate.F.max(gate.F.lit(1)).alias(name)
            if (name := column._jc.toString().rpartition(" AS ")[2]) in constant
            else column
            for column in fingerprint(counting)
        ],
    )
    missed = experiment.examine(large, replaced, in_log=True).bad
    assert 2 * len(replaced) == len(missed)
    assert all(why.startswith("missed: ") for why in missed)


def test_2_mutated_evidence(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: a run that is untouched, one with other values, and one whose table lacks rows."""
    from aftershock.results.judge import Judge  # noqa: PLC0415 - tests without Spark should not load it
    from aftershock.tests.torture import e2_mutated_evidence as experiment  # noqa: PLC0415 - as above

    strict, trusting = (Judge(tmp_path / "spark.log", None, lambda _: None, trust=trust) for trust in (False, True))
    for judge in (strict, trusting):
        monkeypatch.setattr(judge, "_session", lambda _: spark)
    homes = {}
    for seed, kind in ((1, "events.jsonl"), (3, "outcomes"), (5, "phases.json")):
        home = experiment.base_copy("demo", tmp_path / f"{seed}")
        homes[home] = experiment.mutate(home, kind, random.Random(seed))  # noqa: S311
    homes[same := experiment.base_copy("demo", tmp_path / "same")] = "nothing"
    checks = experiment.checks_text(strict(same))
    outcome = experiment.examine(homes, "demo", experiment.Judges(strict, trusting, {"demo": checks}))
    assert () == tuple(outcome.bad)
    assert (3, 1, 4) == (
        outcome.counts["refused"],
        outcome.counts["same verdict"],
        outcome.counts["judged with --trust"] + outcome.counts["refused with --trust"],
    )
