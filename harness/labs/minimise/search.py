"""Minimisation of a failed run: its plan is reduced to the smallest plan that still fails in the same way.

* `source_of` reads the failed run: its plan as it ran, and the checks that failed.
* `same_failure` decides whether a run fails the same way: the same checks FAIL.
* `Cache` stores the outcome of each candidate in a file, so that a search that was killed continues where it was. A
  line is written after the verdict, in one write. An unreadable line is reported and skipped, and its candidate is run
  again. Each request takes the next stored outcome of a candidate, so repetitions are cached too. A run that broke down
  does not count for its candidate: it is logged, and the next search runs the candidate again.
* `Oracle` answers the search, from the cache or else by a run, while the budget lasts. A run starts only if it ends
  within the budget, estimated from its plan and the overhead of earlier runs, and leaves time to repeat the best plan
  twice. If the failure is intermittent, a candidate that passes is tried again; an undecided candidate (starved host)
  gets a second run.
* `Minimisation` is the whole procedure: detect a flake first, then reduce the plan, then repeat the reduced plan.
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
    compile_document,
    digest,
    fault_units,
    refusal_of,
    value_at,
    with_values,
)
from aftershock.faults.search.reductions import focus_slos, minimise
from aftershock.faults.search.sequential_test import Repeats
from aftershock.harness.cluster.engine import DEFAULT_KAFKA
from aftershock.results.checks.check import Check, Status, Verdict, from_json
from aftershock.results.evidence.files import read_json, read_lines, read_object
from aftershock.results.text import sentence


@dataclass(frozen=True)
class Source:
    """The failed run. ``checks``: ids of the checks that must all fail again; ``rehearse``: nothing was injected."""

    run_id: str
    document: Document
    seed: int
    rehearse: bool
    checks: tuple[str, ...]


def source_of(home: Path, chosen: Collection[str] = ()) -> Source:
    """Read the run in ``home``. ``chosen``: the failed checks to reproduce; default: all.

    Raises AftershockError, with advice, for a run that can't be minimised.
    """
    facts = read_object(home / "run.json")
    verdict = _verdict(home, facts)
    if verdict.status is not Status.FAIL:
        raise AftershockError(f"{home.name} {_REFUSALS[verdict.status]}: {sentence(verdict)}")
    source = Source(home.name, _document(home, facts), facts["seed"], facts["rehearse"], _checks(verdict, chosen))
    if value_at(source.document, ("cluster", "attach")):
        raise AftershockError(f"{home.name} ran on an attached cluster; remove `attach` from the plan first")
    if problem := refusal_of(source.document, source.seed):
        raise AftershockError(
            f"{home.name} can't be run again by this version: {problem}; "
            f"correct a copy of {home / 'plan.yaml'} and run it"
        )
    return source


_REFUSALS = {
    Status.PASS: "passed, so there is nothing to minimise; name a failed run",
    Status.INCONCLUSIVE: "was INCONCLUSIVE, not FAIL; fix the causes in its checks, and run it again first",
    Status.ERROR: "could not be judged; fix the causes in its checks, and run it again first",
}


def _verdict(home: Path, facts: dict[str, Any]) -> Verdict:
    if not (home / "verdict.json").exists():
        status = f"it is {facts.get('status')}; run its plan again, or judge its evidence: aftershock verdict {home}"
        raise AftershockError(f"{home.name} has no verdict ({status})")
    try:
        return from_json(read_json(home / "verdict.json"))
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{home / 'verdict.json'}: not a verdict of this version; judge again: aftershock verdict {home}"
        ) from error


def _checks(verdict: Verdict, chosen: Collection[str]) -> tuple[str, ...]:
    failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
    if missing := [name for name in chosen if name not in failed]:
        raise AftershockError(f"--check {missing[0]}: did not FAIL in this run; failed checks: {', '.join(failed)}")
    return tuple(name for name in failed if not chosen or name in chosen)


def _document(home: Path, facts: dict[str, Any]) -> Document:
    """Return the plan as it ran, including a test's expectations and the Kafka version."""
    plan = load(home / "plan.yaml").data
    expected = [{"slo": line["text"], "gate": line.get("gate", "verdict")} for line in read_lines(home / _EXPECTED)]
    kafka = facts["versions"].get("kafka", DEFAULT_KAFKA)
    values: dict[Location, Any] = {("slo",): [*(plan.get("slo") or ()), *expected]}
    if kafka != DEFAULT_KAFKA:
        values["cluster", "kafka"] = kafka
    return with_values(plan, values)


