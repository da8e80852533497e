"""What power cuts cost: losses, ages and times of made runs, and what Kafka promises."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.durability import (
    ELR,
    Cell,
    Loss,
    Setup,
    broken,
    cells_of,
    is_promised,
    matrix,
    meaning,
    merged,
)
from aftershock.results.studies.part import Part
from aftershock.tests.unit.results.studies.trials.on_disk import part as part_on_disk

SECOND_US = 1_000_000
CUTS_S = (10.0, 40.0)
CHANGES: Mapping[str, Any] = {"everywhere": True}


def run(
    home: Path,
    lost: Sequence[int] = (),
    twice: Sequence[int] = (),
    *,
    fault: Mapping[str, Any] = CHANGES,
    cluster: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
    names: tuple[str, str, str] = ("w", "t", "cut"),
    cuts_s: Sequence[float] = CUTS_S,
) -> Part:
    """Return a run with a record in each second, acknowledged at once except in the 8 s after each cut.

    The record of second n has the sequence number n. The power is back 5 s after a cut. ``names`` are those of the
    workload, the topic and the fault.
    """
    workload, topic, entry = names
    last = round(max(cuts_s)) + 20
    acknowledged = [n for n in range(1, last + 1) if not any(cut_s < n < cut_s + 8 for cut_s in cuts_s)]
    rows = [
        {"op": "produce", "workload": workload, "arm": "producer", "producer_id": 0, "seq": n, "done_us": n * SECOND_US}
        | {"status": "ok"}
        for n in acknowledged
    ]
    rows.append({**rows[0], "seq": 999, "status": "failed"})
    log = [{"topic": topic, "producer_id": 0, "seq": n} for n in acknowledged if n not in lost]
    log += [{"topic": topic, "producer_id": 0, "seq": n} for n in twice]
    made = part_on_disk(home, outcomes=rows, log=log, checks=checks)
    states = {"injected": 0.0, "healing": 5.0, "healed": 9.0}
    lines = [
        {"t_us": round((cut_s + after_s) * SECOND_US), "fault": f"{entry}-{number}", "state": state}
        for number, cut_s in enumerate(cuts_s, 1)
        for state, after_s in states.items()
    ]
    (home / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    timeline = {
        "cluster": cluster or {},
        "topics": [
            {"name": topic, "partitions": 1, "replication": 3, "config": {"min.insync.replicas": "2", **(config or {})}}
        ],
        "workloads": [{"name": workload, "produce": {"topic": topic, "acks": "all"}, "arms": {"producer": {}}}],
        "steps": [
            {"id": f"{entry}-{n}", "entry": entry, "block": n, "parameters": fault} for n, _ in enumerate(cuts_s, 1)
        ],
    }
    return replace(made, run=replace(made.run, timeline=timeline))


def test_losses_belong_to_the_next_cut(tmp_path: Path) -> None:
    """With the times from the acknowledgement to the cut, and from the cut and the return of power to the next one."""
    (cell,) = cells_of(run(tmp_path / "run", lost=[4, 9, 38]))
    assert (
        Loss(10, 2, oldest_s=6.0, youngest_s=1.0, silent_s=8.0, recovered_s=3.0),
        Loss(23, 1, oldest_s=2.0, youngest_s=2.0, silent_s=8.0, recovered_s=3.0),
    ) == tuple(replace(loss, cut="") for loss in cell.losses)
    assert (3, 33, 2) == (cell.lost, cell.acknowledged, cell.cuts_with_loss)
    assert (6.0, 1.0, 8.0) == (cell.oldest_s(), cell.youngest_s(), cell.median_s("silent_s"))


def test_nothing_lost(tmp_path: Path) -> None:
    (cell,) = cells_of(run(tmp_path / "run"))
    assert (0, 0, None) == (cell.lost, cell.cuts_with_loss, cell.oldest_s())


def test_records_that_the_log_has_twice(tmp_path: Path) -> None:
    (cell,) = cells_of(run(tmp_path / "run", twice=[5, 6]))
    assert 2 == cell.duplicates


def test_a_cut_without_a_witness_does_not_count(tmp_path: Path) -> None:
    check = Check("witness/cut-2", "witness", "run", Status.INCONCLUSIVE, 0, 1, "", "not seen")
    (cell,) = cells_of(run(tmp_path / "run", lost=[9, 38], checks=[check]))
    assert [1] == [loss.lost for loss in cell.losses]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Setup("all nodes", "all", 2, "kernel", elr=True)),
        ({"fault": {"broker": "1"}}, Setup("one node", "all", 2, "kernel", elr=True)),
        ({"fault": {"rack": "a"}}, Setup("one rack", "all", 2, "kernel", elr=True)),
        ({"config": {"flush.messages": "1"}}, Setup("all nodes", "all", 2, "each record", elr=True)),
        ({"cluster": {"block_device": {"sync": True}}}, Setup("all nodes", "all", 2, "mount", elr=True)),
        ({"cluster": {"features": {ELR: 0}}}, Setup("all nodes", "all", 2, "kernel", elr=False)),
    ],
)
def test_the_run_says_which_cell_it_fills(tmp_path: Path, changes: Any, expected: Setup) -> None:
    (cell,) = cells_of(run(tmp_path / "run", **changes))
    assert expected == cell.setup


@pytest.mark.parametrize(
    ("where", "acks", "flush", "expected"),
    [
        ("one node", "all", "kernel", True),
        ("one rack", "all", "kernel", True),
        ("all nodes", "all", "kernel", False),
        ("all nodes", "all", "each record", True),
        ("all nodes", "all", "mount", True),
        ("one node", "1", "kernel", False),
        ("all nodes", "1", "each record", False),
    ],
)
def test_what_kafka_promises(where: str, acks: str, flush: str, *, expected: bool) -> None:
    cell = Cell(Setup(where, acks, 2, flush, elr=True), (Loss(10, 1, 1.0, 1.0, 1.0, 1.0),), 0)
    assert expected == is_promised(cell.setup)
    assert ([cell] if expected else []) == broken([cell])


def test_cells_of_one_setup_are_merged_and_placed_in_the_matrix(tmp_path: Path) -> None:
    cells = [*cells_of(run(tmp_path / "a", lost=[9])), *cells_of(run(tmp_path / "b"))]
    (cell,) = merged(cells)
    assert (1, 4) == (cell.lost, len(cell.losses))
    lines = matrix(cells)
    assert ["all nodes"] == [*lines]
    assert [None, None, cell, None] == list(lines["all nodes"][0].cells)
    assert {(None,) * 4} == {line.cells for line in lines["all nodes"][1:]}


def test_the_meaning_says_what_was_not_measured(tmp_path: Path) -> None:
    sentences = list(meaning(merged(cells_of(run(tmp_path / "run", lost=[9])))).values())
    assert (
        "acks=all lost 1 of 33 acknowledged records (3.0%), in 1 of 2 cuts: 1 % to 99 % of such cuts lose records "
        "(95 %, two-sided)"
    ) in sentences[0]
    assert "the oldest had been acknowledged 1 s before" in sentences[0]
    assert all("was not measured" in sentence for sentence in sentences[1:])


def test_producers_of_one_run_share_its_cuts(tmp_path: Path) -> None:
    """Two producers that meet the same two cuts are two cuts, not four; cuts of another run count again."""
    (first,), (second,) = cells_of(run(tmp_path / "a")), cells_of(run(tmp_path / "b", lost=[9]))
    other = replace(first, setup=first.setup._replace(flush="each record"))
    assert (2, 2) == (first.cuts, merged([first, first])[0].cuts)
    both = next(iter(meaning([first, replace(other, setup=first.setup._replace(min_isr=1))]).values()))
    assert (
        "lost none of 66 acknowledged records in 2 cuts: at most 78 % of such cuts lose records (95 %, one-sided)"
        in both
    )
    elsewhere = replace(second, losses=tuple(replace(loss, cut=f"b{loss.cut}") for loss in second.losses))
    (pooled,) = merged([first, elsewhere])
    assert (1, 4) == (pooled.cuts_with_loss, pooled.cuts)
