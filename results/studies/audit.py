"""Report card of clients: what each client did in each scenario of an audit, and advice on its settings.

A scenario is one run, whose plan repeats a fault in blocks, with the clients as its arms. A mark follows from the run's
own checks:

* ``broken``: a check of the client that affects the verdict failed, such as ``integrity/lost``
* ``slow``: an SLO of the client that is only reported failed, such as ``recovery < 6s after crash``
* ``kept``: all checks of the client passed
* ``open``: some check of the client is undecided, or fewer than six blocks took effect
* ``unsupported``: the brokers can't serve the client, so it did not run

Intervals of medians are those of order statistics: of six blocks, smallest to largest covers the median with 97 %.

A client is late in a scenario if it recovers a second after the fastest client, or is marked slow. Advice names the
settings that bound such waits, for clients whose settings are known here (defaults: Kafka's documentation of producer
and consumer configurations, ``CONFIGURATION.md`` of librdkafka). A guess becomes a figure by trying it: an arm
``<client>-advised`` has all these settings, and the saved time is that of both arms in the same repetitions.

Two versions of a client are compared in the same repetitions (``Change``), by recovery, gaps and failed records. A
measure is better or worse if the whole interval of the paired differences is on that side of 0, and the median counts:

* times: ``COUNTS_S``, half of what makes a client late. The start of a calm window is known to 100 ms, and two arms of
  one client differ by some 200 ms on a busy host.
* failed records: one in each repetition
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isinf
from typing import Any, Literal, TypeAlias, cast

import pyarrow.compute as pc

from aftershock.names import ON_LIBRDKAFKA
from aftershock.results.compare.blocks import Block
from aftershock.results.model.check import Check, Status
from aftershock.results.model.text import amount
from aftershock.results.studies.part import Part
from aftershock.results.studies.ranks import Paired, median_and_interval
from aftershock.results.studies.statement import UNITS_MIN

Mark: TypeAlias = Literal["kept", "slow", "broken", "open", "unsupported"]
SYMBOLS: Mapping[Mark, str] = {"kept": "✓", "slow": "!", "broken": "✗", "open": "?", "unsupported": "n/a"}
QUANTILE = 0.95
RECOVERED = "recovery (p95 <= 10 * steady for 2s)"
"""Time until a client works as before; a factor of 2 depends on how busy the host is with the return of a broker.

Since definition 2 of recovery, clients of up to 50 ms in steady share the limit of 500 ms.
"""
_US = 1_000_000


@dataclass(frozen=True)
class Spread:
    """Median over blocks in seconds with its interval; None for a value that was never reached."""

    median_s: float | None
    low_s: float | None
    high_s: float | None
    n: int


@dataclass(frozen=True)
class Cell:
    """What one client did in one scenario.

    ``reason`` and, in a few words, ``brief`` say which check gave the mark; both are empty for ``kept``. ``recovery``
    is from the injection until the client works as before. ``before_heal`` counts the repetitions in which that was
    before the heal, None if the fault does not last or an older version recorded the run. ``gap_s`` is the longest time
    without a success, None if a whole repetition had none. ``failed`` counts records that the client gave up,
    ``duplicates`` records written or delivered twice, and ``lost`` acknowledged records that are gone. ``slowdown`` is
    the p95 latency under the fault, relative to the steady phase.

    Since ``audit/2``, ``recovery`` is the figure of the row, and ``is_bound`` is True if in half of the units or more,
    only the heal or the end of the repetition ended it. ``rank`` and ``behind``, the paired difference to the client
    ``best``, are None if nothing is compared. Figures are shown with so many ``digits``.
    """

    scenario: str
    client: str
    mark: Mark
    reason: str
    brief: str
    recovery: Spread
    gap_s: float | None
    failed: int
    duplicates: int
    lost: int
    slowdown: float | None
    before_heal: int | None = None
    is_bound: bool = False
    rank: int | None = None
    best: str | None = None
    behind: Paired | None = None
    digits: int = 1


def unsupported(scenario: str, client: str, reason: str) -> Cell:
    """Return the cell of a client that the brokers can't serve."""
    return Cell(scenario, client, "unsupported", reason, "", spread([]), None, 0, 0, 0, None)


