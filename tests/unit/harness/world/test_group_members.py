"""Which process of a service a member of its group is: by name, by elimination, or not to be told."""

import random
from dataclasses import dataclass, field

import pytest

from aftershock.faults.targets.values import GroupMember
from aftershock.harness.world.group_members import MemberOwners, membership, named
from aftershock.workloads.load.fleet import Life

ONE, TWO, THREE = "w-a-pipe-1", "w-a-pipe-2", "w-a-pipe-3"
ALL = (ONE, TWO, THREE)


def member(name: str, client: str = "rdkafka", instance: str | None = None) -> GroupMember:
    return GroupMember(client, name, None, frozenset(), instance)


def lives(**pids: int) -> dict[str, Life]:
    return {{"one": ONE, "two": TWO, "three": THREE}[name]: Life(pid, pid) for name, pid in pids.items()}


@pytest.mark.parametrize(
    ("client", "instance", "worker"),
    [
        (ONE, None, ONE),
        (f"{ONE}-StreamThread-1-consumer", None, ONE),
        ("rdkafka", TWO, TWO),
        (f"{ONE}0", None, None),  # the name of process 10
        (f"x{ONE}", None, None),
        ("rdkafka", None, None),
        (f"{ONE} {TWO}", None, None),
    ],
)
def test_names(client: str, instance: str | None, worker: str | None) -> None:
    assert worker == named(member("m", client, instance), ALL)


def test_processes_that_start_in_turn() -> None:
    """Each member that appears belongs to the process that has none."""
    told = MemberOwners(ALL)
    told.observe([], {})
    told.observe([member("a")], lives(one=1))
    told.observe([member("a"), member("b")], lives(one=1, two=2))
    told.observe([member("a"), member("b"), member("c")], lives(one=1, two=2, three=3))
    assert {"a": {ONE}, "b": {TWO}, "c": {THREE}} == told.owners


def test_processes_that_start_at_once_are_not_told() -> None:
    told = MemberOwners(ALL)
    members = [member("a"), member("b")]
    told.observe(members, lives(one=1, two=2))
    assert {"a": {ONE, TWO}, "b": {ONE, TWO}} == told.owners
    assert membership(ONE, members, told.owners) is None
    assert frozenset() == membership(THREE, members, told.owners)


def test_a_name_tells_what_elimination_does_not() -> None:
    told = MemberOwners(ALL)
    members = [member("a", TWO), member("b")]
    told.observe(members, lives(one=1, two=2))
    assert {"a": {TWO}, "b": {ONE}} == told.owners


def test_a_member_that_is_expelled_and_comes_back() -> None:
    """It has a new id; while its process is frozen, a new id is that of another."""
    told = MemberOwners(ALL)
    told.observe([member("a")], lives(one=1))
    told.observe([member("a"), member("b")], lives(one=1, two=2))
    frozen = {ONE: Life(1, 1, state="frozen"), TWO: Life(2, 2)}
    told.observe([member("a"), member("b")], frozen)
    told.observe([member("b")], frozen)
    assert frozenset() == membership(ONE, [member("b")], told.owners)
    told.observe([member("b"), member("d")], lives(one=1, two=2))
    assert {"b": {TWO}, "d": {ONE}} == told.owners


def test_a_killed_process_is_not_its_old_member() -> None:
    """The group lists the old member until its session ends, while the new process joins."""
    told = MemberOwners(ALL)
    told.observe([member("a")], lives(one=1))
    told.observe([member("a"), member("b")], lives(one=1, two=2))
    told.observe([member("a"), member("b")], {ONE: Life(1, 1, "ended"), TWO: Life(2, 2)})
    assert frozenset() == membership(ONE, [member("a"), member("b")], told.owners)
    told.observe([member("a"), member("b"), member("c")], lives(one=9, two=2))
    assert {"a": set(), "b": {TWO}, "c": {ONE}} == told.owners


def test_two_members_of_one_process() -> None:
    """A process that began with two consumers lacks one when one is gone."""
    told = MemberOwners(ALL)
    told.observe([member("a"), member("b")], lives(one=1))
    told.observe([member("a"), member("b"), member("c")], lives(one=1, two=2))
    assert {"a": {ONE}, "b": {ONE}, "c": {TWO}} == told.owners
    told.observe([member("a"), member("c")], lives(one=1, two=2))
    told.observe([member("a"), member("c"), member("d")], lives(one=1, two=2))
    assert {"a": {ONE}, "c": {TWO}, "d": {ONE}} == told.owners


def test_a_stranger_in_the_group_is_not_told() -> None:
    """No process lacks a member, so the new one may be of any of them, or of another program."""
    told = MemberOwners(ALL)
    told.observe([member("a")], lives(one=1))
    told.observe([member("a"), member("b")], lives(one=1, two=2))
    members = [member("a"), member("b"), member("x")]
    told.observe(members, lives(one=1, two=2))
    assert {"a": {ONE}, "b": {TWO}, "x": {ONE, TWO}} == told.owners
    assert frozenset({"a"}) == membership(ONE, members, told.owners)


def test_a_member_that_was_not_seen_before() -> None:
    """Until the next poll it may be anyone's, unless it bears the name."""
    assert membership(ONE, [member("new")], {}) is None
    assert frozenset({"new"}) == membership(ONE, [member("new", ONE)], {})


@dataclass
class World:
    """A group and its processes, which know whose each member is; the elimination sees only ids and processes."""

    source: random.Random
    members: dict[str, str | None] = field(default_factory=dict)
    pids: dict[str, Life] = field(default_factory=dict)
    joining: set[str] = field(default_factory=set)
    count: int = 0
    thawed: set[str] = field(default_factory=set)

    def change(self) -> None:
        """Let a process start, die, freeze, wake or join, or a member expire."""
        worker = self.source.choice(ALL)
        life = self.pids.get(worker)
        life = None if life and life.state == "ended" else life
        if worker in self.joining and life and life.state != "frozen":
            self.count += 1
            self.members[f"m{self.count}"] = worker
            self.joining.discard(worker)
        elif life is None:
            self.count += 1
            self.pids[worker] = Life(self.count, self.count)
            self.joining.add(worker)
        elif life.state == "frozen":
            self.pids[worker] = life._replace(state="running")
            self.thawed.add(worker)
        elif self.source.random() < 0.3:
            self.pids[worker] = life._replace(state="ended")
            self.joining.discard(worker)
            if self.source.random() < 0.5:  # it left
                self.members = {name: of for name, of in self.members.items() if of != worker}
            else:
                self.members = {name: None if of == worker else of for name, of in self.members.items()}
        elif self.source.random() < 0.4 and worker not in self.thawed:
            self.pids[worker] = life._replace(state="frozen")
        elif own := [name for name, of in self.members.items() if of == worker]:
            del self.members[self.source.choice(own)]
            self.joining.add(worker)
        if self.source.random() < 0.2:  # sessions of the dead end
            self.members = {name: of for name, of in self.members.items() if of is not None}


@pytest.mark.parametrize("seed", range(200))
def test_what_is_told_is_true(seed: int) -> None:
    """Whatever happens between two polls, the real process is among those that are possible."""
    world, told = World(random.Random(seed)), MemberOwners(ALL)  # noqa: S311 -- a schedule
    for _ in range(60):
        for _ in range(world.source.randint(0, 3)):
            world.change()
        told.observe([member(name) for name in world.members], world.pids)
        world.thawed.clear()  # a pause outlasts a poll
        assert {*told.owners} == {*world.members}
        wrong = {name: of for name, of in world.members.items() if of and of not in told.owners[name]}
        assert {} == wrong
