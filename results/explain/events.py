"""Journal and events in plain words, and the times during which each fault was in force.

Rules: a missing field is left out of the sentence, never invented; an event of an unknown kind is shown by its name and
its fields. Faults are those of the plan and those that were injected by hand during the run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence.evidence import Evidence


@dataclass(frozen=True, order=True)
class Moment:
    """Event at a moment of the run; ``who`` is the client, None for the run and its faults."""

    at_us: int
    text: str
    who: str | None = None

    @property
    def said(self) -> str:
        """Text of the event, with the client in front."""
        return f"{self.who}: {self.text}" if self.who else self.text


Event = Mapping[str, Any]

_TARGETED = {"link", "broker", "rack", "topic", "client", "from", "to"}
_WHO = {"t_us", "event", "arm", "workload", "worker", "op"}
_LISTED_MAX = 4


def target(targets: Mapping[str, Any]) -> str:
    """Return ``broker 2 in rack b (planned as leader of orders/0; it led 4 partitions of orders and the quorum)``."""
    return " and ".join(_named(targets)) or "targets that the journal doesn't name"


def _named(targets: Mapping[str, Any]) -> Iterator[str]:
    roles = targets.get("roles") or {}
    if brokers := targets.get("brokers"):
        rack = f" in rack {roles['rack']}" if roles.get("rack") and len(brokers) == 1 else ""
        yield f"broker{'s' * (len(brokers) > 1)} {listed(brokers)}{rack}{_role(roles)}"
    if links := targets.get("links"):
        yield f"link{'s' * (len(links) > 1)} {listed([link_name(link) for link in links])}"
    for singular, plural in (("topic", "topics"), ("client", "clients")):
        if names := targets.get(plural):
            yield f"{singular if len(names) == 1 else plural} {listed(names)}"


def _role(roles: Mapping[str, Any]) -> str:
    planned = roles.get("asked")
    texts = [f"planned as {planned}"] if planned and not str(planned).isdigit() else []
    leads = roles.get("leads") or {}
    led = [f"{count} partitions of {topic}" for topic, count in leads.items() if not str(topic).startswith("__")]
    led += ["the quorum"] if roles.get("controller") is True else []
    texts += [f"it led {' and '.join(led)}"] if led else []
    return f" ({'; '.join(texts)})" if texts else ""


def link_name(proxy: str) -> str:
    """Return ``client_a-k2`` as ``client(a) -> k2``."""
    plane, _, rest = proxy.partition("_")
    rack, dash, node = rest.rpartition("-")
    return f"{plane}({rack}) -> {node}" if dash else proxy


def listed(names: Sequence[object]) -> str:
    """Return ``a, b, c``; if there are many names, the first few and the number of further names."""
    shown = ", ".join(map(str, names[:_LISTED_MAX]))
    return shown if len(names) <= _LISTED_MAX else f"{shown} and {len(names) - _LISTED_MAX} more"


def parameters_text(step: Mapping[str, Any]) -> str:
    """Return the parameters of a step without its target: ``delay 50ms``."""
    parameters = (step.get("parameters") or {}).items()
    return ", ".join(f"{name} {value}" for name, value in parameters if name not in _TARGETED)


def witness_text(report: Mapping[str, Any]) -> str:
    """Return ``probe: expected 50 ms, observed 51.2 ms``."""
    unit = f" {report['unit']}" if report.get("unit") else ""
    values = [report.get("asked"), report.get("observed")]
    expected, observed = (f"{value:g}{unit}" if isinstance(value, float) else f"{value}{unit}" for value in values)
    return f"{report.get('what', 'witness')}: expected {expected}, observed {observed}"


def event(line: Event) -> str:
    """Return an event of a client as a clause: ``accepted the hint that node 2 leads orders/0``."""
    if describe := _CLAUSES.get(str(line.get("event"))):
        return describe(line)
    fields = [f"{name} {value}" for name, value in line.items() if name not in _WHO and value not in (None, "")]
    return f"{line.get('event')}{': ' if fields else ''}{', '.join(fields)}"


def place(line: Event) -> str:
    """Return the partition of an event, ``orders/3``, or an empty text."""
    return "" if line.get("partition") is None else f"{line.get('topic')}/{line['partition']}"


def _at_epoch(line: Event) -> str:
    return "" if line.get("epoch") is None else f" at epoch {line['epoch']}"


def _hint(line: Event) -> str:
    return f"the hint that node {line.get('node_id')} leads {place(line)}{_at_epoch(line)}"


def _retried(line: Event) -> str:
    why = f"was refused with {line['reason']} and " if line.get("reason") else ""
    immediate = ", without back-off" if line.get("immediate") else ""
    return f"{why}sent a batch of {place(line)} again, to node {line.get('node_id')}{_at_epoch(line)}{immediate}"


_CLAUSES: dict[str, Callable[[Event], str]] = {
    "batch_retried": _retried,
    "client_error": lambda line: f"{line.get('error')}: {line.get('detail')}",
    "commit_failed": lambda line: f"a commit failed: {line.get('reason')}",
    "commit_retried": lambda line: f"committed {place(line)} of {line.get('group')} again: {line.get('why')}",
    "fetch_failed": lambda line: f"a fetch from node {line.get('node_id')} failed: {line.get('reason')}",
    "group_error": lambda line: f"its group returned {line.get('error')}",
    "heartbeat_failed": lambda line: f"a heartbeat failed: {line.get('reason')}",
    "hint_accepted": lambda line: f"accepted {_hint(line)}",
    "hint_refused": lambda line: f"refused {_hint(line)}: {line.get('reason')}",
    "metadata_failed": lambda line: f"could not get metadata: {line.get('why')}",
    "metadata_refreshed": lambda _: "got new metadata",
    "node_disconnected": lambda line: f"lost its connection to node {line.get('node_id')}: {line.get('why')}",
    "position_reset": lambda line: f"was reset to offset {line.get('offset')} of {place(line)}",
    "throttled": lambda line: f"was throttled by node {line.get('node_id')} for {line.get('throttle_ms')} ms",
}


BY_HAND = "injected_by_hand"


@dataclass(frozen=True)
class Force:
    """Fault with its times. ``window_us`` is its window; for a fault of the plan it comes from ``phases.json``.

    ``injected_us`` and ``healed_us`` are None if the fault was never injected or healed; in a rehearsal nothing is
    injected.
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
        """The resolved targets, from the last line of the journal that has them."""
        return next((line["targets"] for line in reversed(self.lines) if line.get("targets")), {})

    def overlaps(self, start_us: int, end_us: int) -> bool:
        """Return whether the fault's window overlaps this time."""
        return self.window_us is not None and self.window_us[0] < end_us and start_us < self.window_us[1]

    def in_force_us(self, start_us: int, end_us: int) -> int:
        """Return how long the fault was in force, from injected to healed, within this time."""
        if self.injected_us is None or self.rehearsed:
            return 0
        until_us = end_us if self.healed_us is None else min(end_us, self.healed_us)
        return max(0, until_us - max(start_us, self.injected_us))


def forces(evidence: Evidence) -> tuple[Force, ...]:
    """Return the plan's faults in its order, including those that never began, then the others of the journal."""
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
    """Return the fault's window; a fault that was never healed lasts to the end of the load."""
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
