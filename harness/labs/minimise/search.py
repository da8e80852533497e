"""Minimisation of a failed run: the run's plan is reduced to the smallest plan that fails the same checks.

A minimisation first repeats the failed run's plan, to detect a flake, then tries smaller candidate plans, and in the
end repeats the reduced plan. A run starts only if it ends within the time budget and leaves time to repeat the smallest
failing plan twice. A candidate plan whose first run is undecided gets a second run. The outcomes of all runs are
cached, so that a killed search continues: instead of a run, the next cached outcome of the same plan is used, unless
that run broke down.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from aftershock.errors import AftershockError, EvidenceError, Log
from aftershock.faults.plan.document import Location, load
from aftershock.faults.search.candidates import (
    Candidate,
    Document,
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
from aftershock.results.checks.check import Status, Verdict, from_json
from aftershock.results.evidence.files import read_json, read_lines, read_object
from aftershock.results.text import sentence


@dataclass(frozen=True)
class Source:
    """Failed run to minimise; ``checks`` are the ids that must all FAIL again; ``rehearse``: no fault was injected."""

    run_id: str
    document: Document
    seed: int
    rehearse: bool
    checks: tuple[str, ...]


def source_of(home: Path, chosen: Collection[str] = ()) -> Source:
    """Read the failed run in ``home``; ``chosen`` are the failed checks to reproduce, by default all failed checks.

    Raises AftershockError, with advice, for a run that can't be minimised.
    """
    facts = read_object(home / "run.json")
    if not (home / "verdict.json").exists():
        advice = f"run its plan again, or judge its evidence with: aftershock verdict {home}"
        raise AftershockError(f"{home.name} has no verdict (status: {facts.get('status')}); {advice}")
    try:
        verdict = from_json(read_json(home / "verdict.json"))
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{home / 'verdict.json'}: not a verdict of this version; judge again: aftershock verdict {home}"
        ) from error
    if verdict.status is not Status.FAIL:
        raise AftershockError(f"{home.name} {_REFUSALS[verdict.status]}: {sentence(verdict)}")

    # the plan as it ran, with the expectations of a test and the Kafka version
    plan = load(home / "plan.yaml").data
    expectations = read_lines(home / "expectations.jsonl")
    slos = [{"slo": line["text"], "gate": line.get("gate", "verdict")} for line in expectations]
    values: dict[Location, Any] = {("slo",): [*(plan.get("slo") or ()), *slos]}
    kafka = facts["versions"].get("kafka", DEFAULT_KAFKA)
    if kafka != DEFAULT_KAFKA:
        values["cluster", "kafka"] = kafka
    document = with_values(plan, values)

    failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
    if missing := [name for name in chosen if name not in failed]:
        raise AftershockError(
            f"--check {missing[0]}: this check did not FAIL in the run; failed checks: {', '.join(failed)}"
        )
    if value_at(document, ("cluster", "attach")):
        raise AftershockError(f"{home.name} ran on an attached cluster; remove `attach` from the plan first")
    if problem := refusal_of(document, facts["seed"]):
        raise AftershockError(
            f"{home.name} can't be run again by this version: {problem}; "
            f"correct a copy of {home / 'plan.yaml'} and run it"
        )
    checks = tuple(name for name in failed if not chosen or name in chosen)
    return Source(home.name, document, facts["seed"], facts["rehearse"], checks)


_REFUSALS = {
    Status.PASS: "passed, so there is nothing to minimise; name a failed run",
    Status.INCONCLUSIVE: "was INCONCLUSIVE, not FAIL; fix the causes in its checks, and run it again first",
    Status.ERROR: "could not be judged; fix the causes in its checks, and run it again first",
}


Word = Literal["fails", "passes", "undecided", "broke"]


def same_failure(verdict: Verdict, checks: Sequence[str]) -> tuple[Word, str]:
    """Compare the verdict of a candidate plan with the failed checks; return the result as a word, and its reason.

    ``fails``: each of the checks fails in at least one arm; ``undecided``: a check is INCONCLUSIVE, and none passes.
    """
    by_name = {name: [check for check in verdict.gating if check.id == name] for name in checks}
    worst = [
        next((status for status in (Status.FAIL, Status.INCONCLUSIVE) if status in statuses), Status.PASS)
        for statuses in ([check.status for check in arms] for arms in by_name.values())
    ]
    if all(status is Status.FAIL for status in worst):
        return "fails", next(check.why for check in by_name[checks[0]] if check.status is Status.FAIL)
    undecided = [check for arms in by_name.values() for check in arms if check.status is Status.INCONCLUSIVE]
    if undecided and Status.PASS not in worst:
        return "undecided", f"{undecided[0].id}: {undecided[0].why}"
    return "passes", sentence(verdict)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run of a candidate plan: the plan's hash, the reduction (``change``), the result and the run id."""

    digest: str
    change: str
    word: Word
    why: str
    run: str
    took_s: float