def cells_of(scenario: str, part: Part) -> list[Cell]:
    """Return the cells of a scenario's run, one for each client, in the plan's order."""
    (workload,) = part.run.timeline["workloads"]
    return [_cell(scenario, part, workload, arm) for arm in workload["arms"]]


def _cell(scenario: str, part: Part, workload: Mapping[str, Any], arm: str) -> Cell:
    client = f"{workload['name']}/{arm}"
    blocks = part.blocks(client, RECOVERED)
    sides = [side for side in ("produce", "consume") if workload.get(side)]
    gaps = [part.blocks(client, f"{side}.gap") for side in sides]
    checks = [check for check in part.run.verdict.checks if check.arm == arm]
    mark, reason, brief = _mark(checks, part, max(len(blocks), len(gaps[0])))
    under, steady = (part.quantile_us(client, "produce.latency", window, QUANTILE)[0] for window in ("fault", "steady"))
    before_heal = [block.before_heal for block in blocks.values() if block.before_heal is not None]
    statuses = part.outcomes("produce", ["status"], client)["status"]
    return Cell(
        scenario,
        arm,
        mark,
        reason,
        brief,
        spread(blocks.values()),
        _longest_s(gaps),
        len(statuses) - (pc.sum(pc.equal(statuses, "ok")).as_py() or 0),
        _count(checks, "integrity/duplicate"),
        _count(checks, "integrity/lost"),
        under / steady if under is not None and steady else None,
        sum(before_heal) if before_heal else None,
    )


def _mark(checks: Sequence[Check], part: Part, blocks: int) -> tuple[Mark, str, str]:
    """Return the most serious mark that a client's checks give, with the reason and its short form."""
    if doubt := part.doubt():
        return "open", doubt, ""
    for check in checks:
        if is_broken(check):
            return "broken", f"{check.id}: {check.why}", check.id
    for check in checks:
        if not check.gate and check.status is Status.FAIL:
            return "slow", *exceeded(check)
    for check in checks:
        if check.status is not Status.PASS:
            return "open", f"{check.id}: {check.why}", ""
    if blocks < UNITS_MIN:
        return "open", f"{blocks} of at least {UNITS_MIN} blocks took effect", ""
    return "kept", "", ""


def is_broken(check: Check) -> bool:
    return check.gate and check.status in (Status.FAIL, Status.ERROR)


def exceeded(check: Check) -> tuple[str, str]:
    """Return by how much an SLO was exceeded, and the same in a few words."""
    name = check.id.removeprefix("slo/")
    observed = "never" if check.observed is None else amount(check.observed, check.unit)
    limit = "" if check.threshold is None else f", limit {amount(check.threshold, check.unit)}"
    return f"{name}: {observed}{limit}", f"{name.partition('-')[0]} {observed}"


def spread(blocks: Iterable[Block]) -> Spread:
    """Return the median of blocks with the narrowest interval of order statistics that covers it with 95 %."""
    values = [inf if block.value_us is None else block.value_us / _US for block in blocks]
    if not values:
        return Spread(None, None, None, 0)
    median, low, high = (None if value == inf else value for value in median_and_interval(values))
    return Spread(median, low, high, len(values))


def _longest_s(sides: Iterable[Mapping[int, Block]]) -> float | None:
    """Return the longest gap of any side in seconds; None if a side had no success in some block."""
    values = [block.value_us for blocks in sides for block in blocks.values()]
    known = [value for value in values if value is not None]
    return max(known) / _US if known and len(known) == len(values) else None


def _count(checks: Iterable[Check], check_id: str) -> int:
    """Return the largest number of records that a check of this id observed, on any side."""
    return max((int(check.observed or 0) for check in checks if check.id == check_id), default=0)


ADVISED = "-advised"
LATE_S = 1.0
_LOST = ("leader-crashes", "host-vanishes", "rack-cut", "rolling-restart", "coordinator-killed", "acks-lost")
_SILENT = ("leader-frozen", "rack-cut", "half-open", "host-vanishes")


