"""Journal and events in plain words: what a fault hit, what it asked for, what a client told.

Rules: a field that is missing is left out of the sentence, never invented; an event of a kind not known here is told by
its name and its fields.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
