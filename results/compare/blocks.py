"""Measures for comparisons, which give one number per block of the plan, from Spark or ``analysis.json``.

::

    produce.latency p95 [in WINDOW]     also consume, commit; .service; pNN(.N) or max; the default window is fault
    produce.gap                         also consume, commit; the longest time without a success in the whole block
    recovery [(pNN <= N * steady for Ns)] [after FAULT]
                                        from the inject until the client is normal again (docs/SLO.md), by the default
                                        criterion or that of an SLO of the plan; the slowest of several faults

Values of a measure are in microseconds; None (no value) counts as slower than any value. A quantile q needs 10/(1-q)
records in *every* block, which is the minimum of all checks. A recovery within Kafka's first back-off
(``retry.backoff.ms``, 100 ms) counts as 100 ms, because the client did not notice the fault and ratios of shorter times
are noise.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.errors import AftershockError
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.facts import MAX, Cut, RecoveryCriterion, Slice

BACK_OFF_US = 100_000
US_PER_S = 1_000_000
RECOVERY = "recovery"
DEFAULT = RecoveryCriterion("")
_LATENCY = re.compile(r"((?:produce|consume|commit)\.(?:latency|service))\s+(max|p\d{1,2}(?:\.\d+)?)(?:\s+in\s+(\S+))?")
_GAP = re.compile(r"(?:produce|consume|commit)\.gap")
_RECOVERY = re.compile(
    r"recovery(?:\s+\(p(\d{1,2}(?:\.\d+)?) <= (\d+(?:\.\d+)?) \* steady for (\d+)s\))?(?:\s+after\s+(\S+))?"
)


@dataclass(frozen=True)
class Measure:
    """Latency quantile, gap or recovery by which clients are compared.

    ``q`` is the quantile of a latency, None for a gap or a recovery; ``after`` restricts recoveries to one fault, and
    ``recovered`` says when a client has recovered, whatever its fault is.
    """

    metric: str
    q: float | None = None
    window: str = RUN
    after: str | None = None
    recovered: RecoveryCriterion = DEFAULT

    def __str__(self) -> str:
        if self.metric == RECOVERY:
            calm = self.recovered
            defined = f" (p{calm.q * 100:g} <= {calm.factor:g} * steady for {calm.for_us / US_PER_S:g}s)"
            after = f" after {self.after}" if self.after else ""
            return f"{RECOVERY}{'' if calm.is_default else defined}{after}"
        if self.q is None:
            return self.metric
        name = "max" if self.q == MAX else f"p{(Decimal(repr(self.q)) * 100).normalize():f}"
        return f"{self.metric} {name} in {self.window}"

    @property
    def cut(self) -> Cut:
        return Cut(self.metric, self.window, each="block")

    @property
    def needs(self) -> int:
        """Number of records that this measure needs in each block of the plan; 0 for a gap or a recovery."""
        if self.q is None or self.q == MAX:
            return 0 if self.q is None else 1
        return math.ceil(10 / (1 - Fraction(repr(self.q))))


@dataclass(frozen=True)
class Block:
    """Value of a measure in one block of the plan in us, from ``n`` records; None counts as slower than any value.

    ``before_heal`` tells of a recovery whether the client was normal again before the heal, if there was one.
    """

    value_us: float | None
    n: int
    before_heal: bool | None = None


Blocks: TypeAlias = Mapping[int, Block]


def parse(text: str) -> Measure:
    """Parse a measure such as ``produce.latency p95``. Raises AftershockError for any other text."""
    stripped = text.strip()
    if match := _LATENCY.fullmatch(stripped):
        metric, q, window = match.groups()
        return Measure(metric, MAX if q == "max" else float(Decimal(q[1:]) / 100), window or "fault")
    if _GAP.fullmatch(stripped):
        return Measure(stripped)
    if match := _RECOVERY.fullmatch(stripped):
        q, factor, for_s, after = match.groups()
        calm = RecoveryCriterion("", float(Decimal(q) / 100), float(factor), int(for_s) * US_PER_S) if q else None
        return Measure(RECOVERY, after=after, recovered=calm or DEFAULT)
    raise AftershockError(
        f"{text!r} can't be compared; write a metric like 'produce.latency p95 in fault', 'produce.gap' or "
        "'recovery after kill-1'"
    )


def standing(sides: Iterable[str]) -> tuple[Measure, ...]:
    """Return the default measures of a comparison, recovery and the p95 latency of each operation under faults."""
    names = tuple(sides)
    recovery = (Measure(RECOVERY),) if "produce" in names else ()
    return (*recovery, *(Measure(f"{side}.latency", 0.95, "fault") for side in names))


def block_cuts(evidence: Evidence) -> tuple[Cut, ...]:
    """Return the measurements that Spark takes in every block of the plan for later comparisons of arms."""
    if not any(phase.block for phase in evidence.phases):
        return ()
    sides = dict.fromkeys(side for client in evidence.clients for side in client.topics)
    entries = dict.fromkeys(phase.entry for phase in evidence.phases if phase.entry)
    windows = ["fault", "recovery", *([f"fault/{entry}" for entry in entries] if len(entries) > 1 else [])]
    latencies = [Cut(f"{side}.latency", window, each="block") for side in sides for window in windows]
    return (*latencies, *(Cut(f"{side}.gap", RUN, each="block") for side in sides))


def of_slices(slices: Sequence[Slice], q: float | None) -> dict[int, Block]:
    """Map each block of the plan to a quantile of its latencies, or without ``q`` to its longest gap."""
    blocks = {}
    for part in slices:
        if number := _number(part.subject):
            values = part.values
            blocks[number] = _gap(values.slowest_us, values.n) if q is None else Block(values.at.get(q), values.n)
    return blocks


def stored(analysis: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], measure: Measure, client: str) -> Blocks:
    """Map each block of the plan to a client's value of a measure in ``analysis.json``; empty if it has no such values.

    A run whose plan has no blocks (repetitions of its faults) counts as one block.
    """
    blocked = any(step.get("block") for step in steps)
    if measure.metric == RECOVERY:
        return _recoveries(analysis, steps, measure, client, default_block=0 if blocked else 1)
    if blocked:
        cut = (measure.metric, measure.window, "block", None, client)
        rows = [
            (_number(part["subject"]), part)
            for row in analysis.get("cuts", ())
            if (row["metric"], row["window"], row["each"], row.get("every_us"), row["client"]) == cut
            for part in row["slices"]
        ]
    else:
        key = (measure.metric, client, measure.window)
        table = analysis["gaps" if measure.q is None else "distributions"]
        rows = [(1, row) for row in table if (row["metric"], row["client"], row["window"]) == key]
    blocks = {}
    for number, row in rows:
        if number and measure.q is None:
            blocks[number] = _gap(row["slowest_us"] if "slowest_us" in row else row["longest_us"], row["n"])
        elif number and repr(measure.q) in row["at"]:
            blocks[number] = Block(row["at"][repr(measure.q)], row["n"])
    return blocks


def proven_blocks(run: JudgedRun, measure: Measure, client: str) -> dict[int, Block]:
    """Map each block of the plan in which every fault took effect to a client's stored value of a measure."""
    trials, _ = run.trials()
    blocks = stored(run.analysis, run.timeline["steps"], measure, client)
    return {number: block for number, block in blocks.items() if trials is None or number in trials}


