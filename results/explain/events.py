"""Journal and client events in plain words, and the times during which each fault was in force.

A missing field of an event is left out of the event's sentence; an event of an unknown type is described by its name
and fields. Faults of the plan and faults injected by hand during the run are described alike.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence.evidence import Evidence


@dataclass(frozen=True, order=True)
class Moment:
    """Moment of a run and the text about the moment; ``who`` is the client concerned, None for the run or a fault."""

    at_us: int
    text: str
    who: str | None = None

    def __str__(self) -> str:
        return f"{self.who}: {self.text}" if self.who else self.text


Event = Mapping[str, Any]


def target(targets: Mapping[str, Any]) -> str:
    """Describe a fault's targets, as in ``broker 2 in rack b (planned as leader of orders/0; it led 4 partitions)``."""
    texts, roles = [], targets.get("roles") or {}
    if brokers := targets.get("brokers"):
        rack = f" in rack {roles['rack']}" if roles.get("rack") and len(brokers) == 1 else ""
        planned = roles.get("asked")
        details = [f"planned as {planned}"] if planned and not str(planned).isdigit() else []
        leads = roles.get("leads") or {}
        led = [f"{count} partitions of {topic}" for topic, count in leads.items() if not str(topic).startswith("__")]
        led += ["the quorum"] if roles.get("controller") is True else []
        details += [f"it led {' and '.join(led)}"] if led else []
        role = f" ({'; '.join(details)})" if details else ""
        texts.append(f"broker{'s' * (len(brokers) > 1)} {listed(brokers)}{rack}{role}")
    if links := targets.get("links"):
        texts.append(f"link{'s' * (len(links) > 1)} {listed([link_name(link) for link in links])}")
    texts += [
        f"{kind}{'s' * (len(names) > 1)} {listed(names)}"
        for kind in ("topic", "client")
        if (names := targets.get(f"{kind}s"))
    ]
    return " and ".join(texts) or "targets that the journal doesn't name"


def link_name(proxy: str) -> str:
    """Return a link's name for readers, such as ``client(a) -> k2`` for proxy ``client_a-k2``."""
    plane, _, rest = proxy.partition("_")
    rack, dash, node = rest.rpartition("-")
    return f"{plane}({rack}) -> {node}" if dash else proxy


def listed(names: Sequence[object]) -> str:
    """Join names with commas; if there are many, the first few names and the number of further names."""
    shown = ", ".join(map(str, names[:4]))
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"  # noqa: PLR2004


def parameters_text(step: Mapping[str, Any]) -> str:
    """Format the parameters of a fault except the fault's target, such as ``delay 50ms``."""
    targets = {"link", "broker", "rack", "topic", "client", "from", "to"}
    parameters = (step.get("parameters") or {}).items()
    return ", ".join(f"{name} {value}" for name, value in parameters if name not in targets)


def witness_text(report: Mapping[str, Any]) -> str:
    """Describe a fault's witness by its name, the expected value and the observed value."""
    unit = f" {report['unit']}" if report.get("unit") else ""
    values = [report.get("asked"), report.get("observed")]
    expected, observed = (f"{value:g}{unit}" if isinstance(value, float) else f"{value}{unit}" for value in values)
    return f"{report.get('what', 'witness')}: expected {expected}, observed {observed}"


def event(line: Event) -> str:
    """Describe an event of a client, as in ``accepted the hint that node 2 leads orders/0``."""
    if describe := _CLAUSES.get(str(line.get("event"))):
        return describe(line)
    about = {"t_us", "event", "arm", "workload", "worker", "op"}
    fields = [f"{name} {value}" for name, value in line.items() if name not in about and value not in (None, "")]
    return f"{line.get('event')}{': ' if fields else ''}{', '.join(fields)}"


def place(line: Event) -> str:
    """Return the partition that an event is about, such as ``orders/3``; empty without a partition."""
    return "" if line.get("partition") is None else f"{line.get('topic')}/{line['partition']}"


def _at_epoch(line: Event) -> str:
    return "" if line.get("epoch") is None else f" at epoch {line['epoch']}"


