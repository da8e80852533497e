"""The classic group protocol, as the coordinator sees it.

A rebalance begins when a member joins, leaves or is late; it ends when all members have joined again, or when the
longest of their rebalance timeouts is over: who hasn't joined by then is out. The first of the members leads.

A static member that comes back with another member id takes the place of its predecessor, whose requests are fenced
from then on. No rebalance follows if the group is stable and its protocols are the same; if it leads, it is told not
to assign (KIP-345, KIP-814).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82

Answer = dict[str, Any]


@dataclass
class Member:
    member_id: str
    protocols: dict[str, bytes]
    session_s: float
    rebalance_s: float
    instance_id: str | None = None
    joining: asyncio.Future[Answer] | None = None
    syncing: asyncio.Future[Answer] | None = None
    alive: asyncio.TimerHandle | None = None
    assignment: bytes = b""


@dataclass
class Group:
    """Members in the order in which they came; committed offsets by (topic, partition)."""

    protocol_type: str = ""
    generation: int = 0
    rebalancing: bool = False
    completing: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    committed: dict[tuple[str, int], tuple[int, int, str | None]] = field(default_factory=dict)
    named: int = 0
    promised: set[str] = field(default_factory=set)
    deadline: asyncio.TimerHandle | None = None

    async def join(self, member: Member, *, must_know_its_id: bool) -> Answer:
        predecessor = self._of_instance(member.instance_id)
        if predecessor and member.member_id:
            if member.member_id != predecessor.member_id:
                return {"error_code": FENCED_INSTANCE_ID}
        elif predecessor or (member.instance_id and not member.member_id):
            self.named += 1
            member.member_id = f"member-{self.named}"
            self.promised.add(member.member_id)
            if predecessor and (answer := self._replace(predecessor, member)):
                return answer
        if not member.member_id:
            self.named += 1
            member.member_id = f"member-{self.named}"
            self.promised.add(member.member_id)
            if must_know_its_id:
                return {"error_code": MEMBER_ID_REQUIRED, "member_id": member.member_id}
        elif member.member_id in self.members:
            known = self.members[member.member_id]
            known.protocols, member = member.protocols, known
        elif member.member_id not in self.promised:
            return {"error_code": UNKNOWN_MEMBER_ID}
        self.members[member.member_id] = member
        member.joining = asyncio.get_running_loop().create_future()
        self.touch(member)
        self.rebalance()
        self._complete_if_all_are_here()
        return await member.joining

    def _of_instance(self, instance_id: str | None) -> Member | None:
        return next((one for one in self.members.values() if instance_id and one.instance_id == instance_id), None)

    def _replace(self, predecessor: Member, member: Member) -> Answer | None:
        """Give a static member the place of its predecessor; the answer, if that needs no rebalance."""
        if predecessor.alive:
            predecessor.alive.cancel()
        for waiting in (predecessor.joining, predecessor.syncing):
            _settle(waiting, {"error_code": FENCED_INSTANCE_ID})
        places = [
            (member.member_id, member) if one is predecessor else (name, one) for name, one in self.members.items()
        ]
        self.members = dict(places)
        member.assignment = predecessor.assignment
        self.touch(member)
        if self.rebalancing or self.completing or member.protocols.keys() != predecessor.protocols.keys():
            return None
        leads = member.member_id == self.leader
        return self._joined(member.member_id) | {"skip_assignment": leads}

    def rebalance(self) -> None:
        """All are to join again."""
        if self.rebalancing:
            return
        self.rebalancing = True
        for member in self.members.values():
            _settle(member.syncing, {"error_code": REBALANCE_IN_PROGRESS})
        longest_s = max((member.rebalance_s for member in self.members.values()), default=0)
        self.deadline = asyncio.get_running_loop().call_later(longest_s, self._complete)

    def leave(self, member_id: str) -> int:
        member = self.members.pop(member_id, None)
        if member is None:
            return UNKNOWN_MEMBER_ID
        if member.alive:
            member.alive.cancel()
        _settle(member.joining, {"error_code": UNKNOWN_MEMBER_ID})
        self.rebalance()
        self._complete_if_all_are_here()
        return 0

    async def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes], instance_id: str | None = None
    ) -> Answer:
        error = self._refusal_of_member(member_id, generation, instance_id)
        if error or self.rebalancing:
            return {"error_code": error or REBALANCE_IN_PROGRESS}
        member = self.members[member_id]
        self.touch(member)
        if member.assignment and not assignments:
            return {"assignment": member.assignment}
        member.syncing = asyncio.get_running_loop().create_future()
        if member_id == self.leader:
            self.completing = False
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
                _settle(each.syncing, {"assignment": each.assignment})
        elif self.members[self.leader].assignment:
            _settle(member.syncing, {"assignment": member.assignment})
        return await member.syncing

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        error = self._refusal_of_member(member_id, generation, instance_id)
        if not error:
            self.touch(self.members[member_id])
        return error or (REBALANCE_IN_PROGRESS if self.rebalancing else 0)

    def refusal(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        """The error code of a commit by one who isn't a member of this generation; an empty group takes anybody's."""
        if not member_id and generation < 0 and not self.members:
            return 0
        error = self._refusal_of_member(member_id, generation, instance_id)
        return error or (REBALANCE_IN_PROGRESS if self.completing else 0)

    def _refusal_of_member(self, member_id: str, generation: int, instance_id: str | None) -> int:
        if (known := self._of_instance(instance_id)) and known.member_id != member_id:
            return FENCED_INSTANCE_ID
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else ILLEGAL_GENERATION

    @property
    def leader(self) -> str:
        return next(iter(self.members))

    def touch(self, member: Member) -> None:
        if member.alive:
            member.alive.cancel()
        member.alive = asyncio.get_running_loop().call_later(member.session_s, self._expire, member)

    def _expire(self, member: Member) -> None:
        """End a session; one who waits for an answer is alive."""
        if any(waiting and not waiting.done() for waiting in (member.joining, member.syncing)):
            self.touch(member)
        else:
            self.leave(member.member_id)

    def _complete_if_all_are_here(self) -> None:
        if all(member.joining and not member.joining.done() for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        if self.deadline:
            self.deadline.cancel()
        self.members = {name: one for name, one in self.members.items() if one.joining and not one.joining.done()}
        self.generation += 1
        self.rebalancing, self.completing = False, bool(self.members)
        for member in list(self.members.values()):
            member.assignment = b""
            self.touch(member)
            _settle(member.joining, self._joined(member.member_id))

    def _joined(self, member_id: str) -> Answer:
        protocol = self._protocol()
        told = self.members.values() if member_id == self.leader else ()
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": protocol,
            "leader": self.leader,
            "member_id": member_id,
            "members": [
                {
                    "member_id": one.member_id,
                    "group_instance_id": one.instance_id,
                    "metadata": one.protocols.get(protocol, b""),
                }
                for one in told
            ],
        }

    def _protocol(self) -> str:
        """The first of the leader's that all have."""
        shared = set.intersection(*(set(member.protocols) for member in self.members.values()))
        return next((name for name in self.members[self.leader].protocols if name in shared), "")


def _settle(waiting: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if waiting and not waiting.done():
        waiting.set_result(answer)
