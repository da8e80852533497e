"""The conformance checks with programs that are played here, against a Kafka of lists and a clock that is moved.

Programs and defects on a real cluster: ``tests/contract/test_conformance.py``.
"""

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.errors import ClusterError, WorkloadError
from aftershock.harness.adhoc.conformance import document, table, text
from aftershock.workloads.adapters.conformance import bench as bench_module
from aftershock.workloads.adapters.conformance import commit, consume, produce, transaction
from aftershock.workloads.adapters.conformance.bench import (
    PARTITIONS,
    Bench,
    ExpectedRecord,
    NotExaminable,
    StandingCluster,
    marked_record,
)
from aftershock.workloads.adapters.conformance.checks import CHECKS, Check, Result, examine, judge
from aftershock.workloads.adapters.exec_protocol import BASE64, INTEGERS, ONE_OBJECT, REPORT_RULES, RESERVED, Rule

PAGE = Path(__file__).parents[4] / "docs" / "EXEC.md"
AT = 13
Report = dict[str, Any]
Defect = Callable[[Report], list[Report | str]]


class World:
    """Kafka, the clock and the running program of a test."""

    def __init__(self, defect: str) -> None:
        self.now_s, self.up, self.defect = 0.0, True, defect
        self.logs: dict[int, list[ExpectedRecord]] = defaultdict(list)
        self.committed: dict[str, dict[int, int]] = defaultdict(dict)
        self.hidden: set[tuple[int, int]] = set()
        """Places of records of transactions that are aborted, or open."""

    def monotonic(self) -> float:
        return self.now_s


