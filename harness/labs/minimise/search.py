"""What is to be made small: a run that failed, its plan as it ran, and the checks that failed.

Whether a run failed the same way: the same checks FAIL. Pure.

What became of each candidate, line by line on disk, so that a search that was killed goes on where it was.

Rules. A line is written when the run is judged, in one write. A line that can't be read is told and skipped: its
candidate is run again. Each asking takes the next outcome there is of a candidate, so repetitions are cached as well. A
run that broke says nothing of its candidate: it is logged, and tried anew by the next search.

Answers a search: from what was run before, else by a run, as long as the budget lasts.

Rules. A run is begun only if by its plan, and by what runs have taken beyond theirs so far, it ends within the budget,
and leaves time to repeat the best plan twice. A candidate that passes is tried again where the failure comes back only
now and then; one that is undecided (a starved host) is given a second run.

The whole of it: a flake is told first, then the plan is made small, then what is left is repeated as well.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.plan.document import Location, load
from aftershock.faults.search.candidates import (
    Candidate,
    Document,
    Search,
    changed,
    compiled,
    digest,
    refused,
    units,
    value_at,
)
from aftershock.faults.search.reductions import focused, minimised
from aftershock.faults.search.sequential_test import Repeats
from aftershock.harness.cluster.engine import DEFAULT_KAFKA
from aftershock.results.checks.check import Check, Status, Verdict, from_json
from aftershock.results.evidence.files import read_json, read_lines, read_object
from aftershock.results.text import sentence


@dataclass(frozen=True)
class Source:
    """``checks``: the ids of those that must fail again, all of them; ``rehearse``: nothing was injected."""

    run_id: str
    document: Document
    seed: int
    rehearse: bool
    checks: tuple[str, ...]


def source_of(home: Path, chosen: Collection[str] = ()) -> Source:
    """The run in ``home``; ``chosen``: which of its failed checks are meant, if not all.

    AftershockError with what to do, for a run that is no failure to be made small.
    """
    facts = read_object(home / "run.json")
    verdict = _verdict(home, facts)
    if verdict.status is not Status.FAIL:
        raise AftershockError(f"{home.name} {_REFUSED[verdict.status]}: {sentence(verdict)}")
    source = Source(home.name, _document(home, facts), facts["seed"], facts["rehearse"], _checks(verdict, chosen))
    if value_at(source.document, ("cluster", "attach")):
        raise AftershockError(f"{home.name} ran on a cluster of yours (`attach`); take `attach` out of the plan first")
    if problem := refused(source.document, source.seed):
        told = f"{home.name} can't be run again by this version: {problem}"
        raise AftershockError(f"{told}; mend a copy of {home / 'plan.yaml'} and run that")
    return source


_REFUSED = {
    Status.PASS: "passed, so there is nothing to make small; name a run that failed",
    Status.INCONCLUSIVE: "was INCONCLUSIVE, not FAIL; mend what its checks say, and run it again first",
    Status.ERROR: "could not be judged; mend what its checks say, and run it again first",
}


def _verdict(home: Path, facts: dict[str, Any]) -> Verdict:
    if not (home / "verdict.json").exists():
        how = f"it is {facts.get('status')}; run its plan again, or judge what there is: aftershock verdict {home}"
        raise AftershockError(f"{home.name} has no verdict ({how})")
    try:
        return from_json(read_json(home / "verdict.json"))
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{home / 'verdict.json'}: no verdict of this version; aftershock verdict {home}"
        ) from error


def _checks(verdict: Verdict, chosen: Collection[str]) -> tuple[str, ...]:
    failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
    if missing := [name for name in chosen if name not in failed]:
        raise AftershockError(f"--check {missing[0]}: that did not FAIL; what did: {', '.join(failed)}")
    return tuple(name for name in failed if not chosen or name in chosen)


def _document(home: Path, facts: dict[str, Any]) -> Document:
    """The plan as it ran: with what a test expected of it, and the Kafka that it ran on."""
    said = load(home / "plan.yaml").data
    expected = [{"slo": line["text"], "gate": line.get("gate", "verdict")} for line in read_lines(home / _EXPECTED)]
    kafka = facts["versions"].get("kafka", DEFAULT_KAFKA)
    values: dict[Location, Any] = {("slo",): [*(said.get("slo") or ()), *expected]}
    if kafka != DEFAULT_KAFKA:
        values["cluster", "kafka"] = kafka
    return changed(said, values)


_EXPECTED = "expectations.jsonl"


Word = Literal["fails", "passes", "undecided", "broke"]


def alike(verdict: Verdict, checks: Sequence[str]) -> tuple[Word, str]:
    """The word, and the reason: ``fails`` where all of these checks do, each for whichever arm.

    ``undecided``: one could not be judged, so that the run says nothing.
    """
    judged = {name: [check for check in verdict.gating if check.id == name] for name in checks}
    statuses = {name: _status(found) for name, found in judged.items()}
    if all(status is Status.FAIL for status in statuses.values()):
        return "fails", next(check.why for check in judged[checks[0]] if check.status is Status.FAIL)
    open_ = [check for found in judged.values() for check in found if check.status is Status.INCONCLUSIVE]
    # a check that passed decides: what is open beside it can't make the run fail the same way
    if open_ and Status.PASS not in statuses.values():
        return "undecided", f"{open_[0].id}: {open_[0].why}"
    return "passes", sentence(verdict)


def _status(found: Sequence[Check]) -> Status:
    """FAIL if any arm's does; else what is left open, else PASS, also where nobody is judged any more."""
    statuses = {check.status for check in found}
    return next((each for each in (Status.FAIL, Status.INCONCLUSIVE) if each in statuses), Status.PASS)


Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One run of a candidate. ``digest``: of all that decides about it; ``run``: its folder under ``runs``."""

    digest: str
    said: str
    word: Word
    why: str
    run: str
    took_s: float


class Cache:
    """The outcomes in a file, which comes into being with the first."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._left: defaultdict[str, deque[Outcome]] = defaultdict(deque)
        for number, line in enumerate(_lines(path), 1):
            if (read := _outcome(line)) is None:
                say(f"{path}:{number}: this line can't be read, and is skipped: its candidate is run again")
            elif read.word != "broke":
                self._left[read.digest].append(read)

    def take(self, digest: str) -> Outcome | None:
        """The next outcome of this candidate, if there is one left."""
        return self._left[digest].popleft() if self._left[digest] else None

    def add(self, outcome: Outcome) -> None:
        """Write one down; a line that was torn before it stays a line of its own."""
        torn = bool(text := _text(self._path)) and not text.endswith(b"\n")
        with self._path.open("ab", buffering=0) as file:
            file.write(b"\n" * torn + json.dumps(asdict(outcome)).encode() + b"\n")


def _text(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _lines(path: Path) -> list[bytes]:
    return _text(path).splitlines()


def _outcome(line: bytes) -> Outcome | None:
    try:
        read = json.loads(line)
        told = Outcome(**{field.name: read[field.name] for field in fields(Outcome)})
        return (
            told
            if isinstance(told.took_s, float | int) and told.word in ("fails", "passes", "undecided", "broke")
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


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
