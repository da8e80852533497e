"""Minimisation of a failed run, which reduces the run's plan to the smallest plan that fails the same checks.

A minimisation first repeats the failed run's plan, to detect an intermittent failure, then tries smaller candidate
plans, and in the end repeats the reduced plan. A run starts only if it ends within the time budget and leaves time to
repeat the smallest failing plan twice. The outcomes of all runs are cached in ``cache.jsonl``, so that a killed
minimisation continues where it ended.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from aftershock.errors import AftershockError, Log
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
from aftershock.faults.sections.document import Location, load
from aftershock.harness.cluster.engine import DEFAULT_KAFKA
from aftershock.results.evidence.evidence import SCHEMA_VERSION
from aftershock.results.evidence.files import read_lines, read_object, require_schema_version
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.model.check import Status, Verdict
from aftershock.results.model.text import sentence


@dataclass(frozen=True)
class Source:
    """Failed run to minimise; ``checks`` has the ids of the checks that must all FAIL again in a smaller plan."""

    run_id: str
    document: Document
    seed: int
    rehearse: bool
    checks: tuple[str, ...]


def source_of(home: Path, chosen: Collection[str] = ()) -> Source:
    """Read the failed run in ``home``; ``chosen`` has the ids of the checks to reproduce, by default all failed checks.

    Raises AftershockError for a run that can't be minimised.
    """
    facts = read_object(home / "run.json")
    if not (home / "verdict.json").exists():
        advice = f"run its plan again, or judge its evidence with: aftershock verdict {home}"
        raise AftershockError(f"{home.name} has no verdict (status: {facts.get('status')}); {advice}")
    require_schema_version(str(home / "run.json"), facts, SCHEMA_VERSION)
    verdict = verdict_of(home)
    if verdict.status is not Status.FAIL:
        raise AftershockError(f"{home.name}: {_REFUSALS[verdict.status]}: {sentence(verdict)}")

    # the plan as it ran: with the SLOs that a test added, and with the Kafka version
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
        hint = f"failed checks: {', '.join(failed)}"
        raise AftershockError(f"--check {missing[0]}: this check did not FAIL in the run; {hint}")
    if value_at(document, ("cluster", "attach")):
        raise AftershockError(
            f"{home.name} ran on an existing cluster; remove `cluster: attach` from the plan, and run it"
        )
    if problem := refusal_of(document, facts["seed"]):
        advice = f"correct a copy of {home / 'plan.yaml'} and run it"
        raise AftershockError(f"{home.name} can't be run again by this version: {problem}; {advice}")
    checks = tuple(name for name in failed if not chosen or name in chosen)
    return Source(home.name, document, facts["seed"], facts["rehearse"], checks)


_REFUSALS = {
    Status.PASS: "the run passed, so there is nothing to minimise; name a failed run",
    Status.INCONCLUSIVE: (
        "the run was INCONCLUSIVE, not FAIL; fix the causes that its checks name, and run its plan again"
    ),
    Status.ERROR: "the run could not be judged; fix the causes that its checks name, and run its plan again",
}


Word = Literal["fails", "passes", "undecided", "broke"]


def same_failure(verdict: Verdict, checks: Sequence[str]) -> tuple[Word, str]:
    """Compare the verdict of a candidate plan with the ids of the failed ``checks``; return a word and the reason.

    The word is ``fails`` if each check fails in at least one arm, and ``undecided`` if a check is INCONCLUSIVE and no
    check passes.
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
    """Outcome of a run of a candidate plan; ``digest`` is a hash of the plan, ``change`` describes the reduction."""

    digest: str
    change: str
    word: Word
    why: str
    run: str
    took_s: float


_CACHE_KEYS = {field.name: "said" if field.name == "change" else field.name for field in fields(Outcome)}
"""Keys of the lines in ``cache.jsonl``, by the field of `Outcome`; caches of earlier versions use the same keys."""


