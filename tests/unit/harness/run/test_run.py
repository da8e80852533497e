"""End of a run: run.json holds every cause of failure, and the user gets a clear error."""

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from docker.errors import APIError
from requests.exceptions import ConnectionError as NoConnection
from rich.console import Console
from urllib3.exceptions import ReadTimeoutError

from aftershock.errors import AftershockError, ClusterError, EngineError, EvidenceError, WorkloadError
from aftershock.harness.run.drive import _watch_processes, record_outcome
from aftershock.harness.run.job import prepare
from aftershock.harness.run.live_run import race
from aftershock.harness.run.progress import Progress
from aftershock.harness.safety.rundir import RunDir


@pytest.fixture
def home(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "demo", 0, "aftershock run demo")


def ended(home: RunDir, error: BaseException | None) -> tuple[str, str | None]:
    """Return status and reason in run.json after a live half that raised ``error``."""
    try:
        with record_outcome(home, Progress(Console(file=io.StringIO()))):
            if error:
                raise error
    except (AftershockError, KeyboardInterrupt, ValueError):
        pass
    facts = json.loads((home.path / "run.json").read_text())
    return facts["status"], facts["why"]


def test_a_completed_run_has_a_manifest(home: RunDir) -> None:
    assert ("complete", None) == ended(home, None)
    assert (home.path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (ClusterError("k1 died"), "failed", "k1 died"),
        (OSError(28, "No space left on device"), "failed", "No space left"),
        (ValueError("a bug"), "failed", "a bug"),
    ],
)
def test_a_failed_run_has_a_reason_and_no_manifest(home: RunDir, error: BaseException, status: str, says: str) -> None:
    """After an interrupt, an error of ours, a full disk or a bug."""
    told, why = ended(home, error)
    assert status == told
    assert says in (why or "")
    assert not (home.path / "manifest.json").exists()


def test_a_full_disk_is_a_clear_error(home: RunDir) -> None:
    """The error names the cause and the remedy."""
    with pytest.raises(EvidenceError, match=r"No space left.*choose another --out"):
        with record_outcome(home, Progress(Console(file=io.StringIO()))):
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (NoConnection("refused"), EngineError, "the Docker engine stopped answering"),
        (ReadTimeoutError(cast("Any", None), "/", "no answer"), EngineError, "the Docker engine stopped answering"),
        (
            APIError("500", explanation="driver failed"),
            EngineError,
            "the Docker engine refused a request: driver failed",
        ),
        (OSError(122, "Disk quota exceeded"), EvidenceError, "Disk quota exceeded; free disk space"),
        (OSError(13, "Permission denied", "/x"), EvidenceError, "can't read or write /x: Permission denied"),
        (OSError(5, "Input/output error"), EvidenceError, r"can't read or write .*demo.*: Input/output error"),
        (ConnectionResetError(104, "reset by peer"), ConnectionResetError, "reset by peer"),
    ],
)
def test_only_a_full_disk_is_called_a_full_disk(
    home: RunDir, error: Exception, kind: type[Exception], says: str
) -> None:
    """Errors of the Docker SDK's HTTP client are OSErrors too."""
    with pytest.raises(kind, match=says) as raised:
        with record_outcome(home, Progress(Console(file=io.StringIO()))):
            raise error
    assert ("free disk space" in str(raised.value)) == ("quota" in says)
    assert [f"run: {home.path}"] == raised.value.__notes__
    assert "failed" == RunDir.open(home.path).facts["status"]


async def test_work_is_cancelled_when_a_client_dies() -> None:
    """The death is raised at once."""
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def dying() -> NoReturn:
        raise WorkloadError("it died")

    with pytest.raises(WorkloadError, match="it died"):
        await race(dying(), work())
    assert cancelled.is_set()


async def test_finished_work_does_not_wait_for_the_watch() -> None:
    """A watch that never returns does not delay the result; an error of the work itself is raised."""

    async def watch() -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    async def work(error: Exception | None) -> int:
        if error:
            raise error
        return 7

    assert 7 == await race(watch(), work(None))
    with pytest.raises(ClusterError):
        await race(watch(), work(ClusterError("gone")))


PLAN = """
name: test
topics: [{{name: orders, partitions: 1, replication: 1}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 1/s}}}}]
cluster: {{wire_proxy: {asked}}}
faults: [{fault}]
"""


@pytest.mark.parametrize(
    ("asked", "fault", "has_one"),
    [
        ("false", "{at: 0s, for: 1s, kind: drop_response, api: Produce}", True),
        ("false", "{at: 0s, for: 4s, kind: kill, broker: 1}", False),
        ("true", "", True),
    ],
)
def test_a_protocol_fault_starts_the_wire_proxy(*, asked: str, fault: str, has_one: bool) -> None:
    """A plan with such a fault gets the proxy; any other plan only on request."""
    job = prepare(PLAN.format(asked=asked, fault=fault), (), 1, print)
    assert has_one == job.spec.wire_proxy


class Watched:
    """A watched process, which ends with ``error`` if there is one."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def watch(self) -> NoReturn:
        if self.error:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError


async def test_the_end_of_the_wire_proxy_ends_the_run() -> None:
    """Like a client's end; without a proxy only the clients are watched."""
    quiet, gone = Watched(None), Watched(ClusterError("the wire proxy has ended"))
    with pytest.raises(ClusterError, match="wire proxy"):
        await _watch_processes(cast("Any", quiet), cast("Any", SimpleNamespace(wire_proxy=gone)))
    for proxy in (quiet, None):
        with pytest.raises(WorkloadError, match="a client"):
            await _watch_processes(
                cast("Any", Watched(WorkloadError("a client"))), cast("Any", SimpleNamespace(wire_proxy=proxy))
            )
