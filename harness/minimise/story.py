"""The whole of it: a flake is told first, then the plan is made small, then what is left is repeated as well."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aftershock.errors import AftershockError
from aftershock.faults.minimise.candidate import Document
from aftershock.faults.minimise.focus import focused
from aftershock.faults.minimise.search import minimised
from aftershock.faults.minimise.sequential import Repeats
from aftershock.faults.minimise.steps import units
from aftershock.harness.minimise.asking import AS_IT_IS, Asking, OutOfBudget, Performer
from aftershock.harness.minimise.cache import Cache, Outcome
from aftershock.harness.minimise.source import Source

Ending = Literal["minimal", "smaller", "unsteady", "flake", "undecided", "unchanged"]
_NONE = Repeats()
EXIT_CODES = {"minimal": 0, "smaller": 0, "unsteady": 2, "flake": 2, "undecided": 2, "unchanged": 2}


@dataclass(frozen=True)
class Minimised:
    """What came of it.

    ``ending``: ``minimal``, nothing more can be left out; ``smaller``, the budget was over first; ``unsteady``, what
    is left fails too seldom to be relied on; ``flake``, the run's own plan does; ``undecided``, its repetitions could
    not be judged; ``unchanged``, there was no time.
    ``before``, ``after``: how often the run's plan and what is left of it failed again.
    """

    source: Source
    ending: Ending
    before: Repeats
    after: Repeats
    document: Document
    tried: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """0 a failing plan that is as small as it gets, or smaller; 2 a flake, or no time."""
        return EXIT_CODES[self.ending]

    @property
    def is_smaller(self) -> bool:
        """Whether anything was left out that failed the same way."""
        return any(outcome.word == "fails" and outcome.said != AS_IT_IS for outcome in self.tried)

    @property
    def ran(self) -> int:
        """How many runs that took, those of a search before this one included."""
        return len(self.tried)

    @property
    def took_s(self) -> float:
        """How long they took, in all."""
        return sum(outcome.took_s for outcome in self.tried)

    @property
    def faults(self) -> tuple[int, int]:
        """How many there were, and are."""
        return len(units(self.source.document)), len(units(self.document))

    @property
    def last_failing(self) -> str:
        """The last run that failed the same way; none where none did."""
        return next((outcome.run for outcome in reversed(self.tried) if outcome.word == "fails"), "")


@dataclass
class Story:
    """One search. ``improved`` is told each time the plan got smaller, so that a kill loses nothing."""

    source: Source
    cache: Cache
    perform: Performer
    now_s: Callable[[], float]
    say: Callable[[str], None]
    improved: Callable[[Minimised], None]
    before: Repeats = _NONE

    def play(self, budget_s: float) -> Minimised:
        """Make the run's plan small.

        Raises AftershockError for a budget in which nothing can be run at all, and what the performer raises.
        """
        start = focused(self.source.document, self.source.checks)
        asking = Asking(
            self.source, self.cache, self.perform, self.now_s, self.now_s() + budget_s, self.say, self._better
        )
        self.say(f"does {self.source.run_id} come back? {', '.join(self.source.checks)}")
        self.before, needed_s = asking.repeated(start)
        if needed_s and not asking.told:
            raise AftershockError(
                f"a budget of {budget_s:.0f} s is too small: one run of this plan takes {needed_s:.0f} s"
            )
        if self.before.word != "steady":
            return self._told(self.before.word or ("unchanged" if needed_s else "undecided"), asking)
        self.say(f"it does: {self.before}")
        return self._made_small(start, asking)

    def _made_small(self, start: Document, asking: Asking) -> Minimised:
        asking.tries = self.before.tries
        ending: Ending = "minimal"
        try:
            asking.answer(minimised(start, self.source.seed))
        except OutOfBudget:
            ending = "smaller" if asking.best else "unchanged"
        if asking.best is None:
            return self._told(ending, asking, self.before)
        self.say("does what is left come back?")
        after, _ = asking.repeated(asking.best.document)
        return self._told("unsteady" if after.word == "flake" else ending, asking, after)

    def _better(self, asking: Asking) -> None:
        self.improved(self._told("smaller", asking))

    def _told(self, ending: Ending, asking: Asking, after: Repeats = _NONE) -> Minimised:
        document = asking.best.document if asking.best else self.source.document
        return Minimised(self.source, ending, self.before, after, document, tuple(asking.told))
