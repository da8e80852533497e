"""Evidence at a URI of any Hadoop filesystem: read and refused as in a folder."""

import shutil
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.tables import columns, tables
from aftershock.tests.unit.results.evidence_factory import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def values(evidence: Evidence) -> list[object]:
    """Return all fields except those with locations."""
    skipped = ("home", "parquet")
    return [getattr(evidence, field.name) for field in fields(evidence) if field.name not in skipped]


def test_evidence_at_a_uri_equals_that_in_a_folder(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """The URI has spaces, percent signs and glob characters; results are written to a local folder."""
    home = made.write(tmp_path / "a b%20c[x]{y}" / "run")
    (home / "outcomes" / ".part-9.parquet.inprogress").write_text("half")
    near, far = read(home, columns()), read_at(spark, f"file:{home}/", tmp_path / "out", columns())
    assert values(near) == values(far)
    assert {name: [Path(part).name for part in parts] for name, parts in near.parquet.items()} == {
        name: [Path(part).name for part in parts] for name, parts in far.parquet.items()
    }
    assert far.home == tmp_path / "out" / "20261121-101500-demo-7"
    assert [tables(spark, [one]).outcomes.count() for one in (near, far)] == [18_000, 18_000]


def test_evidence_at_a_uri_is_refused_in_the_same_words(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """Each broken file gives the same message for a URI and a folder, except for details of the Parquet reader."""
    whole = made.write(tmp_path / "whole")
    spoilt = {name: Path(shutil.copytree(whole, tmp_path / name)) for name in ("cut", "column", "kind", "gone", "json")}
    part = "outcomes/produce-0.parquet"
    (spoilt["cut"] / part).write_bytes((whole / part).read_bytes()[:-100])
    table = pq.read_table(whole / part)
    pq.write_table(table.drop_columns(["seq"]), spoilt["column"] / part)
    at = table.column_names.index("seq")
    pq.write_table(table.set_column(at, "seq", table["seq"].cast("string")), spoilt["kind"] / part)
    (spoilt["gone"] / part).unlink()
    (spoilt["json"] / "timeline.json").write_text("{")
    for name, home in spoilt.items():
        with pytest.raises(EvidenceError) as near:
            read(home, columns())
        with pytest.raises(EvidenceError) as far:
            read_at(spark, f"file:{home}", tmp_path / "out", columns())
        told = str(far.value).replace(f"file:{home}", str(home))
        assert told.split("(")[0] == str(near.value).split("(")[0], name
        assert "\n" not in told


def test_an_unreachable_uri_is_an_error(spark: "SparkSession", tmp_path: Path) -> None:
    """A missing folder, a filesystem without its jars, and a path as run id give URI and reason, without stack
    trace.
    """
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text(
        '{"run_id": "../other", "status": "complete", "plan": "p", "started_at": "2026-11-21T02:00:00"}'
    )
    told = {}
    for uri in (f"file:{tmp_path}/none", "s3a://bucket/run", "foo:/run", f"file:{tmp_path}/odd"):
        with pytest.raises(EvidenceError) as error:
            read_at(spark, uri, tmp_path / "out", columns())
        told[uri] = str(error.value)
    assert all(text.startswith(uri) and "\n" not in text for uri, text in told.items())
    says = ["does not exist", "S3AFileSystem not found", 'No FileSystem for scheme "foo"', "can't name a run"]
    assert all(what in text for what, text in zip(says, told.values(), strict=True))
