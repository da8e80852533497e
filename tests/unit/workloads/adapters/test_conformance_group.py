"""The conformance checks of members of a group, with programs that share a played Kafka, as in ``test_conformance``."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aftershock.tests.unit.workloads.adapters.test_conformance import Played, Program, World
from aftershock.workloads.adapters.conformance import bench as bench_module
from aftershock.workloads.adapters.conformance import consume, group
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.adapters.conformance.checks import Check, judge
from aftershock.workloads.adapters.exec_protocol import Rule

PAGE = Path(__file__).parents[4] / "docs" / "EXEC.md"


class GroupWorld(World):
    """A Kafka with one group, whose members get their partitions anew whenever one joins or leaves."""

    def __init__(self, defect: str, *, eager: bool) -> None:
        super().__init__(defect)
        self.members: list[Member] = []
        self.eager, self.epochs = eager, count(5)

    def rebalance(self) -> None:
        targets = {
            member: {*range(number, PARTITIONS, len(self.members))} for number, member in enumerate(self.members)
        }
        epoch = next(self.epochs)
        for member, target in targets.items():
            member.give_up({*member.positions} if self.eager else {*member.positions} - target)
        for member, target in targets.items():
            member.add(target - {*member.positions}, epoch)


class Member(Program):
    """A program that follows docs/EXEC.md as a member of a group, except for the world's defect."""

    world: GroupWorld

    def __init__(self, world: GroupWorld) -> None:
        super().__init__(world)
        self.told, self.epoch = {"group": "group-of-t", "isolation": None}, -1
        self.stale: dict[int, int] = {}

    def write(self, line: bytes) -> bool:
        if b'"start"' in line:
            self.say("ready")
            self.world.members.append(self)
            self.world.rebalance()
        elif b'"close"' in line:
            self.poll()
            if self.defect != "no-commit":
                self.commit()
            self.positions = {}
            self.world.members.remove(self)
            if self.defect != "never-takes-over":
                self.world.rebalance()
            self.say("bye")
            self.status = 0
        return True

    def poll(self) -> None:
        super().poll()
        for number, position in self.stale.items():
            for offset in range(position, len(self.world.logs[number])):
                self.say("record", partition=number, offset=offset, mark=None, size_bytes=100)
            self.stale[number] = len(self.world.logs[number])

    def commit(self) -> None:
        self.world.committed[self.told["group"]] |= self.positions
        offsets = {number: offset for number, offset in self.positions.items() if offset}
        if self.defect == "commits-ahead":
            offsets = {number: offset + 3 for number, offset in offsets.items()}
        if offsets and self.defect != "no-committed":
            epoch = {"old-epoch": self.epoch - 1, "no-epoch": -1}.get(self.defect, self.epoch)
            took_us = {} if self.defect == "no-took" else {"took_us": 5}
            self.say("committed", offsets=offsets, epoch=epoch, **took_us)

    def give_up(self, partitions: set[int]) -> None:
        if not partitions:
            return
        if self.defect != "no-commit":
            self.poll()
            self.commit()
        if self.defect == "goes-on":
            self.stale |= {number: self.positions[number] for number in partitions}
        self.positions = {number: at for number, at in self.positions.items() if number not in partitions}
        if self.defect != "silent-revocation":
            self.say("revoked", partitions=sorted(partitions), epoch=self.epoch)

    def add(self, partitions: set[int], epoch: int) -> None:
        self.epoch = epoch
        taken = {*[*partitions][:1]} if self.defect == "half-assigned" else partitions
        self.positions |= {number: self.world.committed[self.told["group"]].get(number, 0) for number in partitions}
        if self.defect == "assigned-owned":
            taken = {*self.positions}
        if taken and self.defect != "unassigned":
            self.say("assigned", partitions=sorted(taken), member="m", epoch=epoch)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    """Return a bench for two programs with a defect."""

    def bench(defect: str, *, eager: bool = False) -> Played:
        world = GroupWorld(defect, eager=eager)
        for module in (bench_module, group):
            monkeypatch.setattr(module, "time", world)
        monkeypatch.setattr(bench_module, "Child", lambda *_, **__: Member(world))
        return Played(world)

    return bench


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("defect", ["none", "no-epoch"])
@pytest.mark.parametrize("check", group.CHECKS, ids=lambda check: check.__name__)
def test_correct_members_pass(play: Callable[..., Played], check: Check, defect: str, eager: bool) -> None:
    """In a group that revokes what moves, and in one that revokes everything."""
    assert ("passed", "") == ((result := judge("group", check, play(defect, eager=eager))).outcome, result.reason)


