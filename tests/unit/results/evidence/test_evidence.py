"""Broken evidence gives an error that names the file; partial evidence is read."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence import files
from aftershock.results.evidence.evidence import REQUIRED, Objective, Phase, read
from aftershock.results.evidence.phases import RUN, merged, windows_of
from aftershock.results.evidence.schema import CHECKS, TABLES
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.model.check import Check, Verdict
from aftershock.results.spark.tables import columns
from aftershock.tests.mutated_plans import cpu_limit
from aftershock.tests.unit.results.evidence_factory import Made, unfinish


@pytest.fixture
def home(made: Made, tmp_path: Path) -> Path:
    return made.write(tmp_path / "run")


def test_a_whole_run_is_read(home: Path) -> None:
    """The result has clients, phases, SLOs with positions, and parts of the tables."""
    evidence = read(home, columns())
    assert [client.key for client in evidence.clients] == ["orders/baseline", "orders/patient"]
    assert evidence.producers == {0: "orders/baseline", 1: "orders/patient"}
    assert evidence.complete
    assert evidence.objectives[0].at == "demo.yaml:20:5"
    assert [part.name for part in evidence.parquet["outcomes"]] == ["consume-0.parquet", "produce-0.parquet"]
    assert evidence.window_of("kill-1") == Phase("fault", "kill-1", 26_000_000, 34_000_000)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without(column: str) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pq.read_table(path).drop_columns([column]), path)


def retyped(column: str, kind: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        table = pq.read_table(path)
        at = table.column_names.index(column)
        pq.write_table(table.set_column(at, column, table[column].cast(kind)), path)

    return change


def at_time(done_us: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rows = pq.read_table(path).to_pylist()
        pq.write_table(pa.Table.from_pylist([rows[0] | {"done_us": done_us}, *rows[1:]], pq.read_schema(path)), path)

    return change


def told(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("outcomes/produce-0.parquet", cut, "truncated or not Parquet"),
        ("log/part-0.parquet", without("seq"), "column 'seq' is missing"),
        ("outcomes/consume-0.parquet", retyped("seq", "string"), "column 'seq' is string, not bigint"),
        ("outcomes/consume-0.parquet", at_time(1 << 60), "column 'done_us' has a time beyond 2^51 us"),
        ("metrics/part-0.parquet", Path.unlink, "named in the manifest, but missing"),
        ("run.json", Path.unlink, "missing"),
        ("run.json", told("{"), "not readable as JSON"),
        ("run.json", told("[]"), "not a JSON object"),
        ("run.json", told("{}"), "'run_id'"),
        ("timeline.json", told('{"workloads": [{}]}'), "'workloads.0.name'"),
        ("phases.json", told('[{"name": "steady"}]'), "'0.fault'"),
        (
            "phases.json",
            told('[{"name": "steady", "fault": null, "start_us": 2, "end_us": 1}]'),
            "ends before it begins",
        ),
        ("journal.jsonl", told('{"t_us": 1}\n{"t_us": 2}\n'), "'fault'"),
        ("events.jsonl", told('{"t_us": 1\n{"t_us": 2}\n'), ":1: not JSON"),
    ],
)
def test_a_broken_file_is_named(home: Path, name: str, spoil: Callable[[Path], None], says: str) -> None:
    """The error has the problem, the file and a remedy."""
    spoil(home / name)
    with pytest.raises(EvidenceError) as error:
        read(home, columns())
    assert str(home / name) in str(error.value)
    assert says in str(error.value)
    assert "run the plan again" in str(error.value) or "not one of" in str(error.value) or "damaged" in str(error.value)


@pytest.mark.parametrize("name", ["run.json", "timeline.json", "manifest.json"])
@pytest.mark.parametrize("version", [2, "2"])
def test_a_run_of_a_newer_schema_version_is_refused(home: Path, name: str, version: object) -> None:
    """The error names the file, both versions and a remedy."""
    document = json.loads((home / name).read_text()) | {"schema_version": version}
    (home / name).write_text(json.dumps(document))
    with pytest.raises(EvidenceError) as error:
        read(home, columns())
    says = f"schema version {version!r} is unknown, this Aftershock reads up to 1; upgrade Aftershock"
    assert f"{home / name}: {says}" == str(error.value)


@pytest.mark.parametrize(("name", "newest"), [("verdict.json", 1), ("analysis.json", 2), ("run.json", 1)])
def test_newer_documents_of_a_judged_run_are_refused(home: Path, name: str, newest: int) -> None:
    """Reports, stories and comparisons read only the stored documents."""
    run = json.loads((home / "run.json").read_text())
    (home / "verdict.json").write_text(Verdict(run["run_id"], "demo", 7, (), ()).text())
    tables: dict[str, list[object]] = {"distributions": [], "gaps": [], "recoveries": []}
    (home / "analysis.json").write_text(json.dumps({"schema_version": 2, **tables}))
    document = json.loads((home / name).read_text())
    (home / name).write_text(json.dumps(document | {"schema_version": newest + 1}))
    with pytest.raises(EvidenceError, match=f"{name}: schema version {newest + 1} is unknown.*; upgrade Aftershock"):
        read_judged_run(home)
    del document["schema_version"]
    (home / name).write_text(json.dumps(document))
    assert read_judged_run(home).run_id == run["run_id"]


def test_the_manifest_names_no_file_outside_the_run(home: Path, tmp_path: Path) -> None:
    """A path outside the run directory is refused, even if the file exists."""
    stray = tmp_path / "stray.parquet"
    stray.write_bytes((home / "outcomes/produce-0.parquet").read_bytes())
    manifest = json.loads((home / "manifest.json").read_text())
    manifest["files"].append("outcomes/../../stray.parquet")
    (home / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EvidenceError, match=r"stray\.parquet' is not a path inside the run directory"):
        read(home, columns())


def test_a_torn_last_line_is_ignored(home: Path) -> None:
    """The writer was killed in the middle of a line; the lines before it are read."""
    path = home / "events.jsonl"
    whole = len(read(home, columns()).events)
    path.write_text(path.read_text() + '{"t_us": 5, "arm"')
    assert len(read(home, columns()).events) == whole


def test_expectations_of_a_test_are_objectives(home: Path) -> None:
    """The lines of expectations.jsonl follow the plan's SLOs, each with its position in the test."""
    before = read(home, columns()).objectives
    lines = '{"text": "lost == 0", "at": "tests/test_x.py:12"}\n\n{"text": "duplicate == 0", "gate": "report"}'
    told(lines)(home / "expectations.jsonl")
    added = (Objective("lost == 0", "tests/test_x.py:12"), Objective("duplicate == 0", None, gate=False))
    assert read(home, columns()).objectives == (*before, *added)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"text": "lost == 0"}\n{"text": "lo', ":2: not JSON"),
        ('{"text": "lost == 0"}\n\n["lost == 0"]\n', ":3: not a JSON object"),
        ('{"at": "tests/test_x.py:12"}\n', ':1: the line is not {"text"'),
        ('{"text": "lost == 0", "at": 12}\n', ':1: the line is not {"text"'),
        ('{"text": "lost == 0", "gate": "no"}\n', ':1: the line is not {"text"'),
        ('{"text": "lost = 0"}\n', ":1: the text is not an SLO"),
    ],
)
def test_an_invalid_expectation_is_an_error(home: Path, text: str, says: str) -> None:
    """A torn line, another shape or an invalid SLO is an error with file and line, so that no check is omitted."""
    told(text)(home / "expectations.jsonl")
    with pytest.raises(EvidenceError) as error:
        read(home, columns())
    assert f"{home / 'expectations.jsonl'}{says}" in str(error.value)


