"""Journal entries of a fault, with its targets, its undo and its witnesses.

A fault is *open* from its ``intended`` entry to its ``healed`` entry. Any process can heal an open fault, because the
undo in the fault's last journal entry consists of plain values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

State = Literal["intended", "injected", "witnessed", "healing", "healed", "failed"]
Verb = Literal[
    "start",
    "resume",
    "uncordon",
    "remove_toxics",
    "enable_proxies",
    "redirect_proxies",
    "restore_assignment",
    "restore_settings",
    "create_topic",
    "end_flood",
    "restore_limits",
    "reopen_log_dir",
    "restore_power",
    "restore_disk",
    "restore_clock",
    "stop_gc_pauses",
    "remove_packet_rules",
    "roll_back",
    "start_clients",
    "leave_clients",
    "resume_clients",
    "resume_polling",
    "remove_rules",
    "all_of",
    "nothing",
]


@dataclass(frozen=True)
class Targets:
    """Targets of a fault in the running cluster; ``clients`` are names of client processes.

    ``roles`` has the roles (such as leader) that target brokers held at the injection, and facts that only some fault
    kinds record.
    """

    brokers: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in ("brokers", "links", "topics", "clients")}
        return lists | {"roles": dict(self.roles)}


@dataclass(frozen=True)
class Undo:
    """Undo of a fault as data, that is a verb from the closed set in ``undo.py``, and plain arguments."""

    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"verb": self.verb, "args": dict(self.args)}


NOTHING = Undo("nothing")


def all_of(undos: Iterable[Undo]) -> Undo:
    """Combine undos into one undo, which performs each undo in this order, even after another undo has failed."""
    return Undo("all_of", {"undos": [undo.as_json() for undo in undos]})


@dataclass(frozen=True)
class Witness:
    """Measurement that shows a fault in force; ``asked`` is the expected value, ``n`` the number of observations."""

    what: str
    asked: float
    observed: float
    unit: str
    n: int
    ok: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """Line of the journal of faults, without the time and the writer of the line."""

    fault: str
    kind: str
    state: State
    targets: Targets
    undo: Undo
    witness: Witness | None = None
    why: str | None = None

    def as_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {"fault": self.fault, "kind": self.kind, "state": self.state}
        line |= {"targets": self.targets.as_json(), "undo": self.undo.as_json()}
        line |= {"witness": self.witness.as_json()} if self.witness else {}
        return line | ({"why": self.why} if self.why else {})


class Journal(Protocol):
    """Write-ahead log of faults."""

    def record(self, entry: Entry) -> None:
        """Write one journal entry; return when it is on disk (fsync)."""


class Clock(Protocol):
    """The run's monotonic clock, in microseconds since the run's start."""

    def now_us(self) -> int:
        """Return the microseconds since the run's origin."""

    async def sleep_until_us(self, t_us: int) -> None:
        """Sleep until ``t_us`` on the run's clock; return immediately if that time is past."""
