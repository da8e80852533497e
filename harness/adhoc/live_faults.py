"""The faults that are in force on a cluster now: what its journal says is open, who holds each, how long it has left.

And what is wrong with its links that no journal accounts for: somebody's own toxic, somebody's own disabled proxy.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.faults.from_run import EVENT
from aftershock.faults.units import parse_duration_ms
from aftershock.faults.values import Toxic
from aftershock.harness import labels
from aftershock.harness.adhoc.kept import how_to_heal
from aftershock.harness.journal import Line, open_faults, read_journal
from aftershock.results.files import read_json, read_lines

Words = Mapping[str, Any]


@dataclass(frozen=True)
class LiveFault:
    """One fault in force. ``left_ms``: None where it has no end of its own; 0 where that is past."""

    id: str
    kind: str
    targets: Words
    left_ms: int | None
    owner: str

    @property
    def pid(self) -> int:
        """The process that injected it."""
        return int(self.owner.partition(":")[0] or 0)

    @property
    def orphaned(self) -> bool:
        """Whether that process is dead, so that nobody will heal it."""
        return not labels.lives(self.owner)

    def held(self) -> str:
        """``held by process 4711, 3 s left``, or that nobody holds it."""
        if self.orphaned:
            return f"orphaned, process {self.pid} is dead"
        left = "" if self.left_ms is None else f", {self.left_ms / 1000:.0f} s left"
        return f"held by process {self.pid}{left}"

    def told(self) -> str:
        """It all on one line."""
        return f"{self.id}: {self.kind} on {where(self.targets)}; {self.held()}"

    def to_json(self, run_id: str) -> dict[str, Any]:
        """What ``cluster status --json`` says of it."""
        holder = {"pid": self.pid, "alive": not self.orphaned}
        told = {"id": self.id, "kind": self.kind, "targets": self.targets, "left_ms": self.left_ms}
        return {**told, "held_by": holder, "heal": how_to_heal(run_id)}


def where(targets: Words) -> str:
    """``node 2``, ``client_a-k1``, ``topic orders`` or a client's name: a fault's targets as the journal has them."""
    nodes = [f"node {broker}" for broker in targets["brokers"]]
    topics = [f"topic {topic}" for topic in targets["topics"]]
    return ", ".join([*nodes, *targets["links"], *topics, *targets.get("clients", ())]) or "whatever it meets"


def live_faults(home: Path, now_us: int) -> list[LiveFault]:
    """The faults in force in the order they began, at ``now_us`` of the clock of the run whose home this is.

    Raises:
        EvidenceError: the journal can't be read.
    """
    lines = read_journal(home / "journal.jsonl")
    lasting = _lasting_ms(home)
    begun_us = {line["fault"]: line["t_us"] for line in lines if line["state"] == "intended"}
    return [_live(line, lasting.get(line["fault"]), begun_us[line["fault"]], now_us) for line in open_faults(lines)]


def not_ours(
    faults: Collection[Line], toxics: Mapping[str, Collection[Toxic]], disabled: Collection[str]
) -> Iterator[str]:
    """A sentence for each toxic and each disabled proxy that no open fault (its last line) would undo."""
    undone = [line["undo"] for line in faults]
    mine = {tuple(pair) for undo in undone if undo["verb"] == "remove_toxics" for pair in undo["args"]["toxics"]}
    shut = {proxy for undo in undone if undo["verb"] == "enable_proxies" for proxy in undo["args"]["proxies"]}
    for proxy, there in sorted(toxics.items()):
        for toxic in there:
            if (proxy, toxic.name) not in mine:
                yield f"not ours: toxic {toxic.name} ({toxic.type}, {toxic.stream}) on proxy {proxy}"
    yield from (f"not ours: proxy {proxy} is disabled" for proxy in sorted(set(disabled) - shut))


def _live(line: Line, lasting_ms: int | None, begun_us: int, now_us: int) -> LiveFault:
    left_ms = None if lasting_ms is None else max(0, lasting_ms - (now_us - begun_us) // 1000)
    return LiveFault(line["fault"], line["kind"], line["targets"], left_ms, line.get("owner", ""))


def _lasting_ms(home: Path) -> dict[str, int]:
    """How long each fault is to last, by its id: of the plan, and by hand. One without an end of its own is absent."""
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    lasting = {step["id"]: step["for_ms"] for step in planned if step["for_ms"] is not None}
    by_hand = [line["fault"] for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT]
    return lasting | {words["id"]: parse_duration_ms(words["for"]) for words in by_hand if "for" in words}
