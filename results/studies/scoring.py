"""Score of one row of a card since ``audit/2``: marks, figures, ranks, advice and upgrades, from records and checks.

* ``broken``: a check of the client that affects the verdict failed, such as ``integrity/lost``
* ``slow``: the client gave records up, or the median of the row's figure exceeds its registered limit
* ``kept``: neither, and all checks of the client passed
* ``open``: some check of the client is undecided, fewer units than registered took effect, the heal came before the
  limit, or the cluster alone exceeded it, too

The median decides, because the worst of six units changes its mark from one run to the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aftershock.results.model.check import Check, Status
from aftershock.results.model.rules import RULES
from aftershock.results.model.text import amount
from aftershock.results.studies.audit import (
    ADVISED,
    LEVERS,
    Advice,
    Cell,
    Change,
    Mark,
    Spread,
    change,
    difference,
    exceeded,
    is_broken,
    is_late,
    upgrades,
)
from aftershock.results.studies.part import Part
from aftershock.results.studies.ranks import Ranking, median_and_interval, paired, rank
from aftershock.results.studies.recount import Recount, Unit, Values
from aftershock.results.studies.suite import DIGITS, IDEAL, Figure, Row, Suite, client_of

SUCCESS = "slo/produce.success"


@dataclass(frozen=True)
class Line:
    """What a row says beside its cells.

    ``alone`` is the figure of the reference client with ideal settings, which is what the cluster alone needs, a lower
    bound if ``alone_is_bound``. ``explained`` is the clients' share of the variance, None with a single client.
    """

    scenario: str
    plan: str
    figure: Figure
    limit_s: float
    formula: str
    why: str
    alone: Spread
    alone_is_bound: bool
    explained: float | None
    told_apart: bool


@dataclass(frozen=True)
class Limit:
    """Limit of a row in seconds; ``excused`` says why nobody is marked slow by it, empty if clients are."""

    s: float
    excused: str


@dataclass(frozen=True)
class Scored:
    line: Line
    cells: Sequence[Cell]
    advice: Sequence[Advice]
    changes: Sequence[Change]


def clients_of(arms: Mapping[str, object]) -> list[str]:
    """Return the clients of a row in their order, without the ideal one."""
    return list(dict.fromkeys(client_of(arm) for arm in arms if arm != IDEAL))


def score(row: Row, counts: Recount, suite: Suite, settings: Mapping[str, str]) -> Scored:
    """Return a row of the card of a run; ``counts`` are of its workload, ``settings`` those of its brokers."""
    limit_s = suite.limit_s(row, settings)
    clients = clients_of(counts.arms)
    values = {client: counts.values(row, client) for client in clients}
    own = {client: units for client, units in values.items() if not client.endswith(ADVISED)}
    ranking = rank(own, suite.units, suite.explained_min, suite.counts_s[row.figure])
    alone = counts.values(row, IDEAL)
    limit = Limit(limit_s, suite.excused if (spread_of(alone).median_s or 0.0) > limit_s else "")
    cells = [_cell(row, counts, client, values[client], limit, suite.units, ranking) for client in clients]
    line = Line(
        row.id,
        row.plan,
        row.figure,
        limit_s,
        row.formula,
        row.why,
        spread_of(alone),
        is_bound(alone),
        ranking.explained,
        ranking.told_apart,
    )
    return Scored(line, cells, _advice(row, counts, cells, values), _changes(row, counts, cells, values))


def spread_of(values: Values) -> Spread:
    """Return the median of units with its interval; ends that are lower bounds are shown as such by ``is_bound``."""
    if not values:
        return Spread(None, None, None, 0)
    median, low, high = median_and_interval([value.s for value in values.values()])
    return Spread(median, low, high, len(values))


def is_bound(values: Values) -> bool:
    """Return True if the median of units is a lower bound: half of them or more are."""
    return bool(values) and 2 * sum(value.is_bound for value in values.values()) >= len(values)


def _cell(
    row: Row, counts: Recount, client: str, values: Values, limit: Limit, units_min: int, ranking: Ranking
) -> Cell:
    checks = checks_of(counts, client)
    mark, reason, brief = _mark(row, counts.part, checks, values, limit, units_min)
    arms, standing = counts.arms_of(client), ranking.standings.get(client)
    gaps_s = [gap for arm in arms for side in counts.sides(arm) for gap in counts.gaps_s(arm, side).values()]
    lasting = [value for value in values.values() if row.figure == "recovery"]
    return Cell(
        row.id,
        client,
        mark,
        reason,
        brief,
        spread_of(values),
        max(gaps_s, default=None),
        sum(map(counts.failed, arms)),
        _sum(checks, "integrity/duplicate"),
        _sum(checks, "integrity/lost"),
        counts.slowdown(client),
        sum(not value.is_bound for value in lasting) if any(value.healed for value in lasting) else None,
        is_bound(values),
        standing.rank if standing and ranking.told_apart else None,
        standing.best if standing else None,
        standing.behind if standing else None,
        DIGITS[row.figure],
    )


def checks_of(counts: Recount, client: str) -> list[Check]:
    """Return the checks of all copies of a client in the row's workload."""
    found = []
    for check in counts.part.run.verdict.checks:
        names = check.subject.split(" ")
        workload = next((name.removeprefix("workload=") for name in names if name.startswith("workload=")), None)
        if check.arm in counts.arms_of(client) and workload in (None, counts.key(check.arm).split("/")[0]):
            found.append(check)
    return found