def _hint(line: Event) -> str:
    return f"the hint that node {line.get('node_id')} leads {place(line)}{_at_epoch(line)}"


def _retried(line: Event) -> str:
    why = f"was refused with {line['reason']} and " if line.get("reason") else ""
    immediate = ", without back-off" if line.get("immediate") else ""
    return f"{why}sent a batch of {place(line)} again, to node {line.get('node_id')}{_at_epoch(line)}{immediate}"


def _member(line: Event) -> str:
    """Return the number of the group's member that wrote an event, as in ``member 2 ``; empty if there is only one."""
    number = re.search(r"-consume-(\d+)$", str(line.get("worker") or ""))
    return f"member {number[1]} " if number else ""


def _in_group(line: Event) -> str:
    """Return the epoch of a group event, from 1; a consumer that is no member of the group has none."""
    return _at_epoch(line) if (line.get("epoch") or 0) > 0 else ""


def _because(line: Event, field: str) -> str:
    return f": {line[field]}" if line.get(field) else ""


def _joined(line: Event) -> str:
    details = [f"{line['protocol']} protocol"] if line.get("protocol") else []
    details += [f"assignor {line['assignor']}"] if line.get("assignor") else []
    as_leader = ", as its leader" if line.get("leader") else ""
    how = f" ({', '.join(details)})" if details else ""
    return f"{_member(line)}joined the group{_in_group(line)}{as_leader}{how}"


def _lost(line: Event) -> str:
    places = [f"{topic}/{number}" for topic, number in line.get("partitions") or ()]
    return f"{_member(line)}lost {listed(places) or 'its partitions'}, which another member may own already"


_MET = {
    "open": "while the producer's next transaction was open",
    "between": "after its transaction, and before the next one began",
    "in_doubt": "after its transaction, while the producer began or ended another one",
}


def _held(line: Event) -> str:
    outcome = f" ({line['outcome']})" if line.get("outcome") else ""
    return f"the held {line.get('api')}{outcome} of {line.get('worker')}"


def _partitions(line: Event) -> str:
    places: Sequence[str] = line.get("places") or ()
    return str(places[0]) if len(places) == 1 else f"{line.get('n')} partitions"


_CLAUSES: dict[str, Callable[[Event], str]] = {
    "batch_retried": _retried,
    "broker_left": lambda line: f"broker {line.get('broker')} is no longer in the cluster",
    "broker_returned": lambda line: f"broker {line.get('broker')} is in the cluster again",
    "client_died": lambda line: f"ended by itself: {line.get('why')}",
    "client_error": lambda line: f"{line.get('error')}: {line.get('detail')}",
    "commit_failed": lambda line: f"a commit failed: {line.get('reason')}",
    "commit_retried": lambda line: f"committed {place(line)} of {line.get('group')} again: {line.get('why')}",
    "fetch_failed": lambda line: f"a fetch from node {line.get('node_id')} failed: {line.get('reason')}",
    "group_error": lambda line: f"got {line.get('error')} from the group coordinator",
    "group_joined": _joined,
    "heartbeat_failed": lambda line: f"a heartbeat failed: {line.get('reason')}",
    "held_request_delivered": lambda line: (
        f"node {line.get('node_id')} answered {_held(line)} with {line.get('answer')}, {_MET[line['met']]}"
    ),
    "held_request_lost": lambda line: f"{_held(line)} is lost: {line.get('why')}",
    "hint_accepted": lambda line: f"accepted {_hint(line)}",
    "hint_refused": lambda line: f"refused {_hint(line)}: {line.get('reason')}",
    "isr_joined": lambda line: f"broker {line.get('broker')} is in sync again on {_partitions(line)}",
    "isr_left": lambda line: f"broker {line.get('broker')} is no longer in sync on {_partitions(line)}",
    "member_fenced": lambda line: (
        f"{_member(line)}was excluded from the group{_in_group(line)}{_because(line, 'error')}"
    ),
    "metadata_failed": lambda line: f"could not get metadata: {line.get('why')}",
    "rebootstrapped": lambda line: f"forgot all brokers and connects to its bootstrap addresses: {line.get('reason')}",
    "metadata_refreshed": lambda _: "got new metadata",
    "node_disconnected": lambda line: f"lost its connection to node {line.get('node_id')}{_because(line, 'why')}",
    "partitions_lost": _lost,
    "poll_timeout": lambda line: (
        f"{_member(line)}left the group{_in_group(line)}, because it did not poll for max.poll.interval.ms"
    ),
    "position_reset": lambda line: f"had its position reset to offset {line.get('offset')} of {place(line)}",
    "rebalance_started": lambda line: f"{_member(line)}began to rebalance{_in_group(line)}{_because(line, 'reason')}",
    "connections_opened": lambda line: (
        f"{line.get('worker')} opened {line.get('connections')} connections to node {line.get('node_id')} in a second"
    ),
    "scripted_answer": lambda line: (
        f"{line.get('worker')} got answer {line.get('number')} of the script to {line.get('api')} from node "
        f"{line.get('node_id')}: {line.get('answer')}"
    ),
    "restarted": lambda _: "was started again by a fault's heal",
    "stalled": lambda line: f"stood still for {max(line.get('late_us', 0), line.get('suspended_us', 0)) / 1e6:.2f} s",
    "throttled": lambda line: f"was throttled by node {line.get('node_id')} for {line.get('throttle_ms')} ms",
}


