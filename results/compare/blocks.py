"""One number a block: what comparisons are made of, read from what Spark measured or from ``analysis.json``.

::

    produce.latency p95 [in WINDOW]     also of consume, commit; .service; pNN(.N) or max; without a window: in fault
    produce.gap                         also of consume, commit: the longest time without a success in the whole block
    recovery [after FAULT]              from inject until all is calm; of several faults in a block the slowest

Rules: microseconds, lower is better, None is slower than any. A quantile needs as many records in *every* block as it
does anywhere, 10/(1-q). What is over within Kafka's first back-off (``retry.backoff.ms``, 100 ms) counts as that long:
the client never met the fault, and below it ratios are noise.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.errors import AftershockError
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.facts import MAX, Calm, Cut, Slice

BACK_OFF_US = 100_000
RECOVERY = "recovery"
_LATENCY = re.compile(r"((?:produce|consume|commit)\.(?:latency|service))\s+(max|p\d{1,2}(?:\.\d+)?)(?:\s+in\s+(\S+))?")
_GAP = re.compile(r"(?:produce|consume|commit)\.gap")
_RECOVERY = re.compile(r"recovery(?:\s+after\s+(\S+))?")


@dataclass(frozen=True)
class Measure:
    """What is compared. ``q`` None: a gap or a recovery, of which there is one a block; ``after``: one fault alone."""

    metric: str
    q: float | None = None
    window: str = RUN
    after: str | None = None

    def __str__(self) -> str:
        if self.metric == RECOVERY:
            return f"recovery after {self.after}" if self.after else RECOVERY
        if self.q is None:
            return self.metric
        name = "max" if self.q == MAX else f"p{(Decimal(repr(self.q)) * 100).normalize():f}"
        return f"{self.metric} {name} in {self.window}"

    @property
    def cut(self) -> Cut:
        """What has to be measured for it."""
        return Cut(self.metric, self.window, each="block")

    @property
    def needs(self) -> int:
        """The fewest records a block; a gap or a recovery is there or it is not."""
        if self.q is None or self.q == MAX:
            return 0 if self.q is None else 1
        return math.ceil(10 / (1 - Fraction(repr(self.q))))


@dataclass(frozen=True)
class Block:
    """Its value in microseconds, None where it was slower than any, of ``n`` records."""

    value_us: float | None
    n: int


Blocks: TypeAlias = Mapping[int, Block]


def parse(text: str) -> Measure:
    """The measure that ``text`` names. Raises AftershockError."""
    said = text.strip()
    if found := _LATENCY.fullmatch(said):
        metric, q, window = found.groups()
        return Measure(metric, MAX if q == "max" else float(Decimal(q[1:]) / 100), window or "fault")
    if _GAP.fullmatch(said):
        return Measure(said)
    if found := _RECOVERY.fullmatch(said):
        return Measure(RECOVERY, after=found[1])
    raise AftershockError(
        f"{text!r} can't be compared; write a metric like 'produce.latency p95 in fault', 'produce.gap' or "
        "'recovery after kill-1'"
    )


def standing(sides: Iterable[str]) -> tuple[Measure, ...]:
    """What is compared unless asked otherwise, of clients that do these things: recovery, and p95 under the fault."""
    does = tuple(sides)
    recovery = (Measure(RECOVERY),) if "produce" in does else ()
    return (*recovery, *(Measure(f"{side}.latency", 0.95, "fault") for side in does))


def block_cuts(evidence: Evidence) -> tuple[Cut, ...]:
    """What is measured of every run with blocks, so that its arms can be compared afterwards without Spark."""
    if not any(phase.block for phase in evidence.phases):
        return ()
    sides = dict.fromkeys(side for client in evidence.clients for side in sides_of(client))
    entries = dict.fromkeys(phase.entry for phase in evidence.phases if phase.entry)
    windows = ["fault", "recovery", *([f"fault/{entry}" for entry in entries] if len(entries) > 1 else [])]
    latencies = [Cut(f"{side}.latency", window, each="block") for side in sides for window in windows]
    return (*latencies, *(Cut(f"{side}.gap", RUN, each="block") for side in sides))


def sides_of(client: Client) -> tuple[str, ...]:
    """What the client does: ``produce``, ``consume``, ``commit``."""
    topics = {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}
    return tuple(side for side, topic in topics.items() if topic is not None)


def of_slices(slices: Sequence[Slice], q: float | None) -> dict[int, Block]:
    """The blocks of a cut; ``q`` None of a gap."""
    return {
        number: _gap(one.seen.slowest_us, one.seen.n) if q is None else Block(one.seen.at.get(q), one.seen.n)
        for one in slices
        if (number := _number(one.subject))
    }


def stored(analysis: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], measure: Measure, client: str) -> Blocks:
    """The blocks that ``analysis.json`` holds of a client (``workload/arm``); none where it was not measured.

    A run without blocks is one.
    """
    blocked = any(step.get("block") for step in steps)
    if measure.metric == RECOVERY:
        return _recoveries(analysis, steps, measure, client, others=0 if blocked else 1)
    if not blocked:
        return _whole(analysis, measure, client)
    rows = (row for row in analysis.get("cuts", ()) if _is(row, measure.cut) and row["client"] == client)
    found = {_number(one["subject"]): _block(one, measure) for row in rows for one in row["slices"]}
    return {number: block for number, block in found.items() if number and block}


def _whole(analysis: Mapping[str, Any], measure: Measure, client: str) -> dict[int, Block]:
    """The one block that a run without blocks is."""
    rows = analysis["gaps" if measure.q is None else "distributions"]
    wanted = (measure.metric, client, measure.window)
    found = (row for row in rows if (row["metric"], row["client"], row["window"]) == wanted)
    blocks = [_block({"slowest_us": row.get("longest_us"), **row}, measure) for row in found]
    return {number: block for number, block in enumerate(blocks, 1) if block}


def _block(row: Mapping[str, Any], measure: Measure) -> Block | None:
    """None where the quantile was not measured."""
    if measure.q is None:
        return _gap(row["slowest_us"], row["n"])
    key = repr(measure.q)
    return Block(row["at"][key], row["n"]) if key in row["at"] else None


def _gap(longest_us: int | None, successes: int) -> Block:
    """Where nothing succeeded there was no end to it."""
    return Block(longest_us if successes else None, successes)


def _recoveries(
    analysis: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], measure: Measure, client: str, others: int
) -> dict[int, Block]:
    """``others``: the block of a step that is in none."""
    block_of = {
        step["id"]: int(step.get("block") or others)
        for step in steps
        if measure.after in (None, step["id"], step.get("entry", step["id"]))
    }
    blocks: dict[int, Block] = {}
    for row in analysis.get("recoveries", ()):
        number = block_of.get(row["fault"], 0)
        if row["client"] == client and number and _standard(row):
            blocks[number] = _slower(blocks.get(number), _recovered(row))
    return blocks


def _recovered(row: Mapping[str, Any]) -> Block:
    value_us = row["recovered_us"]
    return Block(None if value_us is None else max(value_us, BACK_OFF_US), row["n"])


def _slower(one: Block | None, other: Block) -> Block:
    if one is None:
        return other
    values_us = [each.value_us for each in (one, other)]
    slowest_us = None if None in values_us else max(value for value in values_us if value is not None)
    return Block(slowest_us, min(one.n, other.n))


def _standard(row: Mapping[str, Any]) -> bool:
    """Whether it is of the standing calm, not of one that an SLO has defined."""
    usual = Calm("")
    return (row.get("q", usual.q), row.get("factor", usual.factor), row.get("for_us", usual.for_us)) == (
        usual.q,
        usual.factor,
        usual.for_us,
    )


def _is(row: Mapping[str, Any], cut: Cut) -> bool:
    return (row["metric"], row["window"], row["each"], row.get("every_us")) == (cut.metric, cut.window, "block", None)


def _number(subject: str) -> int:
    """``block=3`` as 3; 0 is what is in no block."""
    name, _, number = subject.partition("=")
    return int(number) if name == "block" and number.isdecimal() else 0
