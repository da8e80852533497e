"""What a fault leaves behind: who was hit, how to undo it, what was seen; and who writes that down.

Plain values only, so that the journal can hold them and any process can read them back. A fault is *open* from its
``intended`` line to its ``healed`` line; the undo of its last line is the one to perform.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

State = Literal["intended", "injected", "witnessed", "healing", "healed", "failed"]
Verb = Literal[
    "start",
    "resume",
    "remove_toxics",
    "enable_proxies",
    "redirect_proxies",
    "restore_assignment",
    "restore_settings",
    "create_topic",
    "restore_limits",
    "reopen_log_dir",
    "roll_back",
    "start_clients",
    "resume_clients",
    "remove_rules",
    "all_of",
    "nothing",
]


@dataclass(frozen=True)
class Targets:
    """Who a fault hits, once resolved; clients by their workers' names. ``roles``: what they did, free in form."""

    brokers: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``{"brokers": [1], "links": [...], "topics": [...], "clients": [...], "roles": {...}}``."""
        return {
            "brokers": list(self.brokers),
            "links": list(self.links),
            "topics": list(self.topics),
            "clients": list(self.clients),
            "roles": dict(self.roles),
        }


@dataclass(frozen=True)
class Undo:
    """How to heal, as data: one of a closed set of verbs (``undo.py`` performs them) and plain arguments."""

    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``{"verb": ..., "args": {...}}``."""
        return {"verb": self.verb, "args": dict(self.args)}


NOTHING = Undo("nothing")


def all_of(undos: Iterable[Undo]) -> Undo:
    """One undo for a fault with several targets: performed in this order, each tried whatever became of the others."""
    return Undo("all_of", {"undos": [undo.as_json() for undo in undos]})


@dataclass(frozen=True)
class Witness:
    """One measurement that a fault is in force: ``observed`` against ``asked`` in ``unit``, over ``n`` observations."""

    what: str
    asked: float
    observed: float
    unit: str
    n: int
    ok: bool

    def as_json(self) -> dict[str, Any]:
        """The fields as they are."""
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """One line of the journal, but for when it was written and by whom."""

    fault: str
    kind: str
    state: State
    targets: Targets
    undo: Undo
    witness: Witness | None = None
    why: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as they are; ``witness`` and ``why`` only where there is one."""
        line: dict[str, Any] = {"fault": self.fault, "kind": self.kind, "state": self.state}
        line |= {"targets": self.targets.as_json(), "undo": self.undo.as_json()}
        line |= {"witness": self.witness.as_json()} if self.witness else {}
        return line | ({"why": self.why} if self.why else {})


class Journal(Protocol):
    """The write-ahead log of faults. ``record`` returns when the line is on the disk."""

    def record(self, entry: Entry) -> None:
        """Write one line and fsync it."""


class Clock(Protocol):
    """The run's clock: microseconds since the run's origin, monotonic."""

    def now_us(self) -> int:
        """Now."""

    async def sleep_until_us(self, t_us: int) -> None:
        """Return at ``t_us``, at once if that is past."""
