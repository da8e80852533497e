"""A run with blocks, measured by Spark: each block's number is of its own records, and arms are told apart by them."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from aftershock.results.checks.check import Status
from aftershock.results.compare import blocks
from aftershock.results.compare.blocks import Block, Measure, block_cuts
from aftershock.results.compare.comparison import Question, confident, rows
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.stored import analysis_document
from aftershock.results.measure.facts import Facts, MeasurementRequest
from aftershock.results.measure.measure import measure
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

BLOCKS, EACH_S, FAULT_S, FIRST_S = 8, 4, 2, 16
CLIENTS = ("orders/patient", "orders/baseline")
P90 = Measure("produce.latency", 0.9, "fault")


@pytest.fixture(scope="module")
def blocked(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Eight blocks of 2 s and 2 s, in which `patient` takes four times as long; one fault of the plan, `slow`."""
    other, phases = made.copy(), [row for row in made.phases if row["name"] in ("warmup", "steady")]
    for block in range(1, BLOCKS + 1):
        at, name = FIRST_S + EACH_S * (block - 1), f"slow-{block}"
        phases.append({"name": "fault", "fault": name, "entry": "slow", **_window(block, at, at + FAULT_S)})
        phases.append({"name": "recovery", "fault": None, **_window(block, at + FAULT_S, at + EACH_S)})
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
    """The block in whose fault a moment lies; 0: in none."""
    since = at_us / S - FIRST_S
    return int(since // EACH_S) + 1 if 0 <= since < BLOCKS * EACH_S and since % EACH_S < FAULT_S else 0


def _oracle(blocked: Evidence, client: str) -> dict[int, Block]:
    """Nearest rank, of the rows as they stand in the files."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - beside the one use of it

    seen: dict[int, list[int]] = {}
    for part in blocked.parquet["outcomes"]:
        for row in pq.read_table(part).to_pylist():
            number = _block_of(row["intended_us"])
            if number and row["op"] == "produce" and f"{row['workload']}/{row['arm']}" == client:
                seen.setdefault(number, []).append(row["done_us"] - row["intended_us"])
    return {n: Block(sorted(some)[math.ceil(0.9 * len(some)) - 1], len(some)) for n, some in seen.items()}


def test_each_block_is_of_its_own_records(measured: Facts, blocked: Evidence) -> None:
    """The value and the number of records of every block, by an oracle in plain Python; nothing of steady is there."""
    for client in CLIENTS:
        oracle = _oracle(blocked, client)
        assert set(range(1, BLOCKS + 1)) == oracle.keys()
        assert oracle == blocks.of_slices(measured.slices(P90.cut, client), 0.9)


def test_gaps_are_cut_at_the_blocks(measured: Facts) -> None:
    """The longest gap of a block lies within its fault and recovery, and every block has one."""
    gaps = blocks.of_slices(measured.slices(Measure("produce.gap").cut, CLIENTS[0]), None)
    assert set(range(1, BLOCKS + 1)) == gaps.keys()
    assert all(gap.value_us is not None and 0 < gap.value_us <= EACH_S * S for gap in gaps.values())


def test_arms_are_told_apart(measured: Facts) -> None:
    """Four times as slow is a regression, and no SLO that asks for less passes; one that asks for more does."""
    ours, theirs = (blocks.of_slices(measured.slices(P90.cut, client), 0.9) for client in CLIENTS)
    (row,) = rows([Question(Measure("produce.latency", 0.9, "fault"), ours, theirs)])
    assert ("regressed", BLOCKS) == (row.verdict, row.blocks)
    told = [confident(measured, P90.cut, CLIENTS, 0.9, "<=", factor).status for factor in (1.5, 6)]
    assert [Status.FAIL, Status.PASS] == told


def test_what_is_stored_is_what_was_measured(measured: Facts, blocked: Evidence) -> None:
    """`analysis.json` leads to the same blocks as the measurements themselves, recoveries too."""
    stored = json.loads(json.dumps(analysis_document(measured)))
    for measure_ in (P90, Measure("produce.gap")):
        assert blocks.of_slices(measured.slices(measure_.cut, CLIENTS[0]), measure_.q) == blocks.stored(
            stored, blocked.steps, measure_, CLIENTS[0]
        )
    recovered = blocks.stored(stored, blocked.steps, Measure("recovery", after="slow"), CLIENTS[1])
    assert measured.recoveries.keys() >= {(f"slow-{number}", CLIENTS[1]) for number in recovered}
    assert asdict(measured.recoveries["slow-1", CLIENTS[1]])["n"] == recovered[1].n
