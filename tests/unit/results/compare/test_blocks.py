"""A run with blocks, measured by Spark: each block's value comes from its own records and decides comparisons
of arms.
"""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from aftershock.results.compare import blocks
from aftershock.results.compare.blocks import Block, Measure, block_cuts
from aftershock.results.compare.comparison import Question, confident, rows
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.stored import analysis_document
from aftershock.results.measure.measure import measure
from aftershock.results.model.check import Status
from aftershock.results.model.facts import Facts, MeasurementRequest
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BLOCKS, EACH_S, FAULT_S, FIRST_S = 8, 4, 2, 16
CLIENTS = ("orders/patient", "orders/baseline")
P90 = Measure("produce.latency", 0.9, "fault")


@pytest.fixture(scope="module")
def blocked(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Write a run of eight blocks of 2 s fault and 2 s recovery, in which `patient` is four times as slow; the
    only fault is `slow`.
    """
    other, phases = made.copy(), [row for row in made.phases if row["name"] in ("warmup", "steady")]
    for block in range(1, BLOCKS + 1):
        at, name = FIRST_S + EACH_S * (block - 1), f"slow-{block}"
        phases.append({"name": "fault", "fault": name, "entry": "slow", **_window(block, at, at + FAULT_S)})
        phases.append({"name": "recovery", "fault": None, **_window(block, at + FAULT_S, at + EACH_S)})
        for state, at_s in (("intended", at), ("healed", at + FAULT_S)):
            other.journal.append(made.journal[0] | {"fault": name, "state": state, "t_us": at_s * S})
    other.phases = phases
    step = {**made.timeline["steps"][0], "entry": "slow"}
    other.timeline["steps"] = [{**step, "id": f"slow-{block}", "block": block} for block in range(1, BLOCKS + 1)]
    for row in other.produce:
        if _block_of(row["intended_us"]) and row["arm"] == "patient":
            row["done_us"] += 3 * (row["done_us"] - row["intended_us"])
    return read(other.write(tmp_path_factory.mktemp("blocked") / "run"), columns())


@pytest.fixture(scope="module")
def measured(spark: "SparkSession", blocked: Evidence) -> Facts:
    run_id = str(blocked.run["run_id"])
    return measure(spark, [blocked], {run_id: MeasurementRequest((0.9,), cuts=block_cuts(blocked))})[run_id]


def _window(block: int, start_s: int, end_s: int) -> dict[str, int]:
    return {"block": block, "start_us": start_s * S, "end_us": end_s * S}


def _block_of(at_us: int) -> int:
    """Return the block whose fault contains this moment, or 0."""
    since = at_us / S - FIRST_S
    return int(since // EACH_S) + 1 if 0 <= since < BLOCKS * EACH_S and since % EACH_S < FAULT_S else 0


def _oracle(blocked: Evidence, client: str) -> dict[int, Block]:
    """Compute nearest-rank quantiles in plain Python from the rows of the files."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - beside the one use of it

    seen: dict[int, list[int]] = {}
    for part in blocked.parquet["outcomes"]:
        for row in pq.read_table(part).to_pylist():
            number = _block_of(row["intended_us"])
            if number and row["op"] == "produce" and f"{row['workload']}/{row['arm']}" == client:
                seen.setdefault(number, []).append(row["done_us"] - row["intended_us"])
    return {n: Block(sorted(some)[math.ceil(0.9 * len(some)) - 1], len(some)) for n, some in seen.items()}


def test_each_block_has_the_values_of_its_own_records(measured: Facts, blocked: Evidence) -> None:
    """Every block's value and number of records equal a plain Python oracle and exclude the steady phase."""
    for client in CLIENTS:
        oracle = _oracle(blocked, client)
        assert set(range(1, BLOCKS + 1)) == oracle.keys()
        assert oracle == blocks.of_slices(measured.slices(P90.cut, client), 0.9)


def test_gaps_are_cut_at_the_blocks(measured: Facts) -> None:
    """Every block has a longest gap, which lies within its fault and recovery."""
    gaps = blocks.of_slices(measured.slices(Measure("produce.gap").cut, CLIENTS[0]), None)
    assert set(range(1, BLOCKS + 1)) == gaps.keys()
    assert all(gap.value_us is not None and 0 < gap.value_us <= EACH_S * S for gap in gaps.values())


def test_a_slower_arm_is_a_regression(measured: Facts) -> None:
    """An arm that is four times as slow is a regression; SLOs with a lower factor fail and SLOs with a higher
    factor pass.
    """
    ours, theirs = (blocks.of_slices(measured.slices(P90.cut, client), 0.9) for client in CLIENTS)
    (row,) = rows([Question(Measure("produce.latency", 0.9, "fault"), ours, theirs)])
    assert ("regressed", BLOCKS) == (row.verdict, row.blocks)
    statuses = [confident(measured, P90.cut, CLIENTS, 0.9, "<=", factor).status for factor in (1.5, 6)]
    assert [Status.FAIL, Status.PASS] == statuses


def test_stored_blocks_equal_measured_blocks(measured: Facts, blocked: Evidence) -> None:
    """`analysis.json` gives the same blocks as the measurements, including recoveries."""
    stored = json.loads(json.dumps(analysis_document(measured)))
    for measure_ in (P90, Measure("produce.gap")):
        assert blocks.of_slices(measured.slices(measure_.cut, CLIENTS[0]), measure_.q) == blocks.stored(
            stored, blocked.steps, measure_, CLIENTS[0]
        )
    recovered = blocks.stored(stored, blocked.steps, Measure("recovery", after="slow"), CLIENTS[1])
    assert measured.recoveries.keys() >= {(f"slow-{number}", CLIENTS[1]) for number in recovered}
    assert asdict(measured.recoveries["slow-1", CLIENTS[1]])["n"] == recovered[1].n
