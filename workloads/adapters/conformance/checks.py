"""Conformance checks of a client program by operation, and their results."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from aftershock.errors import WorkloadError
from aftershock.redaction import redact
from aftershock.workloads.adapters.conformance import commit, consume, group, produce, transaction
from aftershock.workloads.adapters.conformance.bench import Bench, NotExaminable, Violation
from aftershock.workloads.adapters.exec_child import NO_LINES
from aftershock.workloads.adapters.exec_protocol import ReportError

Check = Callable[[Bench], None]

CHECKS: dict[str, Sequence[Check]] = {
    "produce": produce.CHECKS,
    "consume": consume.CHECKS,
    "commit": commit.CHECKS,
    "group": group.CHECKS,
    "transaction": transaction.CHECKS,
}


@dataclass(frozen=True)
class Result:
    """Result of one conformance check; ``rule`` is the sentence of ``docs/EXEC.md`` that the client program breaks."""

    operation: str
    check: str
    requirement: str
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    reason: str = ""
    rule: str = ""


def judge(operation: str, check: Check, bench: Bench) -> Result:
    """Run a conformance check; raise ClusterError if the cluster, not the client program, is at fault."""
    described = (operation, check.__name__, " ".join((check.__doc__ or "").split()))
    bench.stderr = NO_LINES
    try:
        check(bench)
    except NotExaminable as reason:
        return Result(*described, "skipped", str(reason))
    except (Violation, WorkloadError) as error:
        has_lines = bench.stderr != NO_LINES and bench.stderr not in str(error)
        reason_lines = f"{error}\nthe last lines of its standard error:{bench.stderr}" if has_lines else str(error)
        rule = str(error.rule) if isinstance(error, Violation | ReportError) else ""
        return Result(*described, "failed", redact(reason_lines), rule)
    return Result(*described)


def examine(bench: Bench, operations: Iterable[str]) -> Iterator[Result]:
    """Run the conformance checks of ``operations``, and yield the result of each check when it ends."""
    for operation in operations:
        for check in CHECKS[operation]:
            yield judge(operation, check, bench)
