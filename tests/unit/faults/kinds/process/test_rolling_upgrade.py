"""Rolling upgrade: every node is replaced, one at a time, and downgraded unless the level was raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import AdminError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of
from aftershock.tests.unit.faults.fakes.upgrades import KNOWN_LEVEL

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


UP = "{id: up, at: 1s, kind: rolling_upgrade, to: 4.3.1}"
BACK = UP.replace("4.3.1", "4.3.1, for: 60s")
FINAL = UP.replace("4.3.1", "4.3.1, finalize: true")


def versions(stage: Stage) -> list[str]:
    return [*stage.world.versions.values()]


def failed(stage: Stage) -> list[str]:
    return [witness.what for witness in stage.journal.witnesses("up") if not witness.ok]


async def test_every_node_one_after_the_other(stage: Stage) -> None:
    """The active controller last, each in service before the next; nothing finalised, and the upgrade stays."""
    await stage.play(UP)
    assert [(1, "4.3.1"), (2, "4.3.1"), (3, "4.3.1")] == stage.world.called("replace")
    assert ["intended", "injected", "witnessed", "healed"] == stage.journal.states("up")
    assert stage.all_ok("up")
    assert 5 <= len(stage.journal.witnesses("up"))
    assert (["4.3.1"] * 3, 27) == (versions(stage), stage.world.level)
    assert stage.world.healthy()


async def test_with_for_the_upgrade_is_undone(stage: Stage) -> None:
    """The heal downgrades node by node; until then the new levels are read back each second."""
    await stage.play(BACK)
    assert (["4.1.2"] * 3, 27) == (versions(stage), stage.world.level)
    assert [3, 2, 1] == [broker for broker, version in stage.world.called("replace") if version == "4.1.2"]  # type: ignore[misc]
    assert stage.line("up", "healing").t_us == 61_000_000
    assert 40 < sum("read over Kafka's protocol" in witness.what for witness in stage.journal.witnesses("up"))
    assert stage.all_ok("up")
    assert stage.world.healthy()


async def test_finalised(stage: Stage) -> None:
    """The level is raised when the last node is in service, to what all of them know."""
    await stage.play(FINAL)
    assert [("metadata.version", 30)] == stage.world.called("raise_feature")
    assert (["4.3.1"] * 3, 30) == (versions(stage), stage.world.level)
    assert stage.all_ok("up")


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(UP)
    assert not any(witness.ok for witness in stage.journal.witnesses("up"))


async def test_a_replacement_of_the_same_version(stage: Stage) -> None:
    """Nodes that return with the old version fail the witnesses of versions and levels."""
    replace = stage.world.replace

    async def unchanged(broker: Any, _version: str) -> None:
        await replace(broker, "4.1.2")

    stage.world.replace = unchanged  # type: ignore[method-assign]
    await stage.play(UP)
    assert ["process reports", "highest supported metadata.version"] == [
        message
        for what in failed(stage)
        for message in ("process reports", "highest supported metadata.version")
        if message in what
    ]


async def test_a_level_that_did_not_rise(stage: Stage) -> None:
    """A level that is never raised fails the step after the deadline, and the nodes are downgraded."""

    async def ignored(_name: str, _level: int) -> None:
        return

    stage.world.raise_feature = ignored  # type: ignore[method-assign]
    await stage.play(FINAL)
    assert "metadata.version is 27 and should be 30" in str(stage.line("up", "failed").why)
    assert ["4.1.2"] * 3 == versions(stage)


async def test_kafka_refuses_to_raise_it(stage: Stage) -> None:
    """Kafka's message is the reason; nothing was finalised, so the nodes are downgraded."""
    stage.world.broken["raise_feature"] = AdminError("Kafka refused: INVALID_UPDATE_VERSION", "INVALID_UPDATE_VERSION")
    await stage.play(FINAL)
    assert "INVALID_UPDATE_VERSION" in str(stage.line("up", "failed").why)
    assert ["4.1.2"] * 3 == versions(stage)


@pytest.mark.parametrize("at_ms", [1_001, 2_000, 4_400, 5_000, 9_000])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """Interrupted at any time, all nodes run the old version at the end."""
    await stage.interrupt(at_ms, UP)
    assert ["4.1.2"] * 3 == versions(stage)
    assert stage.world.healthy()
    assert "healed" == stage.journal.states("up")[-1]


async def test_healed_by_another_process(stage: Stage) -> None:
    """The undo alone heals any intermediate state, also when repeated."""
    await stage.play(UP)
    undo = stage.line("up", "intended").undo
    assert {"nodes": [[3, "4.1.2"], [2, "4.1.2"], [1, "4.1.2"]], "level": 27} == undo.args
    stage.world.versions[1] = "4.1.2"  # type: ignore[index]
    stage.world._lose(2, "exited")  # type: ignore[arg-type]
    for _ in range(2):
        await perform(undo, stage.world, stage.clock)
        assert stage.world.healthy()
        assert ["4.1.2"] * 3 == versions(stage)


async def test_once_finalised_there_is_no_way_back(stage: Stage) -> None:
    """After the level was raised the nodes keep their version, or they would never start again."""
    await stage.play(FINAL)
    stage.world._lose(2, "exited")  # type: ignore[arg-type]
    await perform(stage.line("up", "intended").undo, stage.world, stage.clock)
    assert ["4.3.1"] * 3 == versions(stage)
    assert stage.world.healthy()


async def test_nothing_to_upgrade(stage: Stage) -> None:
    """If all nodes have the version, the step fails without any change."""
    stage.world.versions = dict.fromkeys(stage.world.versions, "4.3.1")
    await stage.play(UP)
    assert "every node runs Kafka 4.3.1 already" in str(stage.line("up", "failed").why)
    assert [] == stage.world.called("replace")


async def test_nodes_already_upgraded_are_skipped(stage: Stage) -> None:
    """An earlier upgrade was interrupted, so some nodes have the version already."""
    stage.world.versions[2] = "4.3.1"  # type: ignore[index]
    await stage.play(UP)
    assert [(1, "4.3.1"), (3, "4.3.1")] == stage.world.called("replace")
    assert stage.all_ok("up")


async def test_a_patch_has_no_level_of_its_own(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 4.3.0 to 4.3.1 no level changes; the processes' own words are the proof."""
    monkeypatch.setitem(KNOWN_LEVEL, "4.3.0", 30)
    stage.world.versions = dict.fromkeys(stage.world.versions, "4.3.0")
    stage.world.level = 30
    await stage.play(UP)
    assert stage.all_ok("up")


@pytest.mark.parametrize(
    ("fault", "cluster", "message"),
    [
        (FINAL.replace("up,", "up, for: 60s,"), "", "a finalised upgrade can't be undone"),
        (
            UP.replace("4.3.1", "4.1.2"),
            "cluster: {kafka: 4.3.1}\n",
            "Kafka 4.1.2 can't read the metadata of a cluster that Kafka 4.3.1 formats",
        ),
        (UP.replace("4.3.1", "newest"), "", "to"),
    ],
)
def test_refused_by_the_check(fault: str, cluster: str, message: str) -> None:
    """Impossible upgrades are refused by the check."""
    with pytest.raises(PlanError, match=message):
        load_plan(f"{FRAME}  - {fault}\n{cluster}")


def test_its_permanent_effect_is_declared() -> None:
    """The permanent effect keeps the cluster from being reused."""
    assert "new version" in str(timeline_of(UP).steps[0].fault().permanent_effect)
