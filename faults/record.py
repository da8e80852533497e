"""What a fault leaves behind: who was hit, how to undo it, what was seen; and who writes that down.

Plain values only, so that the journal can hold them and any process can read them back. A fault is *open* from its
``intended`` line to its ``healed`` line; the undo of its last line is the one to perform.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

State = Literal["intended", "injected", "witnessed", "healing", "healed", "failed"]
Verb = Literal["start", "resume", "remove_toxics", "enable_proxies", "restore_assignment", "nothing"]


@dataclass(frozen=True)
class Targets:
    """Who a fault hits, once resolved. ``roles``: what those nodes were doing, free in form."""

    brokers: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``{"brokers": [1], "links": [...], "topics": [...], "roles": {...}}``."""
        return {
            "brokers": list(self.brokers),
            "links": list(self.links),
            "topics": list(self.topics),
            "roles": dict(self.roles),
        }


@dataclass(frozen=True)
class Undo:
    """How to heal, as data: one of a closed set of verbs (``faults/undo.py`` performs them) and plain arguments."""

    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``{"verb": ..., "args": {...}}``."""
        return {"verb": self.verb, "args": dict(self.args)}


NOTHING = Undo("nothing")


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


class Journal(Protocol):
    """The write-ahead log of faults. ``record`` returns when the line is on the disk."""

    def record(
        self,
        fault: str,
        kind: str,
        state: State,
        targets: Targets,
        undo: Undo,
        *,
        witness: Witness | None = None,
        why: str | None = None,
    ) -> None:
        """Write one line and fsync it."""


class Clock(Protocol):
    """The run's clock: microseconds since the run's origin, monotonic."""

    def now_us(self) -> int:
        """Now."""

    async def sleep_until_us(self, t_us: int) -> None:
        """Return at ``t_us``, at once if that is past."""
