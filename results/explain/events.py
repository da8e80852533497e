"""Something that happened at a moment of the run, in words.

Journal and events in plain words: what a fault hit, what it asked for, what a client told.

Rules: a field that is missing is left out of the sentence, never invented; an event of a kind not known here is told by
its name and its fields.

Which faults were in force when, as the journal has it: those of the plan, and those injected by hand meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence.evidence import Evidence


@dataclass(frozen=True, order=True)
class Moment:
    """``who`` is the client it is told of, None for the run and its faults."""

    at_us: int
    text: str
    who: str | None = None

    @property
    def said(self) -> str:
        """The text, with whose it is."""
        return f"{self.who}: {self.text}" if self.who else self.text


Event = Mapping[str, Any]

_TARGETED = {"link", "broker", "rack", "topic", "client", "from", "to"}
_WHO = {"t_us", "event", "arm", "workload", "worker", "op"}
_LISTED_MAX = 4


def target(targets: Mapping[str, Any]) -> str:
    """``broker 2 in rack b (asked for as leader of orders/0; it led 4 partitions of orders and the quorum)``."""
    named = [*_named(targets)]
    return " and ".join(named) if named else "nothing that the journal names"


def _named(targets: Mapping[str, Any]) -> Iterator[str]:
    roles = targets.get("roles") or {}
    if brokers := targets.get("brokers"):
        rack = f" in rack {roles['rack']}" if roles.get("rack") and len(brokers) == 1 else ""
        yield f"broker{'s' * (len(brokers) > 1)} {listed(brokers)}{rack}{_role(roles)}"
    if links := targets.get("links"):
        yield f"link{'s' * (len(links) > 1)} {listed([link_name(link) for link in links])}"
    for one, many in (("topic", "topics"), ("client", "clients")):
        if names := targets.get(many):
            yield f"{one if len(names) == 1 else many} {listed(names)}"


def _role(roles: Mapping[str, Any]) -> str:
    asked = roles.get("asked")
    said = [f"asked for as {asked}"] if asked and not str(asked).isdigit() else []
    leads = roles.get("leads") or {}
    led = [f"{count} partitions of {topic}" for topic, count in leads.items() if not str(topic).startswith("__")]
    led += ["the quorum"] if roles.get("controller") is True else []
    said += [f"it led {' and '.join(led)}"] if led else []
    return f" ({'; '.join(said)})" if said else ""


def link_name(proxy: str) -> str:
    """``client_a-k2`` as ``client(a) -> k2``."""
    plane, _, rest = proxy.partition("_")
    rack, dash, node = rest.rpartition("-")
    return f"{plane}({rack}) -> {node}" if dash else proxy


def listed(names: Sequence[object]) -> str:
    """``a, b, c``; of many, the first few and how many more."""
    shown = ", ".join(map(str, names[:_LISTED_MAX]))
    return shown if len(names) <= _LISTED_MAX else f"{shown} and {len(names) - _LISTED_MAX} more"


def asked(step: Mapping[str, Any]) -> str:
    """What a step of the timeline asked for besides its target: ``delay 50ms``."""
    parameters = (step.get("parameters") or {}).items()
    return ", ".join(f"{name} {value}" for name, value in parameters if name not in _TARGETED)


def witnessed(told: Mapping[str, Any]) -> str:
    """``probe: asked 50 ms, observed 51.2 ms``."""
    unit = f" {told['unit']}" if told.get("unit") else ""
    wanted, found = (f"{_value(told.get(name))}{unit}" for name in ("asked", "observed"))
    return f"{told.get('what', 'witness')}: asked {wanted}, observed {found}"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def event(told: Event) -> str:
    """One event of a client, as a clause."""
    say = _SAID.get(str(told.get("event")))
    return say(told) if say else _plain(told)


def place(told: Event) -> str:
    """``orders/3``, or nothing where it is of no partition."""
    return "" if told.get("partition") is None else f"{told.get('topic')}/{told['partition']}"


def _plain(told: Event) -> str:
    fields = [f"{name} {value}" for name, value in told.items() if name not in _WHO and value not in (None, "")]
    return f"{told.get('event')}{': ' if fields else ''}{', '.join(fields)}"


def _at_epoch(told: Event) -> str:
    return "" if told.get("epoch") is None else f" at epoch {told['epoch']}"


def _hint(told: Event) -> str:
    return f"the hint that node {told.get('node_id')} leads {place(told)}{_at_epoch(told)}"


def _retried(told: Event) -> str:
    why = f"was refused with {told['reason']} and " if told.get("reason") else ""
    soon = ", at once" if told.get("immediate") else ""
    return f"{why}sent a batch of {place(told)} again, to node {told.get('node_id')}{_at_epoch(told)}{soon}"


_SAID: dict[str, Callable[[Event], str]] = {
    "batch_retried": _retried,
    "client_error": lambda told: f"{told.get('error')}: {told.get('detail')}",
    "commit_failed": lambda told: f"a commit failed: {told.get('reason')}",
    "commit_retried": lambda told: f"committed {place(told)} of {told.get('group')} again: {told.get('why')}",
    "fetch_failed": lambda told: f"a fetch from node {told.get('node_id')} failed: {told.get('reason')}",
    "group_error": lambda told: f"its group answered {told.get('error')}",
    "heartbeat_failed": lambda told: f"a heartbeat failed: {told.get('reason')}",
    "hint_accepted": lambda told: f"took {_hint(told)}",
    "hint_refused": lambda told: f"did not take {_hint(told)}: {told.get('reason')}",
    "metadata_failed": lambda told: f"could not get metadata: {told.get('why')}",
    "metadata_refreshed": lambda _: "got new metadata",
    "node_disconnected": lambda told: f"lost its connection to node {told.get('node_id')}: {told.get('why')}",
    "position_reset": lambda told: f"was reset to offset {told.get('offset')} of {place(told)}",
    "throttled": lambda told: f"was asked by node {told.get('node_id')} to wait {told.get('throttle_ms')} ms",
}


BY_HAND = "injected_by_hand"


@dataclass(frozen=True)
class Force:
    """One fault. ``window_us`` is what counts as its time: of the plan's faults as ``phases.json`` cut it.

    ``injected_us`` and ``healed_us`` are None where that never happened; in a rehearsal nothing is injected.
    """

    fault: str
    kind: str
    lines: tuple[Mapping[str, Any], ...]
    window_us: tuple[int, int] | None
    injected_us: int | None
    healed_us: int | None
    by_hand: bool
    rehearsed: bool

    @property
    def targets(self) -> Mapping[str, Any]:
        """What it was resolved to, by the last line that says."""
        return next((line["targets"] for line in reversed(self.lines) if line.get("targets")), {})

    def overlaps(self, start_us: int, end_us: int) -> bool:
        """Whether its time and this one meet."""
        return self.window_us is not None and self.window_us[0] < end_us and start_us < self.window_us[1]

    def in_force_us(self, start_us: int, end_us: int) -> int:
        """How long of this time it was in force, from injected to healed."""
        if self.injected_us is None or self.rehearsed:
            return 0
        until_us = end_us if self.healed_us is None else min(end_us, self.healed_us)
        return max(0, until_us - max(start_us, self.injected_us))


def forces(evidence: Evidence) -> tuple[Force, ...]:
    """The plan's faults in its order, also those that never began, then what else the journal has."""
    named = dict.fromkeys(str(step["id"]) for step in evidence.steps)
    named |= dict.fromkeys(str(line["fault"]) for line in evidence.journal)
    return tuple(_force(evidence, fault) for fault in named)