def test_newer_columns_are_ignored_and_narrower_ones_accepted(home: Path) -> None:
    """An additional column and an int32 instead of a bigint are readable."""
    path = home / "log/part-0.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("batch_size", table["partition"]), path)
    retyped("offset", "int32")(path)
    assert read(home, columns()).parquet["log"] == (path,)


def test_columns_of_later_versions_may_be_missing(home: Path) -> None:
    """Older files need only the columns of the public contract; a later column is checked if it exists."""
    path = home / "log/part-0.parquet"
    wanted = columns() | {"log": columns()["log"] | {"since_now": "bigint"}}
    without("error")(path)
    assert read(home, wanted).parquet["log"] == (path,)
    table = pq.read_table(path)
    pq.write_table(table.append_column("since_now", table["topic"]), path)
    with pytest.raises(EvidenceError, match="column 'since_now' is string, not bigint"):
        read(home, wanted)


def test_a_file_that_a_move_had_replaced_is_left_out(home: Path) -> None:
    """A run killed by a power failure in the middle of a move: each row is read once."""
    unfinish(home)
    for part in sorted((home / "outcomes").iterdir()):
        for name in ("w~00000-00001", "w~00000-00003", "w~00002", "w~00004", "v", "v~00005"):
            (part.parent / f"part-{name}.parquet").write_bytes(part.read_bytes())
        part.unlink()
    names = {Path(part).name for part in read(home, columns()).parquet["outcomes"]}
    assert {"part-w~00000-00003.parquet", "part-w~00004.parquet", "part-v.parquet"} == names


