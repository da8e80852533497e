"""Which process of a service each member of its consumer group is.

A coordinator describes a member by its member id, its ``client.id``, its ``group.instance.id`` and an address, which is
that of a proxy. So the harness tells members apart in two ways:

1. **By name**: the service's ``client.id`` or ``group.instance.id`` contains ``{member}``, the name of the process.
2. **By elimination**: a member id that appears belongs to a process that has none yet. Only processes that ran since
   the poll before can have joined, and a process that was started anew has none. If a fault of the plan needs to tell
   members apart, the processes start one after the other, each when the one before is a member.

Where several processes are possible, the member belongs to any of them, and a fault that must know raises an error.
Elimination assumes that each process keeps as many consumers of the group as it had at first.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aftershock.faults.targets.values import GroupMember
from aftershock.workloads.load.fleet import Life

Owners = Mapping[str, Collection[str]]
"""Processes to which each member id may belong: one if it is certain, none if that process has ended."""

_FILE = "members.json"


def named(member: GroupMember, workers: Iterable[str]) -> str | None:
    """Return the process whose name a member's client id or instance id contains; None if it names none, or several."""
    text = f"{member.client} {member.instance or ''}"
    # the name of process 1 begins that of process 10
    found = [worker for worker in workers if re.search(rf"(?<!\w){re.escape(worker)}(?![0-9])", text)]
    return found[0] if len(found) == 1 else None


def membership(worker: str, members: Iterable[GroupMember], owners: Owners) -> frozenset[str] | None:
    """Return the ids of a process's members; empty if it has none, None if it can't be told."""
    own: set[str] = set()
    is_certain = True
    for member in members:
        of = owners.get(member.id)
        if of is None and (name := named(member, [worker])):
            of = [name]
        if of is not None and [*of] == [worker]:
            own.add(member.id)
        elif of is None or worker in of:
            is_certain = False
    return frozenset(own) if own or is_certain else None


@dataclass
class MemberOwners:
    """Elimination over successive polls of one group; ``owners`` has the result."""

    workers: Collection[str]
    owners: dict[str, frozenset[str]] = field(default_factory=dict)
    _lives: Mapping[str, Life] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    """The largest number of members that a process has had at a time."""

    def observe(self, members: Iterable[GroupMember], lives: Mapping[str, Life]) -> None:
        """Take in the members that a coordinator lists, and the latest life of each process that has started."""
        listed = {member.id: member for member in members}
        ended, awake = set(), set()
        for worker, life in lives.items():
            before = self._lives.get(worker)
            is_same = before is not None and before[:2] == life[:2]
            if not is_same or life.state == "ended":
                ended.add(worker)
            if not is_same or before is None or "running" in (life.state, before.state):
                awake.add(worker)
        self.owners = {
            member: frozenset() if any(of == {worker} for worker in ended) else of
            for member, of in self.owners.items()
            if member in listed
        }
        unnamed = []
        for member in [member for name, member in listed.items() if name not in self.owners]:
            if name := named(member, self.workers):
                self.owners[member.id] = frozenset({name})
            else:
                unnamed.append(member.id)
        lacking = {worker: self._counts.get(worker, 1) - self._count(worker) for worker in awake}
        lacking = {worker: count for worker, count in lacking.items() if count > 0}
        enough = len(unnamed) <= sum(lacking.values())
        self.owners |= dict.fromkeys(unnamed, frozenset(lacking if enough else awake))
        for worker in awake:
            self._counts[worker] = max(self._counts.get(worker, 1), self._count(worker))
        self._lives = dict(lives)

    def _count(self, worker: str) -> int:
        return sum(of == {worker} for of in self.owners.values())


def write_owners(spool: Path, groups: Mapping[str, Owners]) -> None:
    """Write the owners of the members of all groups of services, for faults to read, also those of other processes."""
    draft = spool / f".{_FILE}"
    draft.write_text(
        json.dumps({group: {member: [*of] for member, of in owners.items()} for group, owners in groups.items()})
    )
    draft.replace(spool / _FILE)


def read_owners(spool: Path, group: str) -> Owners:
    """Return what the run has found out about a group's members; empty if it has found nothing out."""
    with suppress(OSError):
        owners: Owners = json.loads((spool / _FILE).read_bytes()).get(group, {})
        return owners
    return {}
