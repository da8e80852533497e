"""What each client counted of its own decisions: hints taken, retries, sessions lost, replicas switched.

A table for each operation, a row for each counter and a column for each client, so that two arms that differ in one
rule are seen to differ in its counters.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Table = tuple[list[str], list[tuple[str, list[int | None]]]]


def counted(events: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> dict[str, Table]:
    """Operation → (clients, [(counter, its value for each client)]); None where a client has no such counter."""
    told: dict[str, dict[str, Mapping[str, int]]] = {}
    for line in events:
        if line.get("event") == "counters":
            client = f"{line.get('workload')}/{line.get('arm')}"
            told.setdefault(str(line.get("op")), {})[labels.get(client, client)] = line.get("counters") or {}
    return {op: _table(clients) for op, clients in sorted(told.items())}


def _table(clients: Mapping[str, Mapping[str, int]]) -> Table:
    names = sorted({name for counters in clients.values() for name in counters})
    return [*clients], [(name, [counters.get(name) for counters in clients.values()]) for name in names]
