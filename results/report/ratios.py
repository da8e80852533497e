"""The rows of the forest plot: arms against each other by blocks, and the plan's own comparisons of two arms."""

from collections.abc import Iterator, Sequence

from aftershock.results.check import Check, Status
from aftershock.results.comparing.arms import Comparison
from aftershock.results.report.forest import Compared

_WORDS = {Status.PASS: "as asked", Status.FAIL: "not as asked"}


def ratios(checks: Sequence[Check], comparisons: Sequence[Comparison]) -> list[Compared]:
    """Rows without a ratio are left out: there is nothing to draw."""
    return [*_by_blocks(comparisons), *_of_checks(checks)]


def _by_blocks(comparisons: Sequence[Comparison]) -> Iterator[Compared]:
    for one in comparisons:
        for row in one.rows:
            if row.ratio:
                yield Compared(f"{one.ours} / {one.theirs}: {row.metric}", row.ratio, row.low, row.high, row.verdict)


def _of_checks(checks: Sequence[Check]) -> Iterator[Compared]:
    for check in checks:
        if check.kind == "compare" and check.observed:
            name = f"{check.subject}: {check.id.partition('/')[2]}"
            yield Compared(name, check.observed, None, None, _WORDS.get(check.status, "inconclusive"))
