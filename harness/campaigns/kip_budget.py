"""Selection of a KIP trial's missing runs within a time budget.

A part of a trial is one run of a plan, always with the registered number of blocks (repetitions of the plan's faults):
a shorter run decides nothing. A budget selects claims, with all parts that a claim, its controls and its assays need:
the headline of each KIP first, and then the claims that need the least time each. Stored runs cost nothing, so a trial
continues where an earlier budget ended.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from aftershock.harness.campaigns.kip_trials import Trial
from aftershock.harness.campaigns.store import Planned
from aftershock.results.studies.statement import DECIDING, UNITS_MIN
from aftershock.results.studies.trials.claim import Claim, requirements


@dataclass(frozen=True)
class Allotted:
    """Trial parts that fit a time budget, and the claims that these parts, with stored runs, can decide.

    ``left_out`` maps each omitted trial part to the reason. ``open`` holds the claims that do not fit, with the time
    that each needs; ``undecidable`` the claims that the trial's design gives too few units.
    """

    parts: tuple[Planned, ...]
    left_out: Mapping[Planned, str]
    takes_s: float
    decides: Sequence[tuple[int, str]]
    open: Sequence[tuple[int, str, float]]
    undecidable: Sequence[tuple[int, str]]

    def forecast(self) -> list[str]:
        """Return lines, one for each KIP, that say beforehand which claims can be decided."""
        needs = [(kip, f"{claim} ({_minutes(needs_s)})") for kip, claim, needs_s in self.open]
        return [
            *(f"can decide {claims}" for claims in _by_kip(self.decides)),
            *(f"not in this budget: {claims}" for claims in _by_kip(needs)),
            *(
                f"undecided by design, fewer than {UNITS_MIN} independent units: {claims}"
                for claims in _by_kip(self.undecidable)
            ),
        ]


def _by_kip(claims: Iterable[tuple[int, str]]) -> list[str]:
    by_kip: dict[int, list[str]] = {}
    for kip, claim in claims:
        by_kip.setdefault(kip, []).append(claim)
    return [f"KIP-{kip}: {', '.join(names)}" for kip, names in by_kip.items()]


def plan_within_budget(trials: Sequence[Trial], budget_s: float | None, stored: Collection[Planned] = ()) -> Allotted:
    """Select the parts of the trials that fit ``budget_s``, if given; parts in ``stored`` have their runs already."""
    queues, later, production = (list[list[tuple[Trial, Claim]]]() for _ in range(3))
    for trial in trials:
        worded = [claim for claim in trial.claims if claim.rule and claim.role in DECIDING[:-1]]
        queues.append([(trial, claim) for claim in sorted(worded, key=lambda claim: not claim.headline)])
        later.append([(trial, claim) for claim in trial.claims if claim.role != "production"])
        production.append([(trial, claim) for claim in trial.claims if claim.role == "production"])
    selected, takes_s = list[Planned](), 0.0
    decides, undecidable = list[tuple[int, str]](), list[tuple[int, str]]()
    left = list[tuple[int, str, float]]()

    def missing(trial: Trial, claim: Claim) -> list[Planned]:
        names = {name for other in requirements(claim, trial.claims) for name in other.needs}
        return [part for part in trial.parts if part.name in names and part not in (*selected, *stored)]

    def turn(entry: tuple[Trial, Claim]) -> tuple[bool, float]:
        """Order headlines by the time of their missing parts, other claims by that time per claim that it decides."""
        trial, claim = entry
        parts = missing(trial, claim)
        names = {part.name for part in parts}
        of_trial = [other for of, other in waiting if of is trial]
        decided = sum({part.name for part in missing(trial, other)} <= names for other in of_trial)
        return not claim.headline, sum(part.takes_s for part in parts) / (1 if claim.headline else decided)

    # Claims that the design can't decide, and then figures and lone controls, get what the decidable claims leave.
    # The headlines under Kafka's default settings come last.
    for first, entries in ((True, queues), (False, later), (True, production)):
        waiting = [entry for group in zip_longest(*entries) for entry in group if entry is not None]
        while waiting:
            trial, claim = entry = min(waiting, key=turn) if first else waiting[0]
            waiting.remove(entry)
            too_few = any(other.rule and other.n < UNITS_MIN for other in requirements(claim, trial.claims))
            if first and too_few:
                undecidable.append((trial.kip, claim.id))
                continue
            parts = missing(trial, claim)
            needs_s = sum(part.takes_s for part in parts)
            fits = budget_s is None or takes_s + needs_s <= budget_s
            if first:
                if fits:
                    decides.append((trial.kip, claim.id))
                else:
                    left.append((trial.kip, claim.id, needs_s))
            if fits:
                selected += parts
                takes_s += needs_s
    every = [part for trial in trials for part in trial.parts]
    left_out = {
        part: f"budget {_minutes(budget_s or 0)}" for part in every if part not in selected and part not in stored
    }
    return Allotted(tuple(selected), left_out, takes_s, decides, left, undecidable)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} min"
