"""Several who inject into one cluster at once: each fault has an id of its own, and no two would fight.

Ids are claimed, and a fault's targets compared with those in force, by one process at a time; the claim is the event
that says what was asked for, the comparison ends with the journal's first line of the fault.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aftershock.errors import FaultError
from aftershock.faults.conflicts import clash
from aftershock.faults.fault import Fault
from aftershock.faults.from_run import EVENT
from aftershock.faults.record import Entry, Targets
from aftershock.harness.adhoc.kept import how_to_heal
from aftershock.harness.adhoc.live_faults import live_faults
from aftershock.harness.clock import RunClock
from aftershock.harness.flock import Lock
from aftershock.harness.journal import Journal, read_journal
from aftershock.harness.rundir import RunDir
from aftershock.results.files import read_json, read_lines

_LOCK = "inject.lock"
_DEADLINE_S = 10.0  # it is held for some milliseconds
_PERIOD_S = 0.01


def claim(home: RunDir, fault: Fault, topics: Sequence[Mapping[str, Any]], now_us: int) -> Fault:
    """The fault under an id that no other fault of this cluster has or will have, written down before it is injected.

    Raises:
        FaultError: others held the lock for too long.
    """
    with _alone(home.path):
        fault = fault.model_copy(update={"id": free_id(home.path, fault.kind)})
        home.event(now_us, EVENT, fault=_words(fault), topics=list(topics))
    return fault


class SharedJournal(Journal):
    """The journal of a cluster that others inject into as well: the first line of a fault is refused if it fights."""

    def __init__(self, home: RunDir, clock: RunClock, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say
        super().__init__(home.path / "journal.jsonl", clock)

    def record(self, entry: Entry) -> None:
        """See `Journal`. The first witness that sees the fault is told.

        Raises:
            FaultError: a fault in force is on the same target; nothing was written, so nothing may be touched.
        """
        if entry.state != "intended":
            if entry.witness and entry.witness.ok and not any("witness" in line for line in self.lines):
                self._say(f"{entry.fault}: seen: {entry.witness.what}")
            super().record(entry)
            return
        with _alone(self._home.path):
            if fight := self.fight(entry.kind, entry.targets):
                raise FaultError(fight)
            super().record(entry)

    @property
    def cluster(self) -> str:
        """The run id of the cluster."""
        return self._home.run_id

    def in_force(self) -> str:
        """What is in force on the cluster now, whoever injected it, as a clause; "" if nothing is."""
        live = live_faults(self._home.path, self._clock.now_us())
        return f"in force now: {'; '.join(fault.told() for fault in live)}" if live else ""

    def fight(self, kind: str, targets: Targets) -> str | None:
        """Why a fault on these targets may not begin now, and what to do; None if it may."""
        for fault in live_faults(self._home.path, self._clock.now_us()):
            if what := clash(kind, targets.as_json(), fault.kind, fault.targets):
                heal = how_to_heal(self.cluster)
                return f"{what} is taken by {fault.told()}; wait for its end, or heal it with: {heal}"
        return None


def free_id(home: Path, kind: str) -> str:
    """``<kind>-<n>`` that no fault of the plan, none by hand and none in the journal has."""
    events = (line for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT)
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    taken = {line["fault"]["id"] for line in events} | {step["id"] for step in planned}
    taken |= {line["fault"] for line in read_journal(home / "journal.jsonl")}
    return next(name for number in count(1) if (name := f"{kind}-{number}") not in taken)


def _words(fault: Fault) -> dict[str, Any]:
    """The fault as a plan says it, but for when."""
    words = fault.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {key: value for key, value in words.items() if key != "at"}


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    lock = Lock(home / _LOCK)
    give_up_s = time.monotonic() + _DEADLINE_S
    while not lock.take("aftershock inject"):
        if time.monotonic() > give_up_s:
            raise FaultError(f"{lock.path} is held by {lock.held_by()}; wait for it, or end that process")
        time.sleep(_PERIOD_S)
    try:
        yield
    finally:
        lock.release()