SHARES, TAKES_OVER, OWNS, COMMITS = group.CHECKS
CAUGHT: list[tuple[str, Check, str, Rule]] = [
    ("unassigned", SHARES, "do not report every partition as assigned to the only member", consume.ASSIGNED),
    ("half-assigned", SHARES, "do not report every partition as assigned", consume.ASSIGNED),
    ("silent-revocation", SHARES, "did not report the partitions [1, 3] as revoked or lost", group.GIVEN_UP),
    ("never-takes-over", TAKES_OVER, "as assigned after the other left", consume.ASSIGNED),
    ("no-commit", TAKES_OVER, "reported (partition, offset) (1, 0) more than once", group.COMMIT_FIRST),
    ("goes-on", OWNS, "which it did not own at that time", group.NOT_OWNED),
    ("assigned-owned", OWNS, "reported the partitions [0, 2] as assigned, which it had already", group.ADDED),
    ("no-took", COMMITS, "without `took_us`; a commit is judged at the time", group.SENT),
    ("commits-ahead", COMMITS, "and had reported its records up to offset", group.COVERED),
    ("old-epoch", COMMITS, "and its assignment had the epoch", group.EPOCH),
]


@pytest.mark.parametrize(("defect", "check", "says", "rule"), CAUGHT, ids=[case[0] for case in CAUGHT])
def test_a_defect_is_reported_with_the_rule_that_it_breaks(
    play: Callable[..., Played], defect: str, check: Check, says: str, rule: Rule
) -> None:
    result = judge("group", check, play(defect))
    assert ("failed", str(rule)) == (result.outcome, result.rule)
    assert says in result.reason


def test_the_last_commit_is_compared_with_kafkas(play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets that Kafka has after both members closed are the ends of the partitions."""
    bench = play("none")
    monkeypatch.setattr(bench, "committed", lambda *_: {0: 7})
    result = judge("group", TAKES_OVER, bench)
    assert ("failed", str(consume.COMMIT)) == (result.outcome, result.rule)
    assert "the committed offsets are {0: 7}" in result.reason


def test_commits_that_are_not_reported_are_not_compared(play: Callable[..., Played]) -> None:
    """The check is skipped, which is no failure; the other checks are made."""
    result = judge("group", COMMITS, play("no-committed"))
    assert ("skipped", True) == (result.outcome, "reports no `committed`" in result.reason)
    assert "passed" == judge("group", TAKES_OVER, play("no-committed")).outcome


@pytest.mark.parametrize("rule", [rule for rule in vars(group).values() if isinstance(rule, Rule)], ids=str)
def test_each_rule_is_a_sentence_of_the_page(rule: Rule) -> None:
    section = PAGE.read_text().split(f"## {rule.section}\n")[1].split("\n## ")[0]
    assert rule.sentence in " ".join(section.split())


def test_what_a_member_owns() -> None:
    """Each assignment adds partitions; `revoked` and `lost` remove them."""
    reports: list[Any] = [group.Assigned(partitions=(0, 1)), group.Assigned(partitions=(2,))]
    reports += [group.Revoked(partitions=(1,)), group.Lost(partitions=(0, 3))]
    assert frozenset({2}) == group.owned(reports)
