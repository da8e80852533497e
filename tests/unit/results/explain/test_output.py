"""The story of a run and of one record: in order, within 80 columns, and without unknown facts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.cli import analysis
from aftershock.results.explain.output import record_markdown, record_text, story, story_markdown, story_text
from aftershock.results.explain.record import record_history
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.unit.results.analysis_factory import analysed
from aftershock.tests.unit.results.evidence_factory import Made

HOSTILE = "<script>alert(1)</script>|`*\x1b[2J"
OWED = Check(
    "obligation/produce", "obligation", "arm=baseline", Status.PASS, 9, 1, "s", "progress was required for 9 s"
)


def judged(made: Made, home: Path, **other: Any) -> Path:
    """Write a run with a verdict and a complete analysis; ``other`` replaces fields of the analysis, and None
    removes a field.
    """
    made.write(home)
    document = analysed([*made.produce, *made.consume], made.phases) | other
    whole = {name: value for name, value in document.items() if value is not None}
    (home / "analysis.json").write_text(json.dumps(whole))
    (home / "verdict.json").write_text(Verdict("r", made.timeline["name"], 7, ("baseline",), (OWED,)).text())
    return home


def detailed(made: Made) -> Made:
    """Return the clean run with a reference client that reports its attempts during kill-1, and with known brokers."""
    told = made.copy()
    who = {"workload": "orders", "arm": "baseline", "op": "produce", "topic": "orders", "partition": 0}
    told.events += [
        who | {"t_us": 26_300_000, "event": "hint_accepted", "node_id": 2, "epoch": 1},
        who | {"t_us": 26_400_000, "event": "batch_retried", "node_id": 2, "epoch": 1, "reason": "NOT_LEADER"},
        who | {"t_us": 26_500_000, "event": "metadata_refreshed", "critical": True},
    ]
    told.journal[0]["targets"]["roles"] = {"asked": "client(a) -> broker"}
    for row in told.produce:
        row |= {"attempts": 2 if 26_000_000 <= row["intended_us"] < 26_300_000 else 1, "broker_id": 2}
    return told


def test_a_fault_is_a_chapter_in_order_of_time(made: Made, tmp_path: Path) -> None:
    """The events are injection, new leader, first error, witness, first success, recovery and heal."""
    (chapter,) = [one for one in story(judged(detailed(made), tmp_path / "run")).chapters if one.fault == "kill-1"]
    said = [str(moment) for moment in chapter.moments]
    steps = [
        "injected",
        "accepted the hint that node 2",
        "first error: was refused",
        "recovered",
        "first success",
        "healed",
    ]
    places = [next(index for index, text in enumerate(said) if step in text) for step in steps]
    assert sorted(places) == places
    assert any("witnessed: container state: expected exited, observed exited" in text for text in said)
    assert [moment.at_us for moment in chapter.moments] == sorted(moment.at_us for moment in chapter.moments)
    assert "broker 1" in chapter.what
    assert any("progress was required for" in note for note in chapter.notes)


@pytest.mark.parametrize(
    ("happened", "sentence"),
    [
        (
            {"event": "held_request_delivered", "answer": "NONE", "met": "open"},
            "node 2 answered the held EndTxn (commit) of w with NONE, while the producer's next transaction was open",
        ),
        (
            {"event": "held_request_delivered", "answer": "NONE", "met": "between"},
            "with NONE, after its transaction, and before the next one began",
        ),
        ({"event": "held_request_lost", "why": "its rule was removed"}, "of w is lost: its rule was removed"),
    ],
)
def test_held_requests_are_told_with_their_fault(
    made: Made, tmp_path: Path, happened: dict[str, str], sentence: str
) -> None:
    told = made.copy()
    same = {"t_us": 27_000_000, "fault": "kill-1", "worker": "w", "node_id": 2, "api": "EndTxn", "outcome": "commit"}
    told.events.append({**same, **happened})
    chapters = story(judged(told, tmp_path / "run")).chapters
    assert ["kill-1"] == [one.fault for one in chapters if any(sentence in str(moment) for moment in one.moments)]


def test_the_story_ends_with_obligations_and_slow_records(made: Made, tmp_path: Path) -> None:
    """Obligations come first, then ten records, slowest first, each with the fault that overlapped it."""
    told = story(judged(detailed(made), tmp_path / "run"))
    assert ("obligation/produce arm=baseline: held: progress was required for 9 s",) == told.promises
    assert told.slowest
    assert 10 == len(told.slowest)
    took = [tale.record.latency_us or 0 for tale in told.slowest]
    assert took == sorted(took, reverse=True)
    assert {"kill-1 overlapped the record"} == {tale.notes[0] for tale in told.slowest}
    assert all(sum(part.us for part in tale.parts) == tale.record.latency_us for tale in told.slowest)


def test_a_slow_record_outside_every_fault_says_so(made: Made, tmp_path: Path) -> None:
    """The text names the time since the last fault; a link fault on the record's path is named with its share."""
    slow = {"producer_id": 0, "seq": 1, "topic": "orders", "partition": 0, "offset": 1, "status": "ok", "broker_id": 2}
    calm = slow | {"intended_us": 45_000_000, "sent_us": 45_000_000, "done_us": 46_000_000}
    late = slow | {"seq": 2, "intended_us": 17_000_000, "sent_us": 17_000_000, "done_us": 17_500_000}
    home = judged(
        made, tmp_path / "run", slowest=[{"op": "produce", "client": "orders/baseline", "records": [calm, late]}]
    )
    told = story(home).slowest
    assert told
    assert ("no fault overlapped the record; reassign-1 had ended 6.0 s before",) == told[0].notes
    assert "latency-1 overlapped the record" == told[1].notes[0]
    assert "on the record's path: latency on client(a) -> k2 for 0.5 s of the record's latency" == told[1].notes[1]


