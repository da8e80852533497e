"""Reading after the load: committed offsets, and the fetch sessions that are still open."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.errors import AdminError
from aftershock.harness.run import drive

COMMITS = {"name": "commits", "commit": {"groups": 1}, "arms": {"plain": {"settings": {}}}}
LAUNCHED = {"racks": {"a": 1}}


class Unreadable:
    """A cluster whose brokers don't answer; ``asked`` counts the attempts."""

    asked = 0

    @property
    def admin(self) -> Any:
        return SimpleNamespace(partitions=self._refuse, ask=self._refuse)

    def _refuse(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise AdminError("no broker answered", "NETWORK_EXCEPTION")


@pytest.mark.parametrize(
    ("cluster", "workload", "asked"),
    [(LAUNCHED, COMMITS, True), (LAUNCHED, {"name": "w", "commit": None}, False), ({"attach": {}}, COMMITS, False)],
)
async def test_whose_commits_are_read(
    cluster: dict[str, Any], workload: dict[str, Any], asked: bool, tmp_path: Path
) -> None:
    """Only offsets of a launched cluster whose plan commits are read; an error is logged, and the run goes on."""
    said: list[str] = []
    brokers, timeline = Unreadable(), cast("Any", SimpleNamespace(cluster=cluster, workloads=[workload]))
    await drive.read_commits(cast("Any", brokers), timeline, tmp_path, said.append)
    assert (asked, asked) == (brokers.asked > 0, bool(said))


async def test_sessions_left(tmp_path: Path) -> None:
    """None if no client reported a session; null, not 0, if the brokers don't answer."""
    (tmp_path / "events.jsonl").write_text("")
    assert await drive.open_fetch_sessions(cast("Any", Unreadable()), tmp_path) is None
    granted = {"event": "session_established", "node_id": 1, "session_id": 7}
    (tmp_path / "events.jsonl").write_text(json.dumps(granted) + "\n")
    assert {"told": 1, "left": None} == await drive.open_fetch_sessions(cast("Any", Unreadable()), tmp_path)
