"""The planter of ``tests/judge_mutants``: edits keep the evidence consistent, and a seed decides everything."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from aftershock.results.evidence.evidence import read
from aftershock.results.spark.tables import columns
from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy
from aftershock.tests.judge_mutants.campaign import CORPUS, corpus, mutant
from aftershock.tests.judge_mutants.draft import Draft, stored
from aftershock.tests.judge_mutants.kinds import kinds

ROOT = Path(__file__).parents[3]
_SMALL = ("demo", "commits-0.1", "attached")
_DICE = random.Random(1)  # noqa: S311 - draws that can be repeated


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Anatomy]:
    """Three runs of the corpus; the demo has an epoch history."""
    entries = CORPUS.read_text().split("[[run]]")
    folder = tmp_path_factory.mktemp("corpus")
    small = folder / "corpus.toml"
    chosen = [entry for entry in entries if any(f'name = "{name}"' in entry for name in _SMALL)]
    small.write_text("[[run]]".join(["", *chosen]).replace('run = "', f'run = "{ROOT}/'))
    return corpus(folder / "packs", small)


def _log(draft: Draft, topic: str, partition: int) -> pd.DataFrame:
    log = draft.tables["log"]
    return log[(log["topic"] == topic) & (log["partition"] == partition)].sort_values("offset")


def _deliveries_agree(draft: Draft) -> Iterator[tuple[str, int, int]]:
    """Yield the deliveries whose record is not the one that the log has at their offset."""
    log = draft.tables["log"].set_index(["topic", "partition", "offset"])[["producer_id", "seq"]]
    rows = draft.tables["outcomes"]
    for row in rows[rows["op"] == "consume"].to_dict("records"):
        place = (row["topic"], row["partition"], row["offset"])
        if place not in log.index or [*log.loc[place]] != [row["producer_id"], row["seq"]]:
            yield place


def test_an_unedited_draft_is_the_run(runs: dict[str, Anatomy], tmp_path: Path) -> None:
    """What is written has the rows and documents of the run, a manifest that agrees, and another run id."""
    run = runs["demo"].run
    home = run.draft().write(tmp_path / "copy", "copy-1")
    evidence = read(home, columns())
    again = stored("copy", home)
    assert evidence.altered == ()
    assert evidence.run["run_id"] == "copy-1"
    for name, rows in run.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], rows)
    assert {**again.documents, "run.json": None} == {**run.documents, "run.json": None}


def test_an_edit_leaves_the_stored_run_alone(runs: dict[str, Anatomy]) -> None:
    run = runs["demo"]
    before = {name: rows.copy() for name, rows in run.run.tables.items()}
    documents = json.dumps(run.run.documents)
    for seed in range(40):
        mutant(seed, {"demo": run})
    for name, rows in before.items():
        pd.testing.assert_frame_equal(run.run.tables[name], rows)
    assert json.dumps(run.run.documents) == documents


def test_a_seed_decides_everything(runs: dict[str, Anatomy], tmp_path: Path) -> None:
    """Two drafts of a seed are the same, byte for byte."""
    for seed in (3, 11, 12):
        one, two = mutant(seed, runs), mutant(seed, runs)
        assert one is not None
        assert two is not None
        assert (one.kind, one.run, one.plant) == (two.kind, two.run, two.plant)
        homes = [each.draft.write(tmp_path / f"{seed}-{number}", "same") for number, each in enumerate((one, two))]
        files = [{path.relative_to(home): path.read_bytes() for path in home.rglob("*.*")} for home in homes]
        assert files[0] == files[1]


@pytest.mark.parametrize("close", [False, True])
def test_removed_records_leave_a_consistent_partition(runs: dict[str, Anatomy], close: bool) -> None:
    """Later records move up or leave a gap; deliveries, replicas and commits agree with the log."""
    run = runs["demo"]
    draft = run.run.draft()
    before = _log(draft, "orders", 2)
    edits.remove_records(draft, _DICE, "orders", 2, [100, 101], delivered=False, close=close)
    after = _log(draft, "orders", 2)
    assert len(after) == len(before) - 2
    assert [*after["offset"]] == ([*range(len(after))] if close else [*range(100), *range(102, len(before))])
    assert [*_deliveries_agree(draft)] == []
    replicas = draft.tables["replicas"][draft.tables["replicas"]["partition"] == 2]
    assert {*replicas["records"]} == {len(after)}
    assert {*replicas["end_offset"]} == {len(before) - 2 * close}
    assert len({*replicas["fingerprint"]}) == 1
    committed = max(e[2] for event in draft.documents["events.jsonl"] for e in event.get("offsets", ()) if e[1] == 2)
    assert committed <= after["offset"].max() + 1
    rows = draft.tables["outcomes"]
    lost = rows[(rows["op"] == "produce") & (rows["partition"] == 2) & rows["offset"].isin([100, 101])]
    in_log = pd.MultiIndex.from_frame(after[["producer_id", "seq"]])
    assert (~pd.MultiIndex.from_frame(lost[["producer_id", "seq"]]).isin(in_log)).sum() == 2


def test_an_inserted_copy_is_delivered_to_every_reader(runs: dict[str, Anatomy]) -> None:
    run = runs["demo"]
    draft = run.run.draft()
    record = run.records[run.records["partition"] == 1].iloc[50]
    offset = edits.insert_copy(draft, _DICE, int(record["entry"]), int(record["offset"]) + 3)
    log = _log(draft, "orders", 1)
    assert [*log["offset"]] == [*range(len(log))]
    twice = log[(log["producer_id"] == record["producer_id"]) & (log["seq"] == record["seq"])]
    assert [*twice["offset"]] == [record["offset"], offset]
    assert [*_deliveries_agree(draft)] == []


def test_a_thinned_run_has_the_anatomy_of_the_whole(runs: dict[str, Anatomy]) -> None:
    """Offsets and sequence numbers have no gaps, deliveries agree, epochs and positions stay within the log."""
    home = runs["demo"].run.home
    run, whole = stored("thin", home, keep=3), runs["demo"].run
    draft = run.draft()
    for partition in range(6):
        offsets = _log(draft, "orders", partition)["offset"]
        assert [*offsets] == [*range(len(offsets))]
    assert [*_deliveries_agree(draft)] == []
    sent = run.tables["outcomes"][run.tables["outcomes"]["op"] == "produce"]
    assert [[*range(len(rows))] for _, rows in sent.groupby("producer_id")["seq"]] == [
        sorted(rows) for _, rows in sent.groupby("producer_id")["seq"]
    ]
    assert len(run.tables["log"]) == pytest.approx(len(whole.tables["log"]) / 3, rel=0.02)
    rates = [workload["produce"]["rate_per_s"] for workload in run.documents["timeline.json"]["workloads"]]
    assert rates == [pytest.approx(50 / 3)] * 2


def test_a_loss_with_a_cause_lies_at_the_start_of_a_later_epoch(runs: dict[str, Anatomy]) -> None:
    """The lost records were acknowledged before the leader was elected, and its epoch begins at the first of them."""
    run = runs["demo"]
    each = mutant(5, {"demo": run}, ["loss-with-its-cause"])
    assert each is not None
    log = each.draft.tables["log"]
    sent = each.draft.tables["outcomes"]
    sent = sent[(sent["op"] == "produce") & (sent["status"] == "ok")]
    written = pd.MultiIndex.from_frame(log[["producer_id", "seq"]].dropna())
    already = pd.MultiIndex.from_frame(run.run.tables["log"][["producer_id", "seq"]].dropna())
    keys = pd.MultiIndex.from_frame(sent[["producer_id", "seq"]])
    lost = sent[~keys.isin(written) & keys.isin(already)]
    assert not lost.empty
    for row in lost.to_dict("records"):
        assert any(
            line["partition"] == row["partition"]
            and line["start_offset"] is not None
            and 0 < line["start_offset"] <= row["offset"]
            and line["after_us"] >= row["done_us"]
            for line in each.draft.documents["leaders.jsonl"]
        )


def test_an_unexplained_loss_lies_below_every_later_epoch(runs: dict[str, Anatomy]) -> None:
    run = runs["demo"]
    for seed in range(12):
        each = mutant(seed, {"demo": run}, ["lost-with-acks-one", "lost-below-the-next-epoch"])
        assert each is not None
        assert each.plant.status == "FAIL"
        place = each.plant.place
        topic = place.split("/")[0].split()[-1]
        partition, offset = int(place.split("/")[1].split("@")[0]), int(place.split("@")[1].split(",")[0])
        own = run.records[(run.records["partition"] == partition) & (run.records["offset"] == offset)]["epoch"].iloc[0]
        later = [
            e
            for e in run.run.documents["leaders.jsonl"]
            if (e["topic"], e["partition"]) == (topic, partition) and e["epoch"] > own
        ]
        assert all(line["start_offset"] > offset for line in later)


def test_evidence_of_every_kind_can_be_read(runs: dict[str, Anatomy], tmp_path: Path) -> None:
    """Only defects of documents may make evidence unreadable; every other edit keeps manifest, schema and digests."""
    names = [name for name, kind in kinds().items() if kind.family != "documents"]
    placed = set()
    for number, name in enumerate(names):
        each = mutant(number, runs, [name])
        if each is not None:
            placed.add(name)
            assert read(each.draft.write(tmp_path / name, name), columns()).altered == ()
    needs_a_group = {name for name, kind in kinds().items() if kind.family == "ownership"}
    assert len(placed) >= 60
    assert not placed & needs_a_group
    assert len({kind.family for kind in kinds().values()}) == 11
