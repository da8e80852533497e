"""What is asked of both readings of a run, and the values that a reading gives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Asked:
    """An SLO without its limit: ``metric aggregate in window for each by``, or ``metric for arm`` of a count."""

    metric: str
    aggregate: str | None = None
    window: str = "run"
    by: str | None = None
    arm: str | None = None

    @property
    def family(self) -> str:
        """The metric without the target of a budget, such as ``produce.budget``."""
        return self.metric.partition("(")[0]

    @property
    def op(self) -> str:
        return self.family.partition(".")[0]

    @property
    def kind(self) -> str:
        return self.family.partition(".")[2]


@dataclass(frozen=True)
class Figure:
    """A value of a subject in microseconds, records or as a share; None if it is slower than any limit.

    ``n`` is the number of records, commits or seconds; None where the reading does not count them.
    """

    value: Fraction | None
    n: int | None = None


Figures = Mapping[str, Sequence[Figure]]
"""Figures by client (``workload/arm``), one for each subject that an SLO asks for."""


def worst(figures: Iterable[Figure], *, lowest: bool = False) -> Figure:
    """Return the figure of the worst subject; a value slower than any limit is the worst."""
    order = sorted(figures, key=lambda one: (one.value is None, one.value or 0))
    return order[0 if lowest else -1]


def at_rank(aggregate: str, values: Sequence[int | None]) -> Fraction | None:
    """Return a nearest-rank quantile, the maximum or the mean of sorted values; None is slower than any."""
    if aggregate == "mean":
        return None if None in values else Fraction(sum(value or 0 for value in values), len(values))
    percent = Fraction(100) if aggregate == "max" else Fraction(aggregate.removeprefix("p"))
    value = values[-(-percent * len(values) // 100) - 1]
    return None if value is None else Fraction(value)
