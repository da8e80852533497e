"""The same evidence gives the same verdict, byte for byte, in Sail and on four kinds of Spark masters."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.results.evidence.pack import SUFFIX, unpack
from aftershock.results.judge import judge
from aftershock.tests.unit.results.evidence_factory import Made
from aftershock.tests.unit.results.spark_servers import connect_server, standalone

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


pytestmark = [pytest.mark.nightly, pytest.mark.spark]

PACKS = Path(__file__).parents[4] / "docs" / "evidence" / "packs"
WRITTEN = ("verdict.json", "analysis.json", "junit.xml", "silver/latency.parquet", "gold/checks.parquet")


@contextmanager
def master(kind: str, folder: Path) -> Iterator[str]:
    """Yield a server of this kind while the block lasts, or a master URL that needs no server."""
    servers: dict[str, AbstractContextManager[str]] = {
        "standalone": standalone(folder, workers=2),
        "connect": connect_server(folder),
    }
    with servers.get(kind, nullcontext(kind)) as url:
        yield url


@pytest.fixture(scope="module")
def spoiled(made: Made) -> Made:
    """Return a run with a lost, a duplicated, two swapped and two doubtful records, so that every exact path is
    used.
    """
    worse = made.copy()
    gone, twice = worse.consume[1000], worse.consume[2000]
    worse.consume.remove(gone)
    worse.consume.append(dict(twice))
    worse.log[500]["seq"], worse.log[501]["seq"] = worse.log[501]["seq"], worse.log[500]["seq"]
    for row in worse.produce[40:42]:
        row.update(status="in_doubt", done_us=None)
    return worse


@pytest.fixture(scope="module")
def local_verdict(spoiled: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judge the run with Sail."""
    home = spoiled.write(tmp_path_factory.mktemp("local_verdict") / "run")
    assert judge(home, "sail", lambda _: None).exit_code == 1
    return home


@pytest.mark.parametrize("kind", ["local[2]", "local-cluster[2,1,1024]", "standalone", "connect"])
def test_the_verdict_is_the_same_on_every_master(
    kind: str, local_verdict: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, executors in processes, a standalone master with two workers, and a Spark Connect server."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    there = Path(
        shutil.copytree(local_verdict, tmp_path / "run", ignore=shutil.ignore_patterns(*WRITTEN, "silver", "gold"))
    )
    with master(kind, tmp_path / "servers") as url:
        judge(there, url, lambda _: None)
    for name in WRITTEN:
        assert (local_verdict / name).read_bytes() == (there / name).read_bytes(), name


@pytest.mark.parametrize("name", ["acks-lost", "acks1-lagging", "demo"])
def test_sail_and_spark_judge_a_stored_run_alike(name: str, tmp_path: Path) -> None:
    """Records at one place, nulls and means are what engines treat differently."""
    verdicts = []
    for engine in ("sail", "local[2]"):
        (tmp_path / engine).mkdir()
        home = unpack(PACKS / f"{name}{SUFFIX}", tmp_path / engine)
        judge(home, engine, lambda _: None)
        verdicts.append([(home / one).read_bytes() for one in WRITTEN])
    assert verdicts[0] == verdicts[1]
