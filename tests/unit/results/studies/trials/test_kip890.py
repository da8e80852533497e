"""KIP-890: transactions that met a late request, by made logs with markers, and late requests that met none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.part import Part
from aftershock.results.studies.trials import kip890
from aftershock.results.studies.trials.claim import Parts
from aftershock.results.studies.trials.kip890_exposures import exposures
from aftershock.tests.unit.results.studies.trials.made import judge, measure
from aftershock.tests.unit.results.studies.trials.on_disk import part as part_on_disk

S = 1_000_000
COUNT = 7
WORKLOAD = "payments"


@dataclass
class Producer:
    """Transactions of two records each, one per second, and what the log has of them."""

    arm: str
    number: int
    transactions: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)

    def transaction(self, outcome: str, ends: Sequence[str | None], *, asked: bool = False) -> None:
        """Add a transaction whose records ended as in ``ends``: by a marker, or None for one that the log lacks."""
        number = len(self.transactions)
        begin_us = number * S
        same = {"workload": WORKLOAD, "arm": self.arm, "producer_id": self.number}
        self.transactions.append(
            same
            | {"number": number, "first_seq": 2 * number, "last_seq": 2 * number + 1, "outcome": outcome}
            | {"transactional_id": self.arm, "begin_us": begin_us, "done_us": begin_us + S // 2}
            | {"commit_asked": asked, "version": 1}
        )
        for place, end in enumerate(ends):
            seq = 2 * number + place
            self.outcomes.append({**same, "op": "produce", "seq": seq, "status": "ok"})
            if end is not None:
                offset = 2 * len(self.log)
                at = {"topic": kip890.TOPIC, "partition": self.number}
                self.log.append({**at, "producer_id": self.number, "seq": seq, "offset": offset})
                batch = {**at, "kafka_producer_id": 90 + self.number, "kafka_epoch": 0, "transactional": True}
                self.batches.append({**batch, "first_offset": offset, "last_offset": offset, "marker": None})
                self.batches.append({**batch, "first_offset": offset + 1, "last_offset": offset + 1, "marker": end})


def delivered(arm: str, entry: str, block: int, t_us: int, answer: str, met: str) -> dict[str, Any]:
    return {
        "event": "held_request_delivered",
        "fault": f"{entry}-{block}",
        "t_us": t_us,
        "met": met,
        "answer": answer,
        "transactional_id": arm,
        "producer_id": 90,
        "epoch": 0,
    }


def counted(arm: str, rule: str, count: int) -> Check:
    status = Status.FAIL if count else Status.PASS
    name, subject = f"integrity/{rule}", f"arm={arm} produce"
    return Check(name, "integrity", subject, status, 100, 1, "transactions", "", float(count), arm=arm)


def run(
    home: Path,
    arm: str,
    violated: Sequence[int] = (),
    *,
    met: Sequence[int] | None = None,
    entry: str = "",
    answer: str = "NONE",
    state: str = "open",
    told: int | None = None,
) -> Part:
    """Return a run with ``COUNT`` transactions that were aborted, of which ``violated`` are committed all the same.

    A late request met the transactions ``met``, by default all. ``told`` is what the verdict counts.
    """
    producer = Producer(arm, 0)
    for number in range(COUNT):
        producer.transaction("aborted", ["commit" if number in violated else "abort"] * 2)
    met, entry = range(COUNT) if met is None else met, entry or f"late-{arm}"
    events = [delivered(arm, entry, block, at * S + S // 4, answer, state) for block, at in enumerate(met, 1)]
    count = len(violated) if told is None else told
    checks = [counted(arm, "unaborted", count), counted(arm, "torn", 0), counted(arm, "lost_commit", 0)]
    return part_on_disk(
        home,
        faults={name: [0] * len(met) for name in {entry, f"late-{arm}"}},
        events=events,
        checks=[*checks, counted(arm, "aborted_read", 0)],
        outcomes=producer.outcomes,
        log=producer.log,
        batches=producer.batches,
        transactions=producer.transactions,
    )


@pytest.mark.parametrize(
    ("claim", "part", "arm", "violated", "word"),
    [
        ("kept", kip890.VERSION_2, "reference", [], "confirmed"),
        ("kept", kip890.VERSION_2, "reference", [3], "contradicted"),
        ("exposed-librdkafka", kip890.VERSION_2, "librdkafka", range(COUNT), "confirmed"),
        ("exposed-librdkafka", kip890.VERSION_2, "librdkafka", [], "contradicted"),
        ("exposed-librdkafka", kip890.VERSION_2, "librdkafka", [1, 2, 3, 4, 5], "undecided"),
        ("exposed-reference", kip890.VERSION_1, "reference", range(COUNT), "confirmed"),
        ("exposed-librdkafka-1", kip890.VERSION_1, "librdkafka", range(COUNT), "confirmed"),
    ],
)
def test_words(tmp_path: Path, claim: str, part: str, arm: str, violated: Sequence[int], word: str) -> None:
    parts: Parts = {part: run(tmp_path / part, arm, violated)}
    assert word == judge(kip890.REGISTRATION, claim, parts).word


@pytest.mark.parametrize(("answer", "word"), [("PRODUCER_FENCED", "confirmed"), ("NONE", "contradicted")])
def test_the_answer_to_a_late_commit(tmp_path: Path, answer: str, word: str) -> None:
    parts = {kip890.VERSION_2: run(tmp_path / "run", "reference", answer=answer)}
    assert word == judge(kip890.REGISTRATION, "fenced", parts).word


def test_a_violation_without_a_late_request_counts(tmp_path: Path) -> None:
    """It has another cause, and contradicts that nothing is violated."""
    parts = {kip890.VERSION_2: run(tmp_path / "run", "reference", [6], met=range(6))}
    judged = judge(kip890.REGISTRATION, "kept", parts)
    assert ("contradicted", 6) == (judged.word, judged.ours.n)
    assert "1 violated without an exposure" in judged.why


def both(home: Path, violated: Sequence[int] = (), state: str = "between") -> Part:
    """Return a run of both clients, of which the violated transactions are those of the reference client."""
    made = [run(home / "1", "reference", violated, state=state), run(home / "2", "librdkafka", state=state)]
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in ("outcomes", "log", "batches", "transactions"):
        for number, part in enumerate(made):
            rows = pq.read_table(part.home / name).to_pylist()
            own = {"producer_id": number, "partition": number}
            tables.setdefault(name, []).extend(row | {key: own[key] for key in own if key in row} for row in rows)
    checks = [check for part in made for check in part.run.verdict.checks]
    events = [event for part in made for event in part.events("held_request_delivered")]
    faults = {f"late-{arm}": [0] * COUNT for arm in ("reference", "librdkafka")}
    return part_on_disk(home / "both", faults=faults, events=events, checks=checks, **tables)


def test_a_late_request_between_transactions_is_no_exposure(tmp_path: Path) -> None:
    """The harmless twin is not blamed, and does not count as a test of an open transaction."""
    made = both(tmp_path)
    assert 0 == measure(kip890.REGISTRATION, "exposed-reference", {kip890.VERSION_1: made}).ours.n
    judged = judge(kip890.REGISTRATION, "early", {kip890.EARLY: made})
    assert ("confirmed", 2 * COUNT) == (judged.word, judged.ours.n)


def test_what_the_twin_violates_is_told(tmp_path: Path) -> None:
    assert "contradicted" == judge(kip890.REGISTRATION, "early", {kip890.EARLY: both(tmp_path, [2])}).word


def test_a_late_request_that_is_no_twin_does_not_count(tmp_path: Path) -> None:
    """It met the next transaction, perhaps."""
    judged = judge(kip890.REGISTRATION, "early", {kip890.EARLY: both(tmp_path, state="in_doubt")})
    assert ("undecided", 0) == (judged.word, judged.ours.n)


@pytest.mark.parametrize("state", ["in_doubt", "between"])
def test_a_request_that_met_no_open_transaction_for_sure_is_no_exposure(tmp_path: Path, state: str) -> None:
    parts = {kip890.VERSION_2: run(tmp_path / "run", "reference", state=state)}
    judged = judge(kip890.REGISTRATION, "kept", parts)
    assert ("undecided", 0) == (judged.word, judged.ours.n)


def test_a_run_whose_verdict_counts_otherwise_decides_nothing(tmp_path: Path) -> None:
    parts = {kip890.VERSION_2: run(tmp_path / "run", "reference", [], told=1)}
    judged = judge(kip890.REGISTRATION, "kept", parts)
    assert "undecided" == judged.word
    assert "integrity/unaborted of payments/reference counts 1.0 transactions, the trial 0" in judged.why


def test_an_exposure_without_its_transaction_decides_nothing(tmp_path: Path) -> None:
    parts = {kip890.VERSION_2: run(tmp_path / "run", "reference", met=[*range(6), 90])}
    assert "no transaction of reference was open" in judge(kip890.REGISTRATION, "kept", parts).why


@pytest.mark.parametrize(
    ("outcome", "ends", "asked", "rules"),
    [
        ("committed", ["commit", "commit"], True, set()),
        ("aborted", ["abort", "abort"], False, set()),
        ("failed", ["commit", "commit"], False, {"unaborted"}),
        ("aborted", ["commit", "commit"], True, set()),  # an abort after a commit, which version 1 permits
        ("aborted", ["commit", "abort"], False, {"unaborted", "torn"}),
        ("in_doubt", ["commit", "abort"], True, {"torn"}),
        ("committed", ["abort", "abort"], True, {"lost_commit"}),
        ("committed", ["abort", "commit"], True, {"lost_commit", "torn"}),
        ("committed", ["commit", None], True, {"lost_commit", "torn"}),
        ("aborted", ["abort", None], False, set()),
    ],
)
def test_rules(tmp_path: Path, outcome: str, ends: list[str | None], asked: bool, rules: set[str]) -> None:
    """What is violated follows from the markers in the log, whatever the late request was answered."""
    producer = Producer("reference", 0)
    producer.transaction(outcome, ends, asked=asked)
    made = part_on_disk(
        tmp_path / "run",
        faults={"late-reference": [0]},
        events=[delivered("reference", "late-reference", 1, S // 4, "NONE", "open")],
        checks=[counted("reference", rule, rule in rules) for rule in ("unaborted", "torn", "lost_commit")],
        outcomes=producer.outcomes,
        log=producer.log,
        batches=producer.batches,
        transactions=producer.transactions,
    )
    found = exposures(made, kip890.REFERENCE, kip890.TOPIC, "late-reference")
    assert (rules, "") == ({*found.found[0].violated}, found.doubt)


@pytest.mark.parametrize(
    ("claim", "part", "answer", "stray", "word"),
    [
        ("verified", kip890.VERIFIED, "TRANSACTION_ABORTABLE", False, "confirmed"),
        ("verified", kip890.VERIFIED, "NONE", False, "contradicted"),
        ("verified", kip890.VERIFIED, "TRANSACTION_ABORTABLE", True, "contradicted"),
        ("hanging", kip890.UNVERIFIED, "NONE", True, "confirmed"),
        ("hanging", kip890.UNVERIFIED, "NONE", False, "contradicted"),  # before the marker: a part of its transaction
    ],
)
def test_late_batches(tmp_path: Path, claim: str, part: str, answer: str, word: str, *, stray: bool) -> None:
    """What was written is known by the log: a batch behind the last marker of its epoch."""
    made = run(tmp_path / part, "reference", entry="late", answer=answer, state="between")
    if stray:
        rows = made.batches(kip890.TOPIC)
        late = {**rows[0], "first_offset": 99, "last_offset": 99}
        pq.write_table(pa.Table.from_pylist([*rows, late]), made.home / "batches" / "part-0.parquet")
    assert word == judge(kip890.REGISTRATION, claim, {part: made}).word


def test_the_chart_has_a_bar_for_each_client(tmp_path: Path) -> None:
    parts = {kip890.VERSION_2: run(tmp_path / "run", "librdkafka", [0, 1])}
    made = parts[kip890.VERSION_2]
    assert 2 == exposures(made, kip890.LIBRDKAFKA, kip890.TOPIC, "late-librdkafka").hits
    (plot,) = kip890.plots(parts)
    assert "librdkafka (version 1), cluster of version 2: 2 of 7" in plot.svg
    assert () == kip890.plots({})
