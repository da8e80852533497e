"""Two workloads in one group are judged by the records of their own topics, and by nobody else's."""

from pathlib import Path
from typing import TYPE_CHECKING

from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.judging import judged_together, planted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_who_is_charged_with_a_loss_and_with_two_owners(spark: "SparkSession", tmp_path: Path) -> None:
    """The reader of the topic with the loss, and both owners of a partition; each workload has its own counts."""
    homes = [planted(DEFECTS[name], tmp_path) for name in ("lost-in-a-shared-group", "assigned-to-both-workloads")]
    lost, shared = judged_together(spark, homes).values()
    failed = [[(check.id, check.subject) for check in of if check.status.value == "FAIL"] for of in (lost, shared)]
    assert [("integrity/lost", "workload=returns arm=baseline consume")] == failed[0]
    patient = [f"workload={workload} arm=patient consume" for workload in ("orders", "returns")]
    assert [("integrity/co_owned", who) for who in patient] == failed[1]
    due = {check.subject: check.n for check in lost if check.id == "integrity/lost"}
    produced = sum(n for subject, n in due.items() if subject.endswith("produce"))
    read = {subject: n for subject, n in due.items() if subject.endswith("consume")}
    assert {produced // 2} == {*read.values()}, "half of the records are due at each workload's reader"