def test_a_run_that_did_not_finish_is_read(home: Path) -> None:
    """Without manifest, phases and log, existing files are read; temporary files are ignored."""
    unfinish(home)
    for name in ("phases.json", "journal.jsonl", "log/part-0.parquet"):
        (home / name).unlink()
    (home / "outcomes" / ".part-9.parquet.inprogress").write_text("half")
    evidence = read(home, columns())
    assert not evidence.complete
    assert (evidence.phases, evidence.journal, evidence.parquet["log"]) == ((), (), ())
    assert len(evidence.parquet["outcomes"]) == 2


def test_windows_overlap_and_unite() -> None:
    """`fault` is the union of the faults' windows, and `run` is everything after warm-up."""
    phases = [
        Phase("warmup", None, 0, 5),
        Phase("steady", None, 5, 10),
        Phase("fault", "a", 10, 20),
        Phase("fault", "b", 15, 25),
        Phase("recovery", None, 25, 30),
        Phase("fault", "c", 30, 30),
    ]
    windows = windows_of(phases)
    assert windows["fault"] == ((10, 25),)
    assert (windows["fault/a"], windows["fault/b"], windows["fault/c"]) == (((10, 20),), ((15, 25),), ())
    assert windows[RUN] == ((5, 30),)
    assert merged([(5, 6), (1, 2), (2, 3)]) == ((1, 3), (5, 6))


def test_the_contract_of_the_tables_is_declared_once() -> None:
    """The required columns equal design 5.3 in order; the columns of checks are the fields of a check."""
    assert list(REQUIRED["outcomes"]) == [
        "workload", "arm", "client", "op", "producer_id", "seq", "topic", "topic_id", "partition", "offset", "group",
        "member", "leader_epoch", "broker_id", "broker_rack", "client_rack", "high_watermark", "intended_us",
        "deadline_us", "sent_us", "done_us", "attempts", "bytes", "status", "error",
    ]  # fmt: skip
    names = {"outcomes", "log", "replicas", "offsets", "metrics", "transactions", "batches"}
    assert set(TABLES) == set(REQUIRED) == names
    for table, names in REQUIRED.items():
        assert list(columns()[table])[: len(names)] == list(names), "what came later stands behind"
    assert set(CHECKS.fieldNames()) == set(Check.__dataclass_fields__)


def test_foreign_json_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(files, "DOCUMENT_BYTES_MAX", 1000)
    line = b'{"t_us": 1, "event": "' + b"x" * 76 + b'"}'
    assert len(files.lines("events.jsonl", line + b"\n" + line)) == 2
    with pytest.raises(EvidenceError, match=r"events\.jsonl:2: the line has 101 bytes, more than the 100"):
        files.lines("events.jsonl", line + b"\n" + line + b" \n")
    assert files.document("phases.json", b" " * 998 + b"[]") == []
    with pytest.raises(EvidenceError, match=r"phases\.json: 1001 bytes are more than the 1000"):
        files.document("phases.json", b" " * 999 + b"[]")


def test_deeply_nested_json_is_an_error(home: Path) -> None:
    """Python's parser recurses; the last line of a JSONL file counts as incomplete instead."""
    for name in ("events.jsonl", "phases.json"):
        whole = (home / name).read_text()
        (home / name).write_text("[" * 99_999 + "\n")
        with pytest.raises(EvidenceError, match=name):
            read(home, {})
        (home / name).write_text(whole)
    (home / "events.jsonl").write_text('{"t_us": 1, "event": "x"}\n' + "[" * 99_999)
    assert len(read(home, {}).events) == 1


@pytest.mark.parametrize("version", [True, 0, -1, None])
def test_a_schema_version_that_never_existed_is_refused(home: Path, version: object) -> None:
    document = json.loads((home / "run.json").read_text()) | {"schema_version": version}
    (home / "run.json").write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match="is unknown"):
        read(home, columns())


def test_files_of_many_moves_are_selected_in_one_pass() -> None:
    """40 000 closed files of one worker, each second one replaced by a longer file, and stale open files."""
    closed = [f"outcomes/part-w~{2 * move:05}-{2 * move:05}.parquet" for move in range(20_000)]
    longer = [f"outcomes/part-w~{2 * move:05}-{2 * move + 1:05}.parquet" for move in range(20_000)]
    stale = [f"outcomes/part-w~{segment:05}.parquet" for segment in (7, 39_999)]
    last, other = "outcomes/part-w~40000.parquet", "outcomes/part-v.parquet"
    with cpu_limit():
        found = files.current_parts([*closed, *longer, *stale, last, other, "log/part-0.parquet"])
    assert found == [*longer, last, other, "log/part-0.parquet"]