class Program:
    """A program that follows docs/EXEC.md, except for the world's defect."""

    last_lines = "\n    it hurts"

    def __init__(self, world: World) -> None:
        self.world, self.defect = world, world.defect
        self.lines: list[bytes] = []
        self.pending: list[tuple[float, dict[str, Any]]] = []
        self.positions: dict[int, int] = {}
        self.told: dict[str, Any] = {}
        self.status: int | None = None
        self.open: set[tuple[int, int]] = set()
        """Places of the records of the transaction that is open."""

    def say(self, say: str, **fields: Any) -> None:
        reports: list[Report | str] = DEFECTS.get(self.defect, {}).get(say, lambda report: [report])(
            {"say": say} | fields
        )
        self.lines += [(report if isinstance(report, str) else json.dumps(report)).encode() for report in reports]

    def write(self, line: bytes) -> bool:
        if self.defect == "never-reads":
            return False
        order = json.loads(line)
        match order["do"]:
            case "start":
                self.told = order
                if order["op"] == "consume":
                    self.positions = self.world.committed[order["group"]].copy() if order["group"] else {}
                    starts = dict(order["positions"] or {})
                    if self.defect == "from-the-start":
                        starts = dict.fromkeys(starts, 0)
                    self.positions |= {int(number): offset for number, offset in starts.items()}
                    self.say("assigned", partitions=list(range(PARTITIONS)), member=None)
                self.say("ready", accepts=[] if self.defect == "first-version" else ["transactions", "isolation"])
            case "close":
                if self.defect != "leaves":
                    self.poll()
                if self.defect == "commits-on-close":
                    self.world.hidden -= self.open
                if order_group := self.told.get("group"):
                    self.world.committed[order_group] |= {} if self.defect == "no-commit" else self.positions
                self.say("bye")
                if self.defect != "no-bye":
                    self.status = 4 if self.defect == "status" else 0
            case _:
                assert order["do"] != "commit" or order["group"] in self.told["groups"]  # as docs/EXEC.md promises
                if self.defect == "eager" and "seq" in order:
                    self.say("acked", seq=order["seq"])
                elif self.defect == "eager":
                    self.say("transacted", did=order["do"])
                late_s = 60.0 if self.defect == "late" else 0.0
                self.pending.append((self.world.now_s + self.told["deadline_ms"] / 1000 + late_s, order))
        return True

    def hear(self, wait_s: float) -> list[bytes]:
        if self.status is not None and not self.lines:
            raise WorkloadError("the program has ended")
        if not self.lines:
            self.world.now_s += min(wait_s, 0.1)
            self.poll()
        lines, self.lines = self.lines, []
        return lines

    def poll(self) -> None:
        due, self.pending = self.pending, []
        for deadline_s, order in due:
            if self.world.up:
                self.fulfil(order)
            elif self.world.now_s >= deadline_s and "seq" not in order:
                self.say("transacted", did=order["do"], error="REQUEST_TIMED_OUT", then="repeat")
            elif self.world.now_s >= deadline_s:
                self.say("failed", seq=order["seq"], error="_MSG_TIMED_OUT")
            else:
                self.pending.append((deadline_s, order))
        for number, position in self.positions.items() if self.world.up else ():
            for offset, record in list(enumerate(self.world.logs[number]))[position:]:
                hides = self.told["isolation"] == "read_committed" and self.defect != "reads-all"
                if hides and (number, offset) in self.world.hidden:
                    continue
                mark = dict(record.headers).get("aftershock")
                text_ = None if mark is None else b64encode(mark).decode()
                self.say("record", partition=number, offset=offset, mark=text_, size_bytes=len(record.value))
            self.positions[number] = len(self.world.logs[number])

    def transact(self, do: str) -> None:
        """Carry out an order about the transaction."""
        if do == "commit_transaction" or (do == "abort_transaction" and self.defect == "commits-aborts"):
            self.world.hidden -= self.open
        self.open = set()
        self.say("transacted", did=do)

    def fulfil(self, order: dict[str, Any]) -> None:
        if "seq" not in order:
            self.transact(order["do"])
            return
        seq = order["seq"]
        if order["do"] == "commit":
            offset = 0 if self.defect == "stale" else order["offset"]
            self.world.committed[order["group"]][order["partition"]] = offset
            self.say("acked", seq=seq)
            return
        if self.defect in ("pretends", "points-elsewhere") and seq == AT:
            self.say("acked", seq=seq, partition=9 if self.defect == "pretends" else 0, offset=0)
            return
        key, value = (None if order[name] is None else b64decode(order[name]) for name in ("key", "value"))
        headers = tuple((name, b64decode(content)) for name, content in order["headers"])
        key = b"" if key is None and self.defect == "no-null" else key
        record = ExpectedRecord(key, value or b"", () if self.defect == "no-headers" else headers)
        log = self.world.logs[seq % PARTITIONS]
        log += [record] * (2 if self.defect == "duplicates" and seq == AT else 1)
        if self.told["transaction"] and self.defect != "outside":
            self.open.add((seq % PARTITIONS, len(log) - 1))
            self.world.hidden |= self.open
        self.say("acked", seq=seq, partition=seq % PARTITIONS, offset=len(log) - 1)

    def hang_up(self) -> None:
        self.status = None if self.defect == "outlives" else 1

    def end(self, _: float) -> int:
        return -9 if self.status is None else self.status

    def kill(self) -> int:
        return 0

    def death(self, why: str) -> WorkloadError:
        return WorkloadError(f"the client x gave up: {why}")