def test_a_run_judged_by_an_older_version_says_what_is_missing(made: Made, tmp_path: Path) -> None:
    """Faults are described from gaps; slow records are omitted, with the command that adds them."""
    lacking = dict.fromkeys(("slowest", "stalls", "spectra", "racks", "lag", "perf"))
    text = story_text(story(judged(made, tmp_path / "run", **lacking)))
    assert "kill-1: kill" in text
    assert "longest time without a success" in text
    assert "judged by an older version" in text
    assert "aftershock verdict" in text.replace("\n", " ")


def test_a_rehearsal_is_described_as_a_rehearsal(made: Made, tmp_path: Path) -> None:
    """No fault was injected, so no fault is on a record's path."""
    calm = made.copy()
    calm.run["rehearse"] = True
    told = story(judged(calm, tmp_path / "run"))
    assert any("rehearsal: nothing was injected" in moment.text for moment in told.chapters[0].moments)
    assert not any("on the record's path" in note for tale in told.slowest or () for note in tale.notes)


def test_manual_faults_and_skipped_steps_are_chapters(made: Made, tmp_path: Path) -> None:
    """A journal entry that is not in the plan and a step without journal entries each get a chapter."""
    odd = made.copy()
    lines = [line | {"fault": "mine"} for line in odd.journal if line["fault"] == "kill-1"]
    odd.events.append({"t_us": 1, "event": "injected_by_hand", "fault": {"id": "mine", "kind": "kill"}})
    odd.journal = [line for line in odd.journal if line["fault"] != "reassign-1"] + lines
    odd.phases = [phase for phase in odd.phases if phase["fault"] != "reassign-1"]
    chapters = {chapter.fault: chapter for chapter in story(judged(odd, tmp_path / "run")).chapters}
    assert "by hand" in chapters["mine"].what
    assert ("the fault never began",) == chapters["reassign-1"].notes


def test_no_line_is_wider_than_80_columns_and_no_name_moves_the_cursor(made: Made, tmp_path: Path) -> None:
    """Hostile names are escaped in the terminal and in Markdown."""
    odd = detailed(made)
    odd.timeline["workloads"][0]["arms"] = {HOSTILE: {}, "baseline": {}}
    odd.timeline["name"] = HOSTILE
    for row in odd.produce:
        row["arm"] = HOSTILE if row["arm"] == "patient" else row["arm"]
    home = judged(odd, tmp_path / "run")
    text, marked = story_text(story(home)), story_markdown(story(home))
    assert 80 >= max(map(len, text.splitlines()))
    assert "\x1b" not in text + marked
    assert "<script" not in marked.replace("\\<", "")
    assert len({line.count(" | ") for line in marked.splitlines() if line.startswith("| 26.")}) == 1


