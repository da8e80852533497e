"""Answers a search: from what was run before, else by a run, as long as the budget lasts.

Rules. A run is begun only if by its plan, and by what runs have taken beyond theirs so far, it ends within the budget,
and leaves time to repeat the best plan twice. A candidate that passes is tried again where the failure comes back only
now and then; one that is undecided (a starved host) is given a second run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aftershock.faults.minimise.candidate import Candidate, Document, digest
from aftershock.faults.minimise.sequential import Repeats
from aftershock.faults.minimise.trying import Search, compiled
from aftershock.harness.minimise.alike import Word
from aftershock.harness.minimise.cache import Cache, Outcome
from aftershock.harness.minimise.source import Source

T = TypeVar("T")
AS_IT_IS = "as it is"
_BEYOND_S = 25.0  # what a run takes beyond its plan, till one was seen
_REPEATS = 2  # of the best plan, at the end
_UNDECIDED_MAX = 3  # repetitions that say nothing, till they are given up


class OutOfBudget(Exception):  # noqa: N818 -- no error: the search ends here
    """The next run would not end in time; ``needed_s`` is what it takes."""

    def __init__(self, needed_s: float) -> None:
        super().__init__()
        self.needed_s = needed_s


@dataclass(frozen=True)
class Ran:
    """What a performer gives: the word, why, and the name of the run's folder."""

    word: Word
    why: str
    run: str


class Performer(Protocol):
    """Runs a plan and judges it."""

    def __call__(self, document: Document) -> Ran:
        """Raises an AftershockError where no run can be had at all."""


@dataclass
class Asking:
    """``best``: the last candidate that failed the same way; ``told``: every outcome, in the order asked for."""

    source: Source
    cache: Cache
    perform: Performer
    now_s: Callable[[], float]
    ends_s: float
    say: Callable[[str], None]
    improved: Callable[["Asking"], None]
    tries: int = 1
    best: Candidate | None = None
    told: list[Outcome] = field(default_factory=list)
    _beyond_s: list[float] = field(default_factory=list)

    def answer(self, search: Search[T]) -> T:
        """What the search comes to. OutOfBudget if it can't be followed to its end."""
        reply: bool | None = None
        while True:
            try:
                candidate = next(search) if reply is None else search.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = self._fails(candidate)
            if reply:
                self.best = candidate
                self.improved(self)

    def repeated(self, document: Document) -> tuple[Repeats, float]:
        """How often the plan fails again, as far as the budget lasts; and what the next run would have needed."""
        so_far, said_nothing = Repeats(), 0
        while so_far.word is None and said_nothing < _UNDECIDED_MAX:
            try:
                outcome = self._once(Candidate(AS_IT_IS, document), 0)
            except OutOfBudget as over:
                return so_far, over.needed_s
            if outcome.word in ("fails", "passes"):
                so_far = so_far.after(failed=outcome.word == "fails")
            else:
                said_nothing += 1
        return so_far, 0.0

    def _fails(self, candidate: Candidate) -> bool:
        words: list[Word] = []
        while words.count("passes") + words.count("broke") < self.tries and words.count("undecided") <= 1:
            words.append(self._once(candidate, _REPEATS).word)
            if words[-1] == "fails":
                return True
        return False

    def _once(self, candidate: Candidate, repeats: int) -> Outcome:
        """One run, or what became of it before; ``repeats``: how many must fit in after it."""
        key = digest(candidate.document, self.source.seed, self.source.rehearse, self.source.checks)
        known = self.cache.take(key)
        outcome = known or self._performed(candidate, key, repeats)
        self.told.append(outcome)
        left_min = max(0.0, self.ends_s - self.now_s()) / 60
        took = "known" if known else f"{outcome.took_s:.0f} s"
        self.say(f"{left_min:4.1f} min left  {outcome.word:<9} {took:>5}  {candidate.said}")
        return outcome

    def _performed(self, candidate: Candidate, key: str, repeats: int) -> Outcome:
        load_s, best = self._load_s(candidate), self.best or candidate
        needed_s = self._takes_s(load_s)
        began_s = self.now_s()
        if began_s + needed_s + repeats * self._takes_s(self._load_s(best)) > self.ends_s:
            raise OutOfBudget(needed_s)
        ran = self.perform(candidate.document)
        took_s = round(self.now_s() - began_s, 1)
        self._beyond_s.append(took_s - load_s)
        outcome = Outcome(key, candidate.said, ran.word, ran.why, ran.run, took_s)
        self.cache.add(outcome)
        return outcome

    def _load_s(self, candidate: Candidate) -> float:
        return planned_s(candidate.document, self.source.seed)

    def _takes_s(self, load_s: float) -> float:
        """By the worst that was seen; the first run doesn't count, which launched the cluster and started Spark."""
        return load_s + max(self._beyond_s[1:] or self._beyond_s or [_BEYOND_S])


def planned_s(document: Document, seed: int) -> float:
    """The length of the load, by plan."""
    timeline = compiled(document, seed)
    return (timeline.timing.warmup_min_ms + timeline.timing.steady_ms + timeline.length_ms) / 1000