class Played(Bench):
    """A bench whose Kafka is the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__([], SimpleNamespace(bootstrap="played:1", down=self.down, up=self.up), 5.0)  # type: ignore[arg-type]

    def down(self) -> None:
        self.world.up = False

    def up(self) -> None:
        self.world.up = True

    def topic(self) -> str:
        self.world.logs.clear()
        self.world.hidden.clear()
        return "t"

    def fill(self, _: str, records: Mapping[int, Sequence[ExpectedRecord]]) -> None:
        for partition, list_ in records.items():
            self.world.logs[partition] += list_

    def fill_in_transactions(self, topic: str, outcomes: Mapping[int, bool]) -> None:
        self.fill(topic, {0: [marked_record(number) for number in outcomes]})
        self.world.hidden = {(0, number) for number, commits in outcomes.items() if not commits}

    def log(self, _: str, *, committed: bool = False) -> list[Any]:
        def message(partition: int, offset: int, record: ExpectedRecord) -> Any:
            fields = {"partition": partition, "offset": offset} | record._asdict() | {"headers": list(record.headers)}
            return SimpleNamespace(**{name: lambda value=value: value for name, value in fields.items()})

        return [
            message(n, at, record)
            for n, log in self.world.logs.items()
            for at, record in enumerate(log)
            if not (committed and (n, at) in self.world.hidden)
        ]

    def commit(self, group: str, _: str, offsets: Mapping[int, int]) -> None:
        self.world.committed[group] |= offsets

    def committed(self, group: str, _: str) -> dict[int, int]:
        return self.world.committed[group]


def changed(**changes: Callable[[Any], Any]) -> Defect:
    return lambda report: [report | {name: change(report[name]) for name, change in changes.items()}]


def swapped(report: Report) -> list[Report | str]:
    """Hold a record of an even offset until after the next record of its partition."""
    if report["offset"] % 2 == 0:
        HELD[report["partition"]] = report
        return []
    return [report, HELD[report["partition"]]]


HELD: dict[int, Report] = {}


def nothing(_: Report) -> list[Report | str]:
    return []


FAILED_REOPEN: dict[str, Report] = {"reopen_producer": {"error": "PRODUCER_FENCED"}}

DEFECTS: dict[str, dict[str, Defect]] = {
    "hangs": {"ready": nothing},
    "gives-up": {"ready": lambda _: [{"say": "died", "why": "no broker"}]},
    "noise": {"acked": lambda report: ["got one", report]},
    "array": {"acked": lambda report: ["[1]", report]},
    "float": {"acked": changed(offset=float)},
    "boolean": {"acked": changed(partition=bool)},
    "text": {"record": changed(size_bytes=str)},
    "negative": {"record": changed(offset=lambda offset: -offset)},
    "misspelt": {"acked": lambda report: [report | {"ofset": 1}]},
    "plain-mark": {"record": changed(mark=lambda _: "=!")},
    "incomplete": {"record": lambda report: [{"say": "record", "offset": report["offset"]}]},
    "twice": dict.fromkeys(("acked", "record"), lambda report: [report, report]),
    "wrong-seq": {"acked": changed(seq=lambda seq: seq + 1)},
    "invents": {"acked": lambda report: [report, {"say": "acked", "seq": 999}] if report["seq"] == 0 else [report]},
    "wrong-offset": {"acked": changed(offset=lambda offset: max(0, offset - 1))},
    "forgets": {"acked": lambda report: [] if report["seq"] == AT else [report]},
    "fails-what-is-written": {"acked": lambda report: [{"say": "failed", "seq": report["seq"], "error": "X"}]},
    "talks-after-bye": {"bye": lambda report: [report, {"say": "ready"}]},
    "no-bye": {"bye": nothing},
    "skips": {"record": lambda report: [report] if report["offset"] % AT else []},
    "swaps": {"record": swapped},
    "wrong-size": {"record": changed(size_bytes=lambda size: size + 1)},
    "no-mark": {"record": changed(mark=lambda _: None)},
    "some-mark": {"record": changed(mark=lambda mark: mark or "Pz==")},
    "unassigned": {"assigned": nothing},
    "twice-transacted": {"transacted": lambda report: [report, report]},
    "silent": {"transacted": lambda report: [] if "error" in report else [report]},
    "refuses": {"transacted": lambda report: [report | {"error": "X"}]},
    "cannot-reopen": {"transacted": lambda report: [report | FAILED_REOPEN.get(report["did"], {})]},
    "half-assigned": {"assigned": changed(partitions=lambda held: held[:2])},
}

BURST, READ, COMMITS, ENDS = (
    produce.acks_a_burst_once_at_its_offsets,
    consume.reads_from_start_positions,
    commit.acks_and_keeps_commits,
    transaction.commits_and_aborts_what_it_is_ordered,
)
B = bench_module
CAUGHT: list[tuple[str, Check, str, Rule]] = [
    ("hangs", BURST, "the client does not say ready within 5 s", B.READY),
    ("gives-up", BURST, "the client x gave up: no broker", B.DIED),
    ("never-reads", BURST, "does not read its orders", B.ALWAYS_READ),
    ("noise", BURST, "'got one'", ONE_OBJECT),
    ("array", BURST, "'[1]'", ONE_OBJECT),
    ("float", BURST, '(field offset of acked: Input should be a valid integer): \'{"say": "acked", "seq": 0', INTEGERS),
    ("boolean", BURST, "field partition of acked", INTEGERS),
    ("misspelt", BURST, "field ofset of acked", REPORT_RULES["acked"]),
    ("twice", BURST, "reported the order 0 twice", B.ONCE),
    ("wrong-seq", BURST, "does not report all of 300 records", B.ONCE),
    ("invents", BURST, "seq 999, which was not ordered", B.ONCE),
    ("wrong-offset", BURST, "where the log has another record", produce.ACKED),
    ("fails-what-is-written", BURST, "order 0 as failed (X), although all brokers were up", B.FAILED),
    ("forgets", BURST, "does not report all of 300 records", B.ONCE),
    ("pretends", BURST, "acked record 13 at offset 0 of partition 9, where the log has no record", produce.ACKED),
    ("points-elsewhere", BURST, "where the log has another record", produce.ACKED),
    ("duplicates", BURST, "the log of the topic has 301 records", produce.UNCHANGED),
    ("no-null", BURST, "where the log has another record", produce.UNCHANGED),
    ("no-headers", BURST, "where the log has another record", produce.UNCHANGED),
    ("no-bye", BURST, "does not say bye after close", B.CLOSE),
    ("status", BURST, "did not exit with status 0 within 5 s: 4", B.CLOSE),
    ("eager", produce.acks_nothing_during_an_outage, "acked order 0 while every broker was down", B.NEVER_GUESS),
    ("late", produce.keeps_deadlines, "does not fail all records that have a deadline of 2000 ms", B.ONCE),
    ("leaves", produce.reports_open_records_on_close, "does not report every record before bye", B.ONCE),
    ("outlives", produce.exits_with_the_worker, "still runs 5 s after the end", B.END_OF_INPUT),
    ("fails-what-is-written", produce.reports_a_record_that_is_too_large, "beside one of 3 MiB failed", B.FAILED),
    ("hangs", READ, "does not say ready", B.READY),
    ("text", READ, "field size_bytes of record", INTEGERS),
    ("negative", READ, "field offset of record: Input should be greater than or equal to 0", REPORT_RULES["record"]),
    ("plain-mark", READ, "field mark of record: Value error", BASE64),
    ("incomplete", READ, "field partition of record: Field required", REPORT_RULES["record"]),
    ("twice", READ, "twice, although nothing was reassigned", consume.IN_ORDER),
    ("skips", READ, "does not report every record of the topic", consume.IN_ORDER),
    ("swaps", consume.continues_after_an_outage, "after a later offset of the same partition", consume.IN_ORDER),
    ("wrong-size", READ, "bytes; the client reported", consume.MARK),
    ("no-mark", READ, "the client reported the mark None", consume.MARK),
    ("from-the-start", READ, "(0, 0), which it should not have read", consume.EVERY_PARTITION),
    ("unassigned", READ, "ready before its assigned partitions", consume.ASSIGNED),
    ("half-assigned", READ, "reports as assigned only [0, 1]", consume.ASSIGNED),
    ("some-mark", consume.reports_foreign_records, "has the mark None", consume.MARK),
    ("no-commit", consume.continues_from_committed_offsets, "but the committed offsets are", consume.COMMIT),
    ("outlives", consume.exits_with_the_worker, "still runs", B.END_OF_INPUT),
    ("stale", COMMITS, "as the last commit of group", commit.IN_ORDER),
    ("eager", commit.acks_nothing_during_an_outage, "acked order 0 while every broker was down", B.NEVER_GUESS),
    ("late", commit.keeps_deadlines, "does not fail all commits", B.ONCE),
    ("outlives", commit.exits_with_the_worker, "still runs", B.END_OF_INPUT),
    ("commits-aborts", ENDS, "misses 0 records of committed transactions, and gets 20 of", transaction.COVERS),
    ("outside", ENDS, "and gets 20 of transactions that were not to be committed", transaction.COVERS),
    ("duplicates", ENDS, "and gets 1 of transactions that were", transaction.COVERS),
    ("twice-transacted", ENDS, "reported ['begin_transaction', 'begin_transaction']", transaction.EXACTLY_ONCE),
    ("refuses", ENDS, "begin_transaction as failed (X), although all brokers were up", transaction.EXACTLY_ONCE),
    ("outside", transaction.ends_what_it_has_left_open, "and gets 40 of", transaction.LEFT_OPEN),
    ("cannot-reopen", transaction.ends_what_it_has_left_open, "as failed (PRODUCER_FENCED)", transaction.REOPEN),
    (
        "eager",
        transaction.commits_nothing_during_an_outage,
        "a commit as carried out while every broker",
        B.NEVER_GUESS,
    ),
    ("silent", transaction.commits_nothing_during_an_outage, "does not report commit_transaction", transaction.GIVE_UP),
    ("commits-on-close", transaction.closes_with_an_open_transaction, "and gets 20 of", transaction.COVERS),
    ("no-bye", transaction.closes_with_an_open_transaction, "does not say bye after close", B.CLOSE),
    ("reads-all", transaction.reads_what_its_isolation_allows, "reported the aborted record 1", transaction.FOLLOWS),
]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Played]:
    """Return a bench for a program with a defect."""

    def bench(defect: str) -> Played:
        world = World(defect)
        monkeypatch.setattr(bench_module, "time", world)
        monkeypatch.setattr(bench_module, "Child", lambda *_, **__: Program(world))
        return Played(world)

    return bench


@pytest.mark.parametrize("op", ["produce", "consume", "commit", "transaction"])
def test_a_correct_program_passes(play: Callable[[str], Played], op: str) -> None:
    """A program without defect passes each check of each operation."""
    bench = play("none")
    for check in CHECKS[op]:
        assert ("passed", "") == ((result := judge(op, check, bench)).outcome, result.reason)


def test_a_program_gets_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start order of the checks has the settings of the command."""
    program = Program(world := World("none"))
    monkeypatch.setattr(bench_module, "time", world)
    monkeypatch.setattr(bench_module, "Child", lambda *_, **__: program)
    bench = Bench(["x"], StandingCluster("broker.example:1"), 1, {"linger.ms": 5})
    for assignment in (bench.producing("t"), bench.consuming("t"), bench.committing("t")):
        with bench.session(assignment):
            assert {"linger.ms": 5} == program.told["settings"]