@dataclass(frozen=True)
class Lever:
    """Setting that bounds a wait of a client: its default, the value to try, and the scenarios in which it matters."""

    setting: str
    default: str
    value: str
    bounds: str
    scenarios: Sequence[str]


_ANSWER, _CONNECTION = "the wait for the answer of a silent broker", "the wait for a connection"
_KAFKA = (
    Lever("request.timeout.ms", "30000", "5000", _ANSWER, _SILENT),
    Lever("socket.connection.setup.timeout.ms", "10000", "1000", _CONNECTION, _SILENT),
)
_LIBRDKAFKA = (
    Lever("socket.timeout.ms", "60000", "5000", _ANSWER, _SILENT),
    Lever("socket.connection.setup.timeout.ms", "30000", "1000", _CONNECTION, _SILENT),
    Lever("reconnect.backoff.max.ms", "10000", "1000", "the pause between attempts to connect", _LOST),
)
LEVERS: Mapping[str, Sequence[Lever]] = {
    **dict.fromkeys(ON_LIBRDKAFKA, _LIBRDKAFKA),
    **dict.fromkeys(("java", "reference"), _KAFKA),
}
"""Levers by the kind of a client in a plan."""


@dataclass(frozen=True)
class Advice:
    """Levers for a client that is late in a scenario.

    ``behind`` is the fastest client and ``late_s`` the time by which the client recovers later, None if there is no
    such time. ``record`` describes the client's slowest record. ``saved`` is the time that the advised arm recovered
    earlier, by repetition; its ``n`` is 0 if the advice was not tried. If ``at_least``, one of these times is a lower
    bound.
    """

    scenario: str
    client: str
    levers: Sequence[Lever]
    behind: str | None
    late_s: float | None
    record: str
    saved: Spread
    at_least: bool = False

    @property
    def text(self) -> str:
        late = f"{self.late_s:.1f} s later than {self.behind}" if is_late(self.late_s) else "late"
        names = "; ".join(
            f"{lever.setting}={lever.value} (default {lever.default}) bounds {lever.bounds}" for lever in self.levers
        )
        return (
            f"{self.client}, {self.scenario.replace('-', ' ')}: recovers {late} ({self.record}). {names}. {self.tried}"
        )

    @property
    def tried(self) -> str:
        saved = self.saved
        if not saved.n:
            return "Not tried; --try-advice does."
        if saved.median_s is None or saved.low_s is None or saved.high_s is None:
            return "Tried: in some repetitions, one of both did not recover."
        interval = f"{saved.low_s:.1f} to {saved.high_s:.1f}, n = {saved.n}"
        bound = "at least " if self.at_least else ""
        return (
            f"Tried: saves {bound}{saved.median_s:.1f} s ({interval})."
            if saved.low_s > 0
            else (f"Tried: makes no difference that shows, {saved.median_s:.1f} s ({interval}).")
        )


COUNTS_S = 0.5
Word: TypeAlias = Literal["better", "worse", "mixed", "no difference", "undecided"]


@dataclass(frozen=True)
class Difference:
    """By how much the later version is better in a measure: median of the repetitions that both have, and interval.

    ``unit`` is ``s`` or ``records``. A value is infinite if only one version has ever recovered, or succeeded.
    """

    measure: str
    unit: str
    median: float
    low: float
    high: float
    n: int

    @property
    def counts(self) -> int:
        """1 for better, -1 for worse, 0 for no difference that shows."""
        least = COUNTS_S if self.unit == "s" else 1
        if abs(self.median) < least or self.low <= 0 <= self.high:
            return 0
        return 1 if self.median > 0 else -1

    @property
    def text(self) -> str:
        if isinf(self.median):
            when = "after" if self.median > 0 else "before"
            return f"{self.measure} comes to an end only {when} the upgrade (n = {self.n})"
        sign = 1 if self.median >= 0 else -1
        name = {("s", 1): "shorter", ("s", -1): "longer", ("records", 1): "fewer", ("records", -1): "more"}[
            self.unit, sign
        ]
        digits = 1 if self.unit == "s" else 0
        low, high = sorted((sign * self.low + 0.0, sign * self.high + 0.0))  # without a negative zero
        return (
            f"{self.measure} {abs(self.median):.{digits}f} {self.unit} {name} ({low:.{digits}f} to "
            f"{high:.{digits}f}, n = {self.n})"
        )


