"""What may be said of each kind: ``words.yaml``, in which words in capitals stand for something of the plan.

Everything said in one saying is about one client, so its topic is the one that the client uses, and its rack the one
where it stands: a fault that is drawn for a client can meet it.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aftershock.faults.coverage.worker import Worker
from aftershock.faults.document import load
from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS
from aftershock.faults.plan import Plan

_PAGE_FILE = Path(__file__).with_name("words.yaml")
_TOKEN = re.compile(r"TOPIC|PARTITION|RACK|OTHER|GROUP|CLIENT|OP")
_LASTS = ["3s", "6s"]
_BY_WORD = {
    "ROLE": "BROKER",
    "LINK": "CLIENT_LINK",
    "DURATION": ["100ms", "1s"],
    "SIZE": ["2kB", "64KiB"],
    "RATE": "10/s",
    "BANDWIDTH": ["20kB/s", "1MB/s"],
}
_BY_NAME = {"topic": "TOPIC", "rack": "RACK", "client": "CLIENT"}


@dataclass(frozen=True)
class Saying:
    """One way to say a fault, whom it hits already chosen; what it still leaves open is drawn each time."""

    kind: str
    words: Mapping[str, Any]


@cache
def _page() -> Mapping[str, Any]:
    return dict(load(_PAGE_FILE).data)


@cache
def sayings() -> tuple[Saying, ...]:
    """All of every kind, in the catalogue's order; a kind that nothing can be said of has none."""
    page = _page()
    return tuple(
        Saying(kind, words)
        for kind, fault in KINDS.items()
        for said in page["kinds"].get(kind) or _by_schema(fault)
        for words in _aimed(said, page["targets"])
    )


def companion(kind: str) -> Saying | None:
    """What has to happen while a fault of this kind is in force, or nothing meets it."""
    said = _page()["company"].get(kind)
    return Saying(said["kind"], {name: value for name, value in said.items() if name != "kind"}) if said else None


def say(saying: Saying, about: Worker, plan: Plan, source: random.Random) -> dict[str, Any] | None:
    """One fault as a plan says it, without ``at``; None where the plan has nothing that a word could stand for."""
    try:
        names = {token: source.choice(options) for token, options in _options(about, plan).items()}
    except IndexError:
        return None
    said = {name: _drawn(value, names, source) for name, value in saying.words.items()}
    if any(_TOKEN.search(text) for text in _texts(said)):
        return None
    if KINDS[saying.kind].for_rule == "needed" and "for" not in said:
        said["for"] = source.choice(_LASTS)
    return {"kind": saying.kind, **said}


def _options(about: Worker, plan: Plan) -> dict[str, list[str]]:
    partitions = next(topic.partitions for topic in plan.topics if topic.name == about.topic)
    groups = [group for workload in plan.workloads for group in workload.consumer_groups]
    others = [rack for rack in plan.cluster.racks if rack != about.rack]
    found: dict[str, list[str]] = {
        "TOPIC": [about.topic],
        "PARTITION": [str(number) for number in range(partitions)],
        "RACK": [about.rack],
        "OTHER": others,
        "GROUP": groups,
        "CLIENT": [f"{about.workload}/{about.arm}"],
        "OP": [about.op],
    }
    return {token: options for token, options in found.items() if options}


def _drawn(value: Any, names: Mapping[str, str], source: random.Random) -> Any:
    if isinstance(value, list):
        chosen = source.choice(value)
        return chosen if isinstance(chosen, list) else _drawn(chosen, names, source)
    if isinstance(value, dict):
        return {key: _drawn(inner, names, source) for key, inner in value.items()}
    if isinstance(value, str):
        return _TOKEN.sub(lambda token: names.get(token[0], token[0]), value)
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _aimed(said: Mapping[str, Any], targets: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """One for each target that a word may stand for."""
    places = [name for name, value in said.items() if isinstance(value, str) and value in targets]
    if not places:
        yield dict(said)
    for text in targets[said[places[0]]] if places else ():
        yield {**said, places[0]: text}


def _by_schema(fault: type[Fault]) -> list[dict[str, Any]]:
    """What is needed, as far as the schema tells what would do; nothing where it doesn't."""
    schema = fault.model_json_schema(by_alias=True)
    needed = [name for name in schema.get("required", ()) if name not in ("kind", "at", "for")]
    fields = {name: _BY_NAME.get(name) or _BY_WORD.get(schema["properties"][name].get("x-word")) for name in needed}
    return [] if None in fields.values() else [fields]