_EXPECTED = "expectations.jsonl"


Word = Literal["fails", "passes", "undecided", "broke"]


def same_failure(verdict: Verdict, checks: Sequence[str]) -> tuple[Word, str]:
    """Compare a verdict with the failed checks; return the word and its reason.

    ``fails``: all of these checks fail, each in any arm. ``undecided``: a check could not be judged.
    """
    by_name = {name: [check for check in verdict.gating if check.id == name] for name in checks}
    statuses = {name: _status(arms) for name, arms in by_name.items()}
    if all(status is Status.FAIL for status in statuses.values()):
        return "fails", next(check.why for check in by_name[checks[0]] if check.status is Status.FAIL)
    undecided_checks = [check for arms in by_name.values() for check in arms if check.status is Status.INCONCLUSIVE]
    # if one check passed, the run did not fail the same way, even if other checks are undecided
    if undecided_checks and Status.PASS not in statuses.values():
        return "undecided", f"{undecided_checks[0].id}: {undecided_checks[0].why}"
    return "passes", sentence(verdict)


def _status(arms: Sequence[Check]) -> Status:
    """Return the worst status of the arms: FAIL, INCONCLUSIVE or PASS; PASS without arms."""
    statuses = {check.status for check in arms}
    return next(
        (candidate_status for candidate_status in (Status.FAIL, Status.INCONCLUSIVE) if candidate_status in statuses),
        Status.PASS,
    )