_CACHE_KEYS = {field.name: "said" if field.name == "change" else field.name for field in fields(Outcome)}


class Cache:
    """File with the outcomes of runs of candidate plans; the field ``change`` is stored under the key ``said``."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._unused: defaultdict[str, deque[Outcome]] = defaultdict(deque)
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
            outcome = None
            with suppress(ValueError, KeyError, TypeError):
                values = json.loads(line)
                outcome = Outcome(**{name: values[key] for name, key in _CACHE_KEYS.items()})
            if outcome is None or not isinstance(outcome.took_s, float | int) or outcome.word not in get_args(Word):
                log(f"{path}:{number}: the line is unreadable and is skipped; the reduced plan of that line runs again")
            elif outcome.word != "broke":
                self._unused[outcome.digest].append(outcome)

    def take(self, digest: str) -> Outcome | None:
        return self._unused[digest].popleft() if self._unused[digest] else None

    def add(self, outcome: Outcome) -> None:
        """Append a candidate plan's outcome in one write, on a new line even if the previous write was cut off."""
        text = self._path.read_bytes() if self._path.exists() else b""
        torn = bool(text) and not text.endswith(b"\n")
        values = {key: getattr(outcome, name) for name, key in _CACHE_KEYS.items()}
        with self._path.open("ab", buffering=0) as file:
            file.write(b"\n" * torn + json.dumps(values).encode() + b"\n")


AS_IT_IS = "as it is"
_OVERHEAD_S = 25.0  # time of a run beyond its load, before the first measurement
_REPEATS = 2  # runs of the best plan at the end
_UNDECIDED_MAX = 3  # undecided repetitions after which the repetition stops


class OutOfBudget(Exception):  # noqa: N818 -- not an error: the search ends
    """The next run of a minimisation, which takes ``needed_s``, would exceed the time budget."""

    def __init__(self, needed_s: float) -> None:
        super().__init__()
        self.needed_s = needed_s


@dataclass(frozen=True)
class CandidateRun:
    """Judged run of a candidate plan: result (``word``), reason for the result, and run id ("" without a run)."""

    word: Word
    why: str
    run: str


Performer = Callable[[Document], CandidateRun]
"""Runs and judges a plan. Raises AftershockError if no plan can be run at all."""


def planned_s(document: Document, seed: int) -> float:
    timeline = compile_document(document, seed)
    return (timeline.timing.warmup_min_ms + timeline.timing.steady_ms + timeline.length_ms) / 1000


Ending = Literal["minimal", "smaller", "unsteady", "flake", "undecided", "unchanged"]
_NONE = Repeats()


@dataclass(frozen=True)
class Minimised:
    """Result of a minimisation; ``before`` and ``after`` count the outcomes of the original and of the reduced plan.

    ``ending`` is ``minimal`` if no reduction is left to try; ``smaller`` if the budget ended first; ``unsteady`` if the
    reduced plan fails too rarely; ``flake`` if the run's own plan fails too rarely; ``undecided`` if repetitions of the
    run's plan could not be judged; ``unchanged`` if the budget ended before any reduction. ``tried`` has the outcomes
    of all runs of the minimisation.
    """

    source: Source
    ending: Ending
    before: Repeats
    after: Repeats
    document: Document
    tried: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if the minimisation ended with a smaller or minimal plan, otherwise 2."""
        return 0 if self.ending in ("minimal", "smaller") else 2

    @property
    def is_smaller(self) -> bool:
        """True if a reduced plan failed the same checks as the original run."""
        return any(outcome.word == "fails" and outcome.change != AS_IT_IS for outcome in self.tried)

    @property
    def took_s(self) -> float:
        """Total duration of a minimisation's runs, including runs of earlier searches, in seconds."""
        return sum(outcome.took_s for outcome in self.tried)

    @property
    def faults(self) -> tuple[int, int]:
        """Numbers of faults in the failed run's plan and in the reduced plan."""
        return len(fault_units(self.source.document)), len(fault_units(self.document))

    @property
    def last_failing(self) -> str:
        """Id of the last run that failed the same checks as the original run; "" without such a run."""
        return next((outcome.run for outcome in reversed(self.tried) if outcome.word == "fails"), "")