@pytest.mark.parametrize(("defect", "check", "told", "rule"), CAUGHT, ids=[f"{c[0]}-{c[1].__name__}" for c in CAUGHT])
def test_a_defect_is_reported_with_the_rule_that_it_breaks(
    play: Callable[[str], Played], defect: str, check: Check, told: str, rule: Rule
) -> None:
    """The check says what the program did, the rule of docs/EXEC.md, and what the program wrote to standard error."""
    result = judge("op", check, play(defect))
    assert "failed" == result.outcome
    assert told in result.reason
    assert str(rule) == result.rule
    assert "standard error:\n    it hurts" in result.reason


def test_each_defect_is_used() -> None:
    assert set(DEFECTS) <= {defect for defect, *_ in CAUGHT} | {"talks-after-bye"}


def test_a_program_that_offers_no_transactions_is_not_examined(play: Callable[[str], Played]) -> None:
    results = list(examine(play("first-version"), ["transaction"]))
    assert {"skipped"} == {result.outcome for result in results}
    assert {'the client has no "accepts": ["transactions"] in its report ready'} == {r.reason for r in results[:-1]}


def test_a_program_that_talks_after_bye_is_reported(play: Callable[[str], Played]) -> None:
    """Its line is shown."""
    result = judge("produce", produce.reports_open_records_on_close, play("talks-after-bye"))
    assert 'wrote b\'{"say": "ready"}\' after bye' in result.reason
    assert str(B.AFTER_BYE) == result.rule