def test_one_record_is_followed_through_every_attempt(made: Made, tmp_path: Path) -> None:
    """The events are intended, sent, refused, retried, acknowledged, logged, and delivered to each consumer."""
    told = detailed(made)
    record = next(
        row for row in told.produce if row["arm"] == "baseline" and row["attempts"] == 2 and not row["partition"]
    )
    result = record_history(told.write(tmp_path / "run"), 0, record["seq"])
    text = record_text(result)
    steps = ["due by the schedule", "handed to the client from rack a", "accepted the hint", "sent a batch of orders/0"]
    steps += ["acknowledged by broker 2 as orders/0", "delivered in rack b"]
    flat = " ".join(text.split())
    assert sorted(flat.index(step) for step in steps) == [flat.index(step) for step in steps]
    assert f"in the log at the end of the run: orders/0 offset {record['offset']}" in flat
    assert "kill-1 overlapped the record" in text
    assert "### Record" in record_markdown(result)


def test_lost_and_phantom_records_are_explained(made: Made, tmp_path: Path) -> None:
    """Undelivered, unlogged, in-doubt and phantom records each give a sentence and no error."""
    odd = made.copy()
    odd.consume = [row for row in odd.consume if (row["producer_id"], row["seq"], row["arm"]) != (0, 9, "patient")]
    odd.log = [row for row in odd.log if (row["producer_id"], row["seq"]) != (0, 9)]
    next(row for row in odd.produce if (row["producer_id"], row["seq"]) == (0, 10)).update(
        done_us=None, status="in_doubt"
    )
    odd.consume.append(odd.consume[-1] | {"producer_id": 77, "seq": 1})
    home = odd.write(tmp_path / "run")
    lost, doubt, phantom = (record_text(record_history(home, *one)) for one in ((0, 9), (0, 10), (77, 1)))
    assert "arm=patient: never delivered" in lost
    assert "not in the log" in lost
    assert "in doubt" in doubt
    assert "the record is a phantom" in phantom


def test_an_unknown_record_lists_the_known_producers(made: Made, tmp_path: Path) -> None:
    """The message names the producers and their last records; the run need not be judged."""
    result = record_history(made.write(tmp_path / "run"), 5, 1)
    assert "There is no record 5:1." in record_text(result)
    assert "0 (arm=baseline) sent 0 to 2999" in record_text(result).replace("\n", " ")


@pytest.fixture(scope="module")
def home(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged run."""
    return judged(made, tmp_path_factory.mktemp("explained") / "run")


@pytest.mark.parametrize(
    ("record", "options", "said"),
    [
        (None, {}, "kill-1: kill, by the plan"),
        ("0:9", {}, "Record 0:9"),
        ("9:9", {}, "There is no record 9:9"),
        (None, {"as_json": True}, '"chapters"'),
        ("0:9", {"as_json": True}, '"moments"'),
        (None, {"style": "md"}, "### kill-1"),
        ("0:9", {"style": "md"}, "### Record 0:9"),
    ],
)
def test_the_command(
    home: Path, capsys: pytest.CaptureFixture[str], record: str | None, options: dict[str, Any], said: str
) -> None:
    """`aftershock explain RUN` prints text, Markdown or JSON and exits with 0, because it judges nothing."""
    assert 0 == analysis.explain(str(home), record=record, **options)
    out = capsys.readouterr().out
    assert said in out
    if options.get("as_json"):
        json.loads(out)


def test_an_invalid_record_name_is_an_error(home: Path) -> None:
    """The error shows the valid form."""
    command = [sys.executable, "-m", "aftershock.harness.cli", "explain", str(home), "--record", "nine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (3, "'nine' is not a record; write PRODUCER:SEQ") == (done.returncode, done.stderr.split(",")[0])