class Cache:
    """File with the outcomes of all runs of candidate plans, so that a killed minimisation can continue."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._unused: defaultdict[str, deque[Outcome]] = defaultdict(deque)
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
            outcome = None
            with suppress(ValueError, KeyError, TypeError):
                values = json.loads(line)
                outcome = Outcome(**{name: values[key] for name, key in _CACHE_KEYS.items()})
            if outcome is None or not isinstance(outcome.took_s, float | int) or outcome.word not in get_args(Word):
                log(f"{path}:{number}: this outcome is unreadable and is skipped; the reduced plan runs again")
            elif outcome.word != "broke":
                self._unused[outcome.digest].append(outcome)

    def take(self, digest: str) -> Outcome | None:
        return self._unused[digest].popleft() if self._unused[digest] else None

    def add(self, outcome: Outcome) -> None:
        """Append an outcome in one write, on a new line even if a kill has cut off the previous line."""
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
    """Raised because the next run, of ``needed_s`` seconds, would exceed the time budget of the minimisation."""

    def __init__(self, needed_s: float) -> None:
        super().__init__()
        self.needed_s = needed_s


@dataclass(frozen=True)
class CandidateRun:
    """Judged run of a candidate plan; ``why`` is the reason for the result ``word``, ``run`` the run id, "" if none."""

    word: Word
    why: str
    run: str


Performer = Callable[[Document], CandidateRun]
"""Function that runs and judges a plan; it raises AftershockError for errors that every plan would have."""


def planned_s(document: Document, seed: int) -> float:
    timeline = compile_document(document, seed)
    return (timeline.timing.warmup_min_ms + timeline.timing.steady_ms + timeline.length_ms) / 1000


Ending = Literal["minimal", "smaller", "unsteady", "flake", "undecided", "unchanged"]
_NONE = Repeats()


@dataclass(frozen=True)
class Minimised:
    """Result of a minimisation; ``before`` has outcomes of the original plan, ``after`` those of the reduced plan.

    ``ending`` is ``minimal`` if no reduction is left to try; ``smaller`` if the budget ended first; ``unsteady`` if the
    reduced plan fails too rarely; ``flake`` if the run's own plan fails too rarely; ``undecided`` if repetitions of the
    run's plan could not be judged; ``unchanged`` if the budget ended before any reduction.
    """

    source: Source
    ending: Ending
    before: Repeats
    after: Repeats
    document: Document
    tried: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.ending in ("minimal", "smaller") else 2

    @property
    def is_smaller(self) -> bool:
        """True if a reduced plan failed the same checks as the original run."""
        return any(outcome.word == "fails" and outcome.change != AS_IT_IS for outcome in self.tried)

    @property
    def took_s(self) -> float:
        return sum(outcome.took_s for outcome in self.tried)

    @property
    def faults(self) -> tuple[int, int]:
        """Number of faults in the plan of the failed run, and in the reduced plan."""
        return len(fault_units(self.source.document)), len(fault_units(self.document))

    @property
    def last_failing(self) -> str:
        """Id of the last run that failed the same checks as the original run; "" without such a run."""
        return next((outcome.run for outcome in reversed(self.tried) if outcome.word == "fails"), "")


@dataclass
class Minimisation:
    """Minimisation in progress; ``improved`` is called after each reduction; ``best`` is the smallest failing plan."""

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
        """Minimise the plan of the failed run; raise AftershockError if the time budget is too small for one run."""
        self.ends_s = self.now_s() + budget_s
        start = focus_slos(self.source.document, self.source.checks)
        self.log(f"does {self.source.run_id} fail again? {', '.join(self.source.checks)}")
        self.before, needed_s = self._repeat(start)
        if needed_s and not self.outcomes:
            needs = f"one run of this plan takes {needed_s:.0f} s"
            raise AftershockError(f"a budget of {budget_s:.0f} s is too small: {needs}; use a larger --budget")
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

        self.log("repeating the reduced plan, to see whether the plan fails reliably")
        after, _ = self._repeat(self.best.document)
        return self._result("unsteady" if after.word == "flake" else ending, after)

    def _repeat(self, document: Document) -> tuple[Repeats, float]:
        """Repeat a plan; return the counts of outcomes, and, if the time budget ended, the duration of one more run."""
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
        """Run a candidate plan, more than once if the failure is intermittent; return True if the plan fails."""
        words: list[Word] = []
        while words.count("passes") + words.count("broke") < self.before.tries and words.count("undecided") <= 1:
            words.append(self._outcome_of_run(candidate, _REPEATS).word)
            if words[-1] == "fails":
                self.best = candidate
                self.improved(self._result("smaller"))
                return True
        return False

    def _outcome_of_run(self, candidate: Candidate, repeats: int) -> Outcome:
        """Return the cached outcome of a candidate plan, or run the plan; raise OutOfBudget if time is short.

        ``repeats`` is the number of later runs of the smallest failing plan that must still fit the time budget.
        """
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
        # the first run is not representative: it launched the cluster and started Spark
        return load_s + max(self.overheads_s[1:] or self.overheads_s or [_OVERHEAD_S])

    def _result(self, ending: Ending, after: Repeats = _NONE) -> Minimised:
        document = self.best.document if self.best else self.source.document
        return Minimised(self.source, ending, self.before, after, document, tuple(self.outcomes))