Log = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One run of a candidate. ``digest``: identifies the candidate; ``run``: its folder under ``runs``."""

    digest: str
    said: str
    word: Word
    why: str
    run: str
    took_s: float


class Cache:
    """File of stored outcomes, created with the first outcome."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._unused: defaultdict[str, deque[Outcome]] = defaultdict(deque)
        for number, line in enumerate(_lines(path), 1):
            if (read := _outcome(line)) is None:
                log(f"{path}:{number}: unreadable line, skipped: its candidate is run again")
            elif read.word != "broke":
                self._unused[read.digest].append(read)

    def take(self, digest: str) -> Outcome | None:
        """Return the candidate's next unused outcome, if any."""
        return self._unused[digest].popleft() if self._unused[digest] else None

    def add(self, outcome: Outcome) -> None:
        """Append an outcome; an incomplete last line, left by a killed search, stays a separate line."""
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
        outcomes = Outcome(**{field.name: read[field.name] for field in fields(Outcome)})
        return (
            outcomes
            if isinstance(outcomes.took_s, float | int) and outcomes.word in ("fails", "passes", "undecided", "broke")
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


T = TypeVar("T")
AS_IT_IS = "as it is"
_OVERHEAD_S = 25.0  # time of a run beyond its load, before the first measurement
_REPEATS = 2  # runs of the best plan at the end
_UNDECIDED_MAX = 3  # undecided repetitions after which the repetition stops


class OutOfBudget(Exception):  # noqa: N818 -- not an error: the search ends
    """The next run would not end in time; ``needed_s`` is its duration."""

    def __init__(self, needed_s: float) -> None:
        super().__init__()
        self.needed_s = needed_s


@dataclass(frozen=True)
class CandidateRun:
    """A judged run of a candidate: the word, its reason, and the name of the run's folder."""

    word: Word
    why: str
    run: str


class Performer(Protocol):
    """Runs a plan and judges it."""

    def __call__(self, document: Document) -> CandidateRun:
        """Run the plan. Raises AftershockError if no plan can be run at all."""


@dataclass
class Oracle:
    """Answers to "does this candidate fail the same way?".

    ``best``: the last candidate that failed the same way; ``outcomes``: all outcomes, in the order of the requests.
    """

    source: Source
    cache: Cache
    perform: Performer
    now_s: Callable[[], float]
    ends_s: float
    log: Callable[[str], None]
    improved: Callable[["Oracle"], None]
    tries: int = 1
    best: Candidate | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    _overhead_s: list[float] = field(default_factory=list)

    def answer(self, search: Search[T]) -> T:
        """Run the search to its end and return its result. Raises OutOfBudget if the budget is used up first."""
        reply: bool | None = None
        while True:
            try:
                candidate = next(search) if reply is None else search.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = self._fails_again(candidate)
            if reply:
                self.best = candidate
                self.improved(self)

    def repeated(self, document: Document) -> tuple[Repeats, float]:
        """Repeat the plan within the budget; return the counts, and the time that the next run would have needed."""
        counts, undecided_count = Repeats(), 0
        while counts.word is None and undecided_count < _UNDECIDED_MAX:
            try:
                outcome = self._outcome_of_run(Candidate(AS_IT_IS, document), 0)
            except OutOfBudget as over:
                return counts, over.needed_s
            if outcome.word in ("fails", "passes"):
                counts = counts.after(failed=outcome.word == "fails")
            else:
                undecided_count += 1
        return counts, 0.0

    def _fails_again(self, candidate: Candidate) -> bool:
        words: list[Word] = []
        while words.count("passes") + words.count("broke") < self.tries and words.count("undecided") <= 1:
            words.append(self._outcome_of_run(candidate, _REPEATS).word)
            if words[-1] == "fails":
                return True
        return False

    def _outcome_of_run(self, candidate: Candidate, repeats: int) -> Outcome:
        """Return a cached outcome, or run the candidate and return its outcome.

        ``repeats``: runs of the best plan that must still fit.
        """
        key = digest(candidate.document, self.source.seed, self.source.rehearse, self.source.checks)
        cached = self.cache.take(key)
        outcome = cached or self._run_candidate(candidate, key, repeats)
        self.outcomes.append(outcome)
        left_min = max(0.0, self.ends_s - self.now_s()) / 60
        took = "known" if cached else f"{outcome.took_s:.0f} s"
        self.log(f"{left_min:4.1f} min left  {outcome.word:<9} {took:>5}  {candidate.change}")
        return outcome

    def _run_candidate(self, candidate: Candidate, key: str, repeats: int) -> Outcome:
        load_s, best = self._load_s(candidate), self.best or candidate
        needed_s = self._duration_s(load_s)
        began_s = self.now_s()
        if began_s + needed_s + repeats * self._duration_s(self._load_s(best)) > self.ends_s:
            raise OutOfBudget(needed_s)
        ran = self.perform(candidate.document)
        took_s = round(self.now_s() - began_s, 1)
        self._overhead_s.append(took_s - load_s)
        outcome = Outcome(key, candidate.change, ran.word, ran.why, ran.run, took_s)
        self.cache.add(outcome)
        return outcome

    def _load_s(self, candidate: Candidate) -> float:
        return planned_s(candidate.document, self.source.seed)

    def _duration_s(self, load_s: float) -> float:
        """Estimate a run's duration: its plan plus the largest overhead so far.

        The first run doesn't count, because it launched the cluster and started Spark.
        """
        return load_s + max(self._overhead_s[1:] or self._overhead_s or [_OVERHEAD_S])


def planned_s(document: Document, seed: int) -> float:
    """Return the planned length of the load."""
    timeline = compile_document(document, seed)
    return (timeline.timing.warmup_min_ms + timeline.timing.steady_ms + timeline.length_ms) / 1000


Ending = Literal["minimal", "smaller", "unsteady", "flake", "undecided", "unchanged"]
_NONE = Repeats()
EXIT_CODES = {"minimal": 0, "smaller": 0, "unsteady": 2, "flake": 2, "undecided": 2, "unchanged": 2}


@dataclass(frozen=True)
class Minimised:
    """Result of a minimisation.

    Attributes:
        ending: ``minimal``, nothing more can be removed; ``smaller``, the budget ended first; ``unsteady``, the reduced
            plan fails too rarely; ``flake``, the run's own plan fails too rarely; ``undecided``, its repetitions could
            not be judged; ``unchanged``, the budget ended before any reduction.
        before: repetitions of the run's plan.
        after: repetitions of the reduced plan.
        tried: all outcomes, in order.
    """

    source: Source
    ending: Ending
    before: Repeats
    after: Repeats
    document: Document
    tried: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """0 for a smaller or minimal plan; 2 for a flake, or without a result."""
        return EXIT_CODES[self.ending]

    @property
    def is_smaller(self) -> bool:
        """True if a reduced plan failed the same way."""
        return any(outcome.word == "fails" and outcome.said != AS_IT_IS for outcome in self.tried)

    @property
    def ran(self) -> int:
        """Number of runs, including the runs of earlier searches."""
        return len(self.tried)

    @property
    def took_s(self) -> float:
        """Total duration of the runs."""
        return sum(outcome.took_s for outcome in self.tried)

    @property
    def faults(self) -> tuple[int, int]:
        """Number of faults before and after."""
        return len(fault_units(self.source.document)), len(fault_units(self.document))

    @property
    def last_failing(self) -> str:
        """The last run that failed the same way, "" without one."""
        return next((outcome.run for outcome in reversed(self.tried) if outcome.word == "fails"), "")


@dataclass
class Minimisation:
    """One minimisation. ``improved`` is called after each reduction, so that a kill loses nothing."""

    source: Source
    cache: Cache
    perform: Performer
    now_s: Callable[[], float]
    log: Callable[[str], None]
    improved: Callable[[Minimised], None]
    before: Repeats = _NONE

    def play(self, budget_s: float) -> Minimised:
        """Minimise the run's plan.

        Raises AftershockError for a budget that is too small for one run, and any error of the ``Performer``.
        """
        start = focus_slos(self.source.document, self.source.checks)
        oracle = Oracle(
            self.source,
            self.cache,
            self.perform,
            self.now_s,
            self.now_s() + budget_s,
            self.log,
            self._report_improvement,
        )
        self.log(f"does {self.source.run_id} fail again? {', '.join(self.source.checks)}")
        self.before, needed_s = oracle.repeated(start)
        if needed_s and not oracle.outcomes:
            raise AftershockError(
                f"a budget of {budget_s:.0f} s is too small: one run of this plan takes {needed_s:.0f} s"
            )
        if self.before.word != "steady":
            return self._result(self.before.word or ("unchanged" if needed_s else "undecided"), oracle)
        self.log(f"it does: {self.before}")
        return self._reduce(start, oracle)

    def _reduce(self, start: Document, oracle: Oracle) -> Minimised:
        oracle.tries = self.before.tries
        ending: Ending = "minimal"
        try:
            oracle.answer(minimise(start, self.source.seed))
        except OutOfBudget:
            ending = "smaller" if oracle.best else "unchanged"
        if oracle.best is None:
            return self._result(ending, oracle, self.before)
        self.log("does the reduced plan fail again?")
        after, _ = oracle.repeated(oracle.best.document)
        return self._result("unsteady" if after.word == "flake" else ending, oracle, after)

    def _report_improvement(self, oracle: Oracle) -> None:
        self.improved(self._result("smaller", oracle))

    def _result(self, ending: Ending, oracle: Oracle, after: Repeats = _NONE) -> Minimised:
        document = oracle.best.document if oracle.best else self.source.document
        return Minimised(self.source, ending, self.before, after, document, tuple(oracle.outcomes))