def _force(evidence: Evidence, fault: str) -> Force:
    lines = tuple(line for line in evidence.journal if line["fault"] == fault)
    kinds = [step["kind"] for step in evidence.steps if step["id"] == fault] + [line.get("kind") for line in lines]
    injected_us, healed_us = (_first_us(lines, state) for state in ("injected", "healed"))
    return Force(
        fault=fault,
        kind=str(next((kind for kind in kinds if kind), "fault")),
        lines=lines,
        window_us=_window(evidence, fault, lines, healed_us),
        injected_us=injected_us,
        healed_us=healed_us,
        by_hand=fault in set(_by_hand(evidence.events)),
        rehearsed=bool(evidence.run.get("rehearse")),
    )


def _first_us(lines: Sequence[Mapping[str, Any]], state: str) -> int | None:
    return next((line["t_us"] for line in lines if line["state"] == state), None)


def _window(
    evidence: Evidence, fault: str, lines: Sequence[Mapping[str, Any]], healed_us: int | None
) -> tuple[int, int] | None:
    """One that was never healed lasts to the end of the load."""
    if cut := evidence.window_of(fault):
        return cut.start_us, cut.end_us
    if not lines:
        return None
    ended_us = max((phase.end_us for phase in evidence.phases), default=lines[-1]["t_us"])
    return lines[0]["t_us"], healed_us or max(ended_us, lines[-1]["t_us"])


def _by_hand(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for event in events:
        if event.get("event") == BY_HAND and isinstance(event.get("fault"), Mapping):
            yield str(event["fault"].get("id"))
