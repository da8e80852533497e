"""The answer of a run: what each client went through in each fault of the plan, in one line of words.

::

    librdkafka  kill-1  lost 0 · twice 0 · stopped 5.1 s · normal again after 6.4 s (not before the heal)

``checks/answers.py`` computes the answers; ``verdict.json`` stores them, and each format of a verdict begins with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LINES_MAX = 12


@dataclass(frozen=True)
class Normality:
    """Returns of a client to its steady latency after the ``measured`` injections of a fault (``facts.Recovered``).

    The client was normal again after ``recovered`` of them, at the latest after ``worst_us`` (None if never), and was
    observed for ``observed_us`` after the shortest-observed injection without a return. Of the injections ``healed``
    were undone within the run, and after ``before_heal`` of these the client was normal again before the heal began.
    """

    measured: int
    recovered: int
    worst_us: int | None
    observed_us: int
    healed: int
    before_heal: int


@dataclass(frozen=True)
class Answer:
    """What a client went through in the ``injections`` of one fault of the plan, or (``fault`` None) in the run.

    ``lost`` and ``twice`` count records of the whole run that are missing, or that were written or delivered again
    without need; ``lost_permitted`` and ``twice_permitted`` of them have a witnessed cause. A count is None if nothing
    was observed. A record has no time at which it was lost, so a client with losses and several faults has a line for
    the run, and its faults' lines count nothing (``counts`` False).

    ``stopped_us`` is, by side, the longest time in which records waited and none succeeded, None if that was shorter
    than a second; ``partition`` is a partition that stopped for a second or more longer than the client, with the time.
    """

    client: str
    fault: str | None
    injections: int
    counts: bool
    lost: int | None
    lost_permitted: int
    twice: int | None
    twice_permitted: int
    stopped_us: Mapping[str, int | None]
    partition: tuple[str, int] | None
    normality: Normality | None

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"normality": vars(self.normality) if self.normality else None}

    @property
    def name(self) -> str:
        """The fault, with the number of its injections if there are several."""
        fault = self.fault or "whole run"
        return f"{fault} x{self.injections}" if self.injections > 1 else fault

    @property
    def columns(self) -> tuple[str, str, str, str]:
        """How many records were lost and twice, how long the client stopped, and when it was normal again, in words.

        A text is empty if the answer has none: ``counts``, ``stopped_us`` and ``normality`` say why.
        """
        lost = _count("lost", self.lost, self.lost_permitted) if self.counts else ""
        twice = _count("twice", self.twice, self.twice_permitted) if self.counts else ""
        sides = [
            f"{_SIDE_WORDS.get(side, '') if len(self.stopped_us) > 1 else ''}{_seconds(us)}"
            for side, us in self.stopped_us.items()
        ]
        most = "at most " if self.injections > 1 else ""
        where = f" ({self.partition[0]}: {_seconds(self.partition[1])})" if self.partition else ""
        stopped = f"stopped {most}{', '.join(sides)}{where}" if sides else ""
        return lost, twice, stopped, _normal(self.normality) if self.normality else ""

    @property
    def words(self) -> str:
        """The answer without client and fault, such as ``lost 0 · twice 0 · stopped 5.1 s``."""
        return " · ".join(filter(None, self.columns))

    @property
    def urgency(self) -> tuple[bool, bool, int]:
        """Sort key: losses and copies first, then clients that were not normal again, then the longest stop."""
        unexplained = (self.lost or 0) + (self.twice or 0) - self.lost_permitted - self.twice_permitted
        stuck = self.normality is not None and self.normality.recovered < self.normality.measured
        return (
            not (self.counts and unexplained),
            not stuck,
            -max((us or 0 for us in self.stopped_us.values()), default=0),
        )


def answer_from_json(row: Mapping[str, Any]) -> Answer:
    """Read an answer. Raises KeyError or TypeError if the row is not one."""
    normality, partition = row["normality"], row["partition"]
    parts = {"normality": Normality(**normality) if normality else None}
    return Answer(**{**row, **parts, "partition": tuple(partition) if partition else None})


def answer_lines(answers: Sequence[Answer]) -> tuple[list[tuple[str, str, str]], int]:
    """Return (client, fault, words) of at most ``LINES_MAX`` answers, and the number of those left out.

    The order is that of the plan; if some are left out, the most urgent remain.
    """
    kept = {id(one) for one in sorted(answers, key=lambda one: one.urgency)[:LINES_MAX]}
    shown = [one for one in answers if id(one) in kept]
    return [(one.client, one.name, one.words) for one in shown], len(answers) - len(shown)


def _count(word: str, n: int | None, permitted: int) -> str:
    if n is None:
        return f"{word} ?"
    return f"{word} {n}" + (f" ({'all' if permitted == n else permitted} permitted)" if permitted else "")


_SIDE_WORDS = {"consume": "reading ", "pipe": "outputs "}


def _seconds(us: int | None) -> str:
    if us is None:
        return "under 1 s"
    return f"{us / 1e6:.1f} s" if us >= 950_000 else f"{us / 1e6:.2f} s"  # noqa: PLR2004 - two digits in both ranges


def _normal(of: Normality) -> str:
    several = of.measured > 1
    if of.recovered < of.measured:
        missed = of.measured - of.recovered
        return f"not normal again in the {_seconds(of.observed_us)} observed" + (
            f" after {missed} of {of.measured} injections" if several else ""
        )
    if of.worst_us == 0:
        return "normal throughout"
    text = f"normal again after {'at most ' if several else ''}{_seconds(of.worst_us or 0)}"
    if not of.healed:
        return text
    if several:
        return f"{text} ({of.before_heal} of {of.healed} before the heal)"
    return f"{text} ({'before' if of.before_heal else 'not before'} the heal)"
