"""Unreadable evidence: the error names file and reason, and no check passes."""

import io
import json
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run, arrow


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


@defect("a Parquet file that was cut off", error=True, says="log-0.parquet")
def truncated_parquet(run: Run) -> None:
    run.files["log/log-0.parquet"] = _parquet(arrow("log", run.frames["log"]))[:-100]


@defect("a column that is missing", error=True, says="offset")
def missing_column(run: Run) -> None:
    run.files["log/log-0.parquet"] = _parquet(arrow("log", run.frames["log"]).drop_columns(["offset"]))


@defect("a column of the wrong type", error=True, says="seq")
def wrong_type(run: Run) -> None:
    table = arrow("log", run.frames["log"])
    text = table.column("seq").cast(pa.string())
    run.files["log/log-0.parquet"] = _parquet(table.set_column(table.schema.get_field_index("seq"), "seq", text))


@defect("a JSON document that was cut off", error=True, says="timeline.json")
def truncated_json(run: Run) -> None:
    run.files["timeline.json"] = b'{"schema_version": 1, "name": "de'


@defect("a phase that ends before it begins", error=True, says="the clock went back")
def phase_backwards(run: Run) -> None:
    run.documents["phases"][2] |= {"start_us": 30, "end_us": 20}


@defect("the phases lie seconds beside the times of the journal", error=True, says="is not that of journal.jsonl")
def phases_shifted(run: Run) -> None:
    for phase in run.documents["phases"]:
        phase["start_us"] -= 3 * S
        phase["end_us"] -= 3 * S


def _sealed(run: Run) -> bytes:
    """Return the journal with checksums, as the harness writes it."""
    bodies = [json.dumps(line).encode()[:-1] for line in run.documents["journal"]]
    return b"".join(body + b', "crc": "%08x"}\n' % zlib.crc32(body) for body in bodies)


@defect("a line of the journal that differs from its checksum", error=True, says="differs from its checksum")
def journal_line_changed(run: Run) -> None:
    run.files["journal.jsonl"] = _sealed(run).replace(b'"t_us": ', b'"t_us": 1', 1)


@defect("a journal with right checksums: no alarm")
def journal_with_checksums(run: Run) -> None:
    run.files["journal.jsonl"] = _sealed(run)


@defect("a file that the manifest names, and nobody has", error=True, says="named in the manifest")
def missing_file(run: Run) -> None:
    run.files["manifest.json"] = b'{"schema_version": 1, "files": ["log/log-0.parquet", "log/log-1.parquet"]}'