@dataclass(frozen=True)
class Force:
    """Fault with the times during which the fault was in force; ``window_us`` spans from injection to heal.

    A fault that was never injected has no ``injected_us``, and a fault that was never healed no ``healed_us``; a
    rehearsal (``rehearsed``) injects no fault.
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
        """Resolved targets of the fault, from the fault's last line in the journal that has targets."""
        return next((line["targets"] for line in reversed(self.lines) if line.get("targets")), {})

    def overlaps(self, start_us: int, end_us: int) -> bool:
        return self.window_us is not None and self.window_us[0] < end_us and start_us < self.window_us[1]

    def in_force_us(self, start_us: int, end_us: int) -> int:
        """Return for how many microseconds of a span of time the fault was in force (injected and not healed)."""
        if self.injected_us is None or self.rehearsed:
            return 0
        until_us = end_us if self.healed_us is None else min(end_us, self.healed_us)
        return max(0, until_us - max(start_us, self.injected_us))


def forces(evidence: Evidence) -> tuple[Force, ...]:
    """Return the faults of the plan in order, also faults that never began, then faults that only the journal has."""
    step_kinds = {str(step["id"]): step["kind"] for step in evidence.steps}
    by_hand = {
        str(event["fault"].get("id"))
        for event in evidence.events
        if event.get("event") == "injected_by_hand" and isinstance(event.get("fault"), Mapping)
    }
    journal: dict[str, list[Mapping[str, Any]]] = {fault: [] for fault in step_kinds}
    for line in evidence.journal:
        journal.setdefault(str(line["fault"]), []).append(line)
    load_end_us = max((phase.end_us for phase in evidence.phases), default=0)
    result = []
    for fault, lines in journal.items():
        kinds = [step_kinds.get(fault), *(line.get("kind") for line in lines)]
        injected_us, healed_us = (
            next((line["t_us"] for line in lines if line["state"] == state), None) for state in ("injected", "healed")
        )
        window_us = None
        if phase := evidence.window_of(fault):
            window_us = phase.start_us, phase.end_us
        elif lines:  # a fault that was never healed lasts to the end of the load
            window_us = lines[0]["t_us"], healed_us or max(load_end_us, lines[-1]["t_us"])
        result.append(
            Force(
                fault=fault,
                kind=str(next(filter(None, kinds), "fault")),
                lines=tuple(lines),
                window_us=window_us,
                injected_us=injected_us,
                healed_us=healed_us,
                by_hand=fault in by_hand,
                rehearsed=bool(evidence.run.get("rehearse")),
            )
        )
    return tuple(result)