RULES = [
    *(
        rule
        for module in (bench_module, produce, consume, commit, transaction)
        for rule in vars(module).values()
        if isinstance(rule, Rule)
    ),
    *(ONE_OBJECT, INTEGERS, BASE64, RESERVED),
    *REPORT_RULES.values(),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule_is_a_sentence_of_the_page(rule: Rule) -> None:
    """Word for word, in the section that it names."""
    section = PAGE.read_text().split(f"## {rule.section}\n")[1].split("\n## ")[0]
    assert rule.sentence in " ".join(section.split())


def test_outage_checks_are_skipped_on_a_given_cluster(
    play: Callable[[str], Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that need an outage are skipped on the user's cluster, and are no failures."""
    bench = play("none")
    monkeypatch.setattr(bench.cluster, "down", StandingCluster("theirs:1").down)
    results = list(examine(bench, ["produce", "consume", "commit"]))
    skipped = {(result.operation, result.check) for result in results if result.outcome == "skipped"}
    assert {
        ("produce", "acks_nothing_during_an_outage"),
        ("produce", "keeps_deadlines"),
        ("consume", "continues_after_an_outage"),
        ("commit", "acks_nothing_during_an_outage"),
        ("commit", "keeps_deadlines"),
    } == skipped
    with pytest.raises(NotExaminable, match="your own cluster theirs:1"):
        bench.cluster.down()


def test_a_broken_cluster_is_not_the_programs_failure(
    play: Callable[[str], Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the cluster ends the checks."""
    bench = play("none")
    monkeypatch.setattr(bench_module, "_PATIENCE_S", 0.2)
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1 did not create the topic t .*check the address"):
        StandingCluster("127.0.0.1:1").create("t")
    monkeypatch.setattr(bench, "topic", lambda: StandingCluster("127.0.0.1:1").create("t"))
    with pytest.raises(ClusterError):
        judge("produce", BURST, bench)


def test_the_output_fits_80_columns(play: Callable[[str], Played], monkeypatch: pytest.MonkeyPatch) -> None:
    """Text lines, and a table and a JSON document with each operation's counts."""
    monkeypatch.setenv("COLUMNS", "80")
    results = [*examine(play("float"), ["produce"]), Result("commit", "c", "The ``c``\x1b.", "skipped", "no")]
    lines = [line for result in results for line in text(result).splitlines()]
    assert max(map(len, lines)) <= 80
    assert "FAILED  produce: The client acks each record once, and Kafka's log has the" == lines[0]
    assert "skipped commit: The `c`" in lines[-2]
    assert "\x1b" not in lines[-2]
    assert ["operation     passed  failed skipped  result", "commit             0       0       1  passes"] == [
        table(results).splitlines()[0],
        table(results).splitlines()[-1],
    ]
    failed = [result for result in results if result.outcome == "failed"]
    assert 1 < len(failed)
    assert f"produce            1{len(failed):8}       0  fails" in table(results)
    told = json.loads(json.dumps(document(results, ["x"], "h:1")))
    assert {"produce": "fails", "commit": "passes"} == {op: entry["result"] for op, entry in told["operations"].items()}
    assert {"check", "requirement", "outcome", "reason", "rule"} == told["operations"]["produce"]["checks"][0].keys()
