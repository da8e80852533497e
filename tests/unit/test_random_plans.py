"""Fifty random plans over the whole catalogue, from YAML to the last heal, on a cluster in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import TransactionState
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.executor import execute
from aftershock.faults.timeline.timeline import Timeline, from_json
from aftershock.tests.random_plans import GROUP, TOPIC, TRANSACTIONAL, drawable, random_plan
from aftershock.tests.unit.faults import fake_world
from aftershock.tests.unit.faults.conftest import Stage
from aftershock.tests.unit.faults.fakes import links
from aftershock.tests.unit.faults.fakes.clients import CONSUMER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


SEEDS = range(50)
FRAME: dict[str, Any] = {
    "name": "random",
    "cluster": {"kafka": "4.1.2", "disks": {"count": 2}},
    "topics": [{"name": "orders", "partitions": 6, "replication": 3, "config": {"min.insync.replicas": 2}}],
    "workloads": [
        {
            "name": "orders",
            "produce": {"topic": "orders", "rate": "60/s"},
            "consume": {"topic": "orders", "group": "readers", "members": 3},
            "arms": {"baseline": {"settings": {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}}},
        }
    ],
    "timing": {"steady": "1s", "fault": "2s", "recovery": "1s"},
}


DISKLESS = FRAME | {"cluster": {"kafka": "4.1.2"}}
"""A frame for the kinds that need logs on a device: `disks` are in memory."""
LEDGER = {
    "name": "ledger",
    "produce": {"topic": "orders", "rate": "60/s", "transaction": {"records": 10, "timeout": "10s"}},
    "arms": {"baseline": {}},
}
TRANSACTED = FRAME | {"workloads": [*FRAME["workloads"], LEDGER]}
"""A frame for the kinds that need a transactional producer."""
FRAMES = (FRAME, DISKLESS, TRANSACTED)


ON_DOCKER = sorted(kind for kind, fault in KINDS.items() if "kubernetes" not in fault.needs)


@cache
def kinds_of_frame(number: int) -> frozenset[str]:
    return frozenset(drawable(FRAMES[number]))


def plan(seed: int) -> str:
    """Return the random plan of a seed; each kind is required in one of the plans."""
    musts = ON_DOCKER[seed :: len(SEEDS)]
    number = next(number for number in range(len(FRAMES)) if kinds_of_frame(number).issuperset(musts))
    return random_plan(seed, FRAMES[number], kinds_of_frame(number), musts=musts)


def timeline(text: str, seed: int) -> Timeline:
    checked = load_plan(text)
    return compile_plan(checked.plan, seed, checked.source, checked.slo_positions, checked.source_map)


@dataclass(frozen=True)
class Played:
    """A plan, its journal, and the cluster before and after it."""

    text: str
    timeline: Timeline
    stage: Stage
    before: dict[str, Any]
    after: dict[str, Any]

    def states(self, step: str) -> list[str]:
        return self.stage.journal.states(step)


def furnish(world: FakeWorld) -> None:
    """Add fetch sessions, a producer in a transaction, and a group of readers that has committed offsets.

    The group has three members, and two in reserve.
    """
    world.sessions = {broker: set(range(1, 10)) for broker in world.sessions}
    world._partitions["__consumer_offsets", 0] = replace(world._partitions[TOPIC, 0], topic="__consumer_offsets")
    world._partitions["__transaction_state", 0] = replace(world._partitions[TOPIC, 0], topic="__transaction_state")
    world.transactional[TRANSACTIONAL] = TransactionState(TRANSACTIONAL, "Ongoing", 7, 0, frozenset({(TOPIC, 0)}))
    world.offsets[GROUP] = {(TOPIC, number): 10 for number in range(6)}
    for number in range(2, 6):
        name, reserve = f"{CONSUMER}-{number}", number > 3
        state = "exited" if reserve else "running"
        world.crew[name] = replace(world.crew[CONSUMER], name=name, number=number, reserve=reserve, state=state)
        world.open[name] = frozenset({f"{name} 1"})
        world.grouped.add(name)
        if reserve:
            world._silent_since_us[name] = -(10**9)


async def _play(seed: int) -> Played:
    stage, text = Stage(), plan(seed)
    compiled = timeline(text, seed)
    furnish(stage.world)
    before = state_of(stage.world)
    await execute(compiled, stage.world, stage.journal, stage.clock, stage.said.append)
    return Played(text, compiled, stage, before, state_of(stage.world))


@cache
def played(seed: int) -> Played:
    """Execute the plan of a seed, with coarser time steps than tests of single kinds, so that fifty plans take
    seconds.
    """
    with patch.object(links, "POLL_US", 100_000), patch.object(fake_world, "SETTLED", 60):
        return asyncio.run(_play(seed))


def state_of(world: FakeWorld) -> dict[str, Any]:
    """Return the state of the cluster that heals must restore."""
    return {
        "nodes": dict(world.states),
        "toxics": {proxy: dict(toxics) for proxy, toxics in world.proxies.items() if toxics},
        "shut": set(world.shut),
        "straight": world.straight(),
        "roomy": world.roomy(),
        # a `join` without `for` is not healed
        "clients": {name: worker.state for name, worker in world.crew.items() if not worker.reserve},
        "moving": set(world._moving),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_every_injected_fault_is_healed(seed: int) -> None:
    """Each step is healed, or failed before any change, and the cluster is as before."""
    run = played(seed)
    for step in run.timeline.steps:
        states = run.states(step.id)
        assert states == ["failed"] or (states[0], states[-1]) == ("intended", "healed"), (step, states)
    assert run.before == run.after


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    """Plan and timeline are equal byte for byte, also after a round trip through JSON."""
    text = plan(seed)
    again = timeline(text, seed).to_json()
    assert played(seed).text == text
    assert played(seed).timeline.to_json() == again == from_json(again).to_json()


def test_random_plans_cover_every_kind() -> None:
    """The fifty plans use every kind and every composition, and over 90 % of the steps take effect."""
    steps = [(run, step) for run in map(played, SEEDS) for step in run.timeline.steps]
    took = Counter(step.kind for run, step in steps if "injected" in run.states(step.id))
    assert {*ON_DOCKER} == {step.kind for _, step in steps}
    assert sum(took.values()) > len(steps) * 0.9
    assert len(took) > len(KINDS) * 0.9
    texts = [played(seed).text for seed in SEEDS]
    assert all(any(f"{word}:" in text for text in texts) for word in ("together", "then", "repeat", "choose", "range"))


def test_different_seeds_give_different_plans() -> None:
    assert len(SEEDS) == len({run.timeline.to_json() for run in map(played, SEEDS)})
