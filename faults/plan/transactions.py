"""Problems of a plan's transactions with the brokers' limit, and of its transactional ids."""

from collections.abc import Iterator

from aftershock.faults.kinds.client.membership import Join
from aftershock.faults.plan.expand import members_in_reserve
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.document import Location, Problem, did_you_mean
from aftershock.faults.sections.transactional_ids import (
    Reserve,
    TransactionalId,
    has_transactional_id,
    transactional_ids,
)
from aftershock.faults.sections.units import format_duration

_TIMEOUT_MAX, _TIMEOUT_MAX_MS = "transaction.max.timeout.ms", 900_000  # and its default


def timeout_problems(draft: Draft, timeout_ms: int, loc: Location) -> Iterator[Problem]:
    """Yield a problem if a transaction's timeout exceeds the brokers' limit, above which they give no producer id."""
    if draft.cluster is None:
        return
    limit = draft.cluster.config.get(_TIMEOUT_MAX, str(_TIMEOUT_MAX_MS))
    if limit.isdecimal() and timeout_ms > int(limit):
        sentence = (
            f"a transaction's timeout of {format_duration(timeout_ms)} exceeds the brokers' {_TIMEOUT_MAX} "
            f"({format_duration(int(limit))}), so no producer would get an id: lower it, or raise {_TIMEOUT_MAX} in "
            "`cluster.config`"
        )
        yield Problem(loc, sentence)


def _reserve(draft: Draft) -> Reserve:
    """Return how many further processes the plan's faults start, or may start if a random choice decides."""

    def of(workload: str, arm: str, op: str) -> int:
        joins = [located.fault for located in draft.faults.readable if isinstance(located.fault, Join)]
        possible = sum(fault.members for fault in joins if fault.selector.matches(workload, arm, op))
        return max(possible, members_in_reserve(workload, arm, op, draft.faults.expansion))

    return of


def duplicate_transactional_ids(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each arm with the transactional id of another process, which the two would fence in turn."""
    first: dict[str, TransactionalId] = {}
    refused: set[tuple[int, str]] = set()
    for known in transactional_ids(draft.workloads, _reserve(draft)):
        owner = first.setdefault(known.text, known)
        place = (known.workload, known.arm)
        if owner.worker == known.worker or place in refused:
            continue
        refused.add(place)
        whose = f"{draft.workloads[owner.workload].name}/{owner.arm}"
        sentence = f"the arm `{whose}` has the transactional id {known.text} too, so each fences the other"
        if (owner.workload, owner.arm) == place:
            sentence = f"{owner.worker} and {known.worker} share the transactional id {known.text} and fence each other"
        yield Problem(
            ("workloads", known.workload, "arms", known.arm),
            f"{sentence}: give each process an id of its own, such as {{member}}",
        )


def unknown_id(draft: Draft, text: str, loc: Location) -> Iterator[Problem]:
    """Yield a problem if no process of the plan has, or may have, a transactional id."""
    if draft.unreadable_workloads or has_transactional_id(draft.workloads, text, _reserve(draft)):
        return
    known = {transactional_id.text for transactional_id in transactional_ids(draft.workloads, _reserve(draft))}
    none = (
        "no workload uses transactions: add `transaction` to a `produce`, or `transactional: true` to the `pipe` of a "
        "service"
    )
    hint = did_you_mean(text, known) if known else none
    yield Problem(loc, f"no producer has the transactional id `{text}` (the name of its process); {hint}")