@dataclass
class Minimisation:
    """Procedure of a minimisation; ``outcomes`` has all outcomes of candidate plans, in order.

    ``improved`` is called after each reduction, to store the plan; ``best`` is the last candidate plan that failed.
    """

    source: Source
    cache: Cache
    perform: Performer
    now_s: Callable[[], float]
    log: Log
    improved: Callable[[Minimised], None]
    before: Repeats = _NONE
    best: Candidate | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    ends_s: float = 0.0
    overheads_s: list[float] = field(default_factory=list)

    def play(self, budget_s: float) -> Minimised:
        """Minimise the failed run's plan; raise AftershockError if the time budget is too small for one run."""
        self.ends_s = self.now_s() + budget_s
        start = focus_slos(self.source.document, self.source.checks)
        self.log(f"does {self.source.run_id} fail again? {', '.join(self.source.checks)}")
        self.before, needed_s = self._repeat(start)
        if needed_s and not self.outcomes:
            raise AftershockError(
                f"a budget of {budget_s:.0f} s is too small: one run of this plan takes {needed_s:.0f} s; "
                "use a larger --budget"
            )
        if self.before.word != "steady":
            return self._result(self.before.word or ("unchanged" if needed_s else "undecided"))

        self.log(f"it does: {self.before}")
        ending: Ending = "minimal"
        search = minimise(start, self.source.seed)
        try:
            candidate = next(search)
            while True:
                candidate = search.send(self._fails_again(candidate))
        except StopIteration:
            pass  # all reductions were tried
        except OutOfBudget:
            ending = "smaller" if self.best else "unchanged"
        if self.best is None:
            return self._result(ending, self.before)

        self.log("repeating the reduced plan, to see whether it fails again")
        after, _ = self._repeat(self.best.document)
        return self._result("unsteady" if after.word == "flake" else ending, after)

    def _repeat(self, document: Document) -> tuple[Repeats, float]:
        """Repeat a plan; return the counts of outcomes, and the duration of a next run that would exceed the budget."""
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
        """True if the candidate plan fails; a plan that passes is repeated if the original failure is intermittent."""
        words: list[Word] = []
        while words.count("passes") + words.count("broke") < self.before.tries and words.count("undecided") <= 1:
            words.append(self._outcome_of_run(candidate, _REPEATS).word)
            if words[-1] == "fails":
                self.best = candidate
                self.improved(self._result("smaller"))
                return True
        return False

    def _outcome_of_run(self, candidate: Candidate, repeats: int) -> Outcome:
        """Return the candidate plan's cached outcome, or run the plan and leave time for ``repeats`` later runs."""
        key = digest(candidate.document, self.source.seed, self.source.rehearse, self.source.checks)
        cached = outcome = self.cache.take(key)
        if outcome is None:
            load_s = planned_s(candidate.document, self.source.seed)
            best_load_s = planned_s((self.best or candidate).document, self.source.seed)
            needed_s, began_s = self._duration_s(load_s), self.now_s()
            if began_s + needed_s + repeats * self._duration_s(best_load_s) > self.ends_s:
                raise OutOfBudget(needed_s)
            run = self.perform(candidate.document)
            took_s = round(self.now_s() - began_s, 1)
            self.overheads_s.append(took_s - load_s)
            outcome = Outcome(key, candidate.change, run.word, run.why, run.run, took_s)
            self.cache.add(outcome)
        self.outcomes.append(outcome)
        left_min = max(0.0, self.ends_s - self.now_s()) / 60
        took = "known" if cached else f"{outcome.took_s:.0f} s"
        self.log(f"{left_min:4.1f} min left  {outcome.word:<9} {took:>5}  {candidate.change}")
        return outcome

    def _duration_s(self, load_s: float) -> float:
        """Estimate a run's duration: its load plus the longest time that an earlier run needed besides its load.

        The first run is not counted, because that run launched the cluster and started Spark.
        """
        return load_s + max(self.overheads_s[1:] or self.overheads_s or [_OVERHEAD_S])

    def _result(self, ending: Ending, after: Repeats = _NONE) -> Minimised:
        document = self.best.document if self.best else self.source.document
        return Minimised(self.source, ending, self.before, after, document, tuple(self.outcomes))