def _mark(
    row: Row, part: Part, checks: Sequence[Check], values: Values, limit: Limit, units_min: int
) -> tuple[Mark, str, str]:
    """Return the most serious mark of a client, with the reason and its short form."""
    for check in checks:  # what fails stands: the judge has weighed the host's doubts for each check
        if is_broken(check):
            return "broken", f"{check.id}: {check.why}", check.id
    if doubt := doubt_of(part, checks):
        return "open", doubt, ""
    for check in checks:
        if check.id.startswith(SUCCESS) and check.status is Status.FAIL:
            return "slow", *exceeded(check)
    if len(values) < units_min:
        return "open", f"{len(values)} of at least {units_min} units took effect", ""
    late = _late(row, values, limit)
    undecided = next((check for check in checks if check.gate and check.status is not Status.PASS), None)
    if late is None and undecided is not None:
        return "open", f"{undecided.id}: {undecided.why}", ""
    return late or ("kept", "", "")


def doubt_of(part: Part, checks: Sequence[Check]) -> str | None:
    """Return why a client's figures can't be trusted, from the checks of the harness on the run and on the client."""
    others = tuple(check for check in part.run.verdict.checks if check.kind == "harness" and check.arm is not None)
    own = {id(check) for check in checks}
    kept = [check for check in part.run.verdict.checks if check not in others or id(check) in own]
    return replace(part.run, verdict=replace(part.run.verdict, checks=tuple(kept))).doubt()


def _late(row: Row, values: Values, limit: Limit) -> tuple[Mark, str, str] | None:
    """Return the mark of a client whose median exceeds the limit, or nobody knows; None if it is within the limit."""
    median_s = spread_of(values).median_s or 0.0
    figure, seen = row.figure.replace("_", " "), amount(round(median_s, 3), "s")
    bound, text = is_bound(values), f"limit {amount(limit.s, 's')}"
    if bound and median_s < limit.s:
        return "open", f"{figure}: not before the heal, which came after {seen}, before the {text}", ""
    if not bound and median_s <= limit.s:
        return None
    what = f"{figure}: not before the heal, after {seen}, {text}" if bound else f"{figure}: {seen}, {text}"
    if limit.excused:
        return "open", f"{what}; {limit.excused}", ""
    return "slow", what, "not before the heal" if bound else f"{figure} {seen}"


def _sum(checks: Sequence[Check], check_id: str) -> int:
    """Return the number of records that checks of this id observed, the larger one of both sides, in all copies."""
    by_arm: dict[str | None, int] = {}
    for check in checks:
        if check.id == check_id:
            by_arm[check.arm] = max(by_arm.get(check.arm, 0), int(check.observed or 0))
    return sum(by_arm.values())


def _advice(row: Row, counts: Recount, cells: Sequence[Cell], values: Mapping[str, Values]) -> list[Advice]:
    """Return advice for the clients that are slower than the row's best, or marked slow."""
    found = []
    for cell in cells:
        if cell.client.endswith(ADVISED):
            continue
        arm = counts.arms[cell.client]
        levers = [
            lever
            for lever in LEVERS.get(arm["client"], ())
            if row.plan in lever.scenarios and lever.setting not in (arm.get("settings") or {})
        ]
        is_slower = cell.rank is not None and cell.rank > 1
        late_s = cell.behind.median_s if is_slower and cell.behind else None
        if not levers or (cell.mark != "slow" and not is_late(late_s)):
            continue
        advised = values.get(cell.client + ADVISED)
        saved = paired(values[cell.client], advised) if advised else None
        found.append(
            Advice(
                row.id,
                cell.client,
                levers,
                cell.best if late_s is not None else None,
                late_s,
                counts.slowest(cell.client),
                Spread(saved.median_s, saved.low_s, saved.high_s, saved.n) if saved else Spread(None, None, None, 0),
                at_least=bool(saved and saved.at_least),
            )
        )
    return found


def _changes(row: Row, counts: Recount, cells: Sequence[Cell], values: Mapping[str, Values]) -> list[Change]:
    """Return what each upgrade among the clients changes, in the row's figure, the gaps and the failed records."""
    by_client = {cell.client: cell for cell in cells}
    arms = {client: counts.arms[client] for client in by_client}
    found = []
    for before, after in upgrades(arms):
        pair = (before, after)
        units = sorted(values[before].keys() & values[after].keys())  # in which the fault took effect for both
        measures = [
            (row.figure.replace("_", " "), "s", [{u: v.s for u, v in values[client].items()} for client in pair])
        ]
        measures += [
            (
                f"{side} gap",
                "s",
                [_by_unit(counts, client, partial(counts.gaps_s, side=side)) for client in pair],
            )
            for side in ("produce", "consume")
        ]
        measures.append(("failed", "records", [_by_unit(counts, client, counts.failed_by_block) for client in pair]))
        differences = [
            shown
            for name, unit, (old, new) in measures
            for shown in difference(name, unit, [old[u] - new[u] for u in units if u in old and u in new])
        ]
        doubts = [doubt_of(counts.part, checks_of(counts, client)) for client in pair]
        found.append(change(row.id, by_client[before], by_client[after], differences, next(filter(None, doubts), None)))
    return found


def _by_unit(counts: Recount, client: str, of_arm: Callable[[str], Mapping[int, float]]) -> dict[Unit, float]:
    """Return a measure of a client's arms, which is by repetition, by unit."""
    return {
        Unit(block, copy): value
        for copy, arm in enumerate(counts.arms_of(client))
        for block, value in of_arm(arm).items()
    }


def cluster_checks(part: Part) -> list[Check]:
    """Return the checks of a run that did not pass, and belong to the brokers or the ideal client.

    An SLO that counts the records of all arms (``lost == 0``) belongs to the client whose integrity check fails.
    """
    counts = {f"slo/{rule}" for rule in RULES}
    return [
        check
        for check in part.run.verdict.checks
        if check.arm in (None, IDEAL) and check.gate and check.status is not Status.PASS and check.id not in counts
    ]