def _gap(longest_us: int | None, successes: int) -> Block:
    """Return the longest gap in a block of the plan; it has no value if no operation succeeded in the block."""
    return Block(longest_us if successes else None, successes)


def _recoveries(
    analysis: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], measure: Measure, client: str, default_block: int
) -> dict[int, Block]:
    """Map each block of the plan to its slowest recovery by the measure's criterion."""
    block_of = {
        step["id"]: int(step.get("block") or default_block)
        for step in steps
        if measure.after in (None, step["id"], step.get("entry", step["id"]))
    }
    rows_by_block: dict[int, list[Mapping[str, Any]]] = {}
    for row in analysis.get("recoveries" if measure.recovered.is_default else "calms", ()):
        number = block_of.get(row["fault"], 0)
        criterion = RecoveryCriterion(
            "", row.get("q", DEFAULT.q), row.get("factor", DEFAULT.factor), row.get("for_us", DEFAULT.for_us)
        )
        # nothing can be observed after a fault that the next one follows at once
        observed = row["recovered_us"] is not None or row.get("observed_us", 1)
        if row["client"] == client and number and criterion == measure.recovered and observed:
            rows_by_block.setdefault(number, []).append(row)
    return {number: slowest_recovery(rows) for number, rows in rows_by_block.items()}


def slowest_recovery(rows: Sequence[Mapping[str, Any]]) -> Block:
    """Return the slowest of several recoveries, at least Kafka's back-off; None if a client did not recover."""
    times_us = [row["recovered_us"] for row in rows]
    before = [row["before_heal"] for row in rows if row.get("before_heal") is not None]
    slowest_us = None if None in times_us else max(BACK_OFF_US, *times_us)
    return Block(slowest_us, min(row["n"] for row in rows), all(before) if before else None)


def _number(subject: str) -> int:
    """Return the number of a block of the plan from a subject such as ``block=3``, 0 for any other subject."""
    name, _, number = subject.partition("=")
    return int(number) if name == "block" and number.isdecimal() else 0