@dataclass(frozen=True)
class Change:
    """What an upgrade of a client from the arm ``before`` to the arm ``after`` changes in a scenario, in a word."""

    scenario: str
    before: str
    after: str
    word: Word
    reason: str
    differences: Sequence[Difference]

    @property
    def text(self) -> str:
        """The word, its reason, and the differences that count, or without any the first one."""
        shown = [difference for difference in self.differences if difference.counts] or self.differences[:1]
        details = "; ".join(filter(None, [self.reason, *(difference.text for difference in shown)]))
        return f"{self.word}: {details}" if details else self.word


def upgrades(arms: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the arms of a plan that are two versions of one client, each with the next higher version."""
    by_client: dict[str, list[str]] = {}
    for name, arm in arms.items():
        if arm.get("version") and not name.endswith(ADVISED):
            by_client.setdefault(arm["client"], []).append(name)

    def number(name: str) -> list[tuple[int, str]]:
        """2.16.0 is higher than 2.2.0, and a pre-release 2.3.0rc1 is lower than 2.3.0."""
        words = re.findall(r"\d+|[a-z]+", arms[name]["version"].lower())
        return [*((int(word), "") if word.isdecimal() else (-1, word) for word in words), (0, "")]

    return [pair for names in by_client.values() for pair in pairwise(sorted(names, key=number))]


def changes_of(scenario: str, part: Part, cells: Sequence[Cell]) -> list[Change]:
    """Return what each upgrade among a scenario's clients changes."""
    (workload,) = part.run.timeline["workloads"]
    by_client = {cell.client: cell for cell in cells}
    return [
        change(scenario, by_client[before], by_client[after], _upgraded(part, workload, before, after), part.doubt())
        for before, after in upgrades(workload["arms"])
    ]


def _upgraded(part: Part, workload: Mapping[str, Any], before: str, after: str) -> list[Difference]:
    """Return by how much the later one of two arms is better in each measure."""
    keys = [f"{workload['name']}/{arm}" for arm in (before, after)]
    sides = [side for side in ("produce", "consume") if workload.get(side)]
    found, proven = list[Difference](), set[int]()
    for measure, name in ((RECOVERED, "recovery"), *((f"{side}.gap", f"{side} gap") for side in sides)):
        blocks = [part.blocks(key, measure) for key in keys]
        numbers = sorted(blocks[0].keys() & blocks[1].keys())
        proven.update(numbers)
        found += difference(name, "s", [_saved_s(blocks[0][n], blocks[1][n]) for n in numbers])
    counts = [_failed_by_block(part, key) for key in keys]
    common = sorted(proven & counts[0].keys() & counts[1].keys())
    return found + difference("failed", "records", [float(counts[0][n] - counts[1][n]) for n in common])


def difference(measure: str, unit: str, saved: Sequence[float]) -> list[Difference]:
    """Return the difference that paired values show, none if they are too few."""
    return [Difference(measure, unit, *median_and_interval(saved), len(saved))] if len(saved) >= UNITS_MIN else []


def change(scenario: str, before: Cell, after: Cell, found: Sequence[Difference], doubt: str | None) -> Change:
    """Return what an upgrade changes in a word, from the differences that were found."""
    broken = [cell for cell in (before, after) if cell.mark == "broken"]
    signs = {difference.counts for difference in found} - {0}
    reason, word = "", "no difference"
    if len(broken) == 1:  # by a check that failed, which no doubt about the harness excuses
        word, reason = ("worse" if broken[0] is after else "better"), f"{broken[0].client}: {broken[0].reason}"
    elif doubt:
        word, reason = "undecided", doubt
    elif not found:
        word, reason = "undecided", f"fewer than {UNITS_MIN} repetitions took effect for both"
    elif signs:
        word = "mixed" if len(signs) > 1 else "better" if 1 in signs else "worse"
    return Change(scenario, before.client, after.client, cast("Word", word), reason, found)


def _saved_s(before: Block, after: Block) -> float:
    """Return by how many seconds a block's value is smaller afterwards; None is infinite, and equal to itself."""
    values = [inf if block.value_us is None else block.value_us / _US for block in (before, after)]
    return 0.0 if values[0] == values[1] else values[0] - values[1]


def _failed_by_block(part: Part, client: str) -> dict[int, int]:
    """Return the number of records that a client gave up, by the repetition in which they were due."""
    starts: dict[int, int] = {}
    for window in part.windows():
        if number := window.get("block"):
            starts[number] = min(window["start_us"], starts.get(number, window["start_us"]))
    counts = dict.fromkeys(starts, 0)
    rows = part.outcomes("produce", ["status", "intended_us"], client)
    for due_us in rows.filter(pc.not_equal(rows["status"], "ok"))["intended_us"].to_pylist():
        begun = [number for number, start_us in starts.items() if start_us <= due_us]
        if begun:
            counts[max(begun, key=starts.__getitem__)] += 1
    return counts


def is_late(late_s: float | None) -> bool:
    """Return True if a client recovers so much later than the fastest that this counts."""
    return late_s is not None and late_s >= LATE_S


def advised(arm: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an arm with all settings that advice names and that it does not set itself; None without any."""
    levers = LEVERS.get(arm["client"], ())
    settings = {lever.setting: lever.value for lever in levers}
    return {**arm, "settings": {**settings, **(arm.get("settings") or {})}} if levers else None


def advice_of(scenario: str, part: Part, cells: Sequence[Cell]) -> list[Advice]:
    """Return advice for the clients of a scenario's run that were late in it."""
    (workload,) = part.run.timeline["workloads"]
    own = [cell for cell in cells if not cell.client.endswith(ADVISED)]
    recovered = {cell.client: median for cell in own if (median := cell.recovery.median_s) is not None}
    fastest = min(recovered, key=recovered.__getitem__, default=None)
    found = []
    for cell in own:
        arm = workload["arms"][cell.client]
        levers = [
            lever
            for lever in LEVERS.get(arm["client"], ())
            if scenario in lever.scenarios and lever.setting not in (arm.get("settings") or {})
        ]
        late_s = recovered[cell.client] - recovered[fastest] if fastest and cell.client in recovered else None
        if not levers or (cell.mark != "slow" and not is_late(late_s)):
            continue
        client, other = (f"{workload['name']}/{name}" for name in (cell.client, cell.client + ADVISED))
        tried = cell.client + ADVISED in workload["arms"]
        saved = differences(part.blocks(client, RECOVERED), part.blocks(other, RECOVERED)) if tried else []
        behind = fastest if fastest != cell.client else None
        found.append(Advice(scenario, cell.client, levers, behind, late_s, slowest(part, client), spread(saved)))
    return found


def differences(own: Mapping[int, Block], other: Mapping[int, Block]) -> list[Block]:
    """Return by how much ``other`` is earlier in each block that both have; no value where either has none."""
    found = []
    for n in sorted(own.keys() & other.keys()):
        before_us, after_us = own[n].value_us, other[n].value_us
        found.append(Block(None if before_us is None or after_us is None else before_us - after_us, own[n].n))
    return found


def slowest(part: Part, client: str) -> str:
    """Describe the record that a client wrote and that took longest, as ``record 0:1841 took 4.9 s to orders/3``."""
    rows = [row for group in part.slowest(client) if group["op"] == "produce" for row in group["records"]]
    took = [(row["done_us"] - row["intended_us"], row) for row in rows if row["done_us"] is not None]
    if not took:
        return "no record of it was acknowledged"
    us, row = max(took, key=lambda pair: pair[0])
    return f"record {row['producer_id']}:{row['seq']} of {row['topic']}/{row['partition']} took {us / _US:.1f} s"
