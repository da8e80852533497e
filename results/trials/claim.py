"""Claims about a KIP, their statements (claims with measured results), and the verdict of the KIP's trial.

A trial measures a KIP in several runs, its parts, and a claim names the parts that the claim needs. A part that was not
run, did not finish, or has failed harness checks makes each claim that needs the part inconclusive, so the ``judge``
function of a claim only gets trustworthy parts. A claim on a run without blocks (repetitions of the plan's faults) is
also inconclusive unless the faults that are passed to ``on_part`` took effect.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from aftershock.results.checks.check import Status
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged, Role, Statement, Word, fact, unknown

Parts: TypeAlias = Mapping[str, Part]


@dataclass(frozen=True)
class Claim:
    """Claim about a KIP, which ``judge`` judges by the trial's runs that ``needs`` names."""

    id: str
    claim: str
    bound: str
    needs: tuple[str, ...]
    judge: Callable[[Parts], Judged]
    published: str = "-"
    role: Role = "claim"


class Judge(NamedTuple):
    """The names of the runs of a trial that a claim needs, and the function that judges the claim by these runs."""

    needs: tuple[str, ...]
    judge: Callable[[Parts], Judged]


def on_part(name: str, judge: Callable[..., Judged], *arguments: object, faults: Sequence[str] = ()) -> Judge:
    """Return a function that judges a claim by one run, inconclusive unless ``faults`` took effect in the run."""

    def judge_if_proven(parts: Parts) -> Judged:
        unproven = parts[name].run.unproven() if faults else {}
        for fault in faults:
            if fault in unproven:
                return Judged(unknown(), "inconclusive", f"{fault}: {unproven[fault]}")
            if not parts[name].phases(fault):
                return Judged(unknown(), "inconclusive", f"{fault} was never injected")
        return judge(parts[name], *arguments)

    return Judge((name,), judge_if_proven)


def on_parts(names: Sequence[str], judge: Callable[..., Judged], *arguments: object) -> Judge:
    """Return a function that judges a claim by several runs, which ``judge`` gets as a list in order of ``names``."""
    return Judge((*names,), lambda parts: judge([parts[name] for name in names], *arguments))


def claim(claim_id: str, bound: str, judge: Judge, published: str = "-") -> Claim:
    return Claim(claim_id, "", bound, *judge, published)


def control(claim_id: str, bound: str, judge: Judge, published: str = "-") -> Claim:
    return Claim(claim_id, "", bound, *judge, published, "control")


def report_only(claim_id: str, judge: Judge, published: str = "-", bound: str = "") -> Claim:
    return Claim(claim_id, "", bound, *judge, published, "report")


def described(texts: Mapping[str, str], *claims: Claim) -> tuple[Claim, ...]:
    """Return claims of a KIP with their sentences, which ``texts`` holds by claim id."""
    return tuple(replace(claim, claim=texts[claim.id]) for claim in claims)


def state_claims(claims: Sequence[Claim], parts: Parts, left_out: Mapping[str, str]) -> tuple[Statement, ...]:
    """Judge the claims; ``left_out`` maps each planned run of the trial that did not take place to the reason."""
    statements = []
    for claim in claims:
        missing = [name for name in claim.needs if name not in parts]
        if missing:
            reason = left_out.get(missing[0], f"the trial has no run of its part {missing[0]}")
            doubt: str | None = f"not run: {reason}"
        else:
            doubt = next((doubt for name in claim.needs if (doubt := parts[name].doubt())), None)
        result = claim.judge(parts) if doubt is None else Judged(unknown(), "inconclusive", doubt)
        texts = (claim.id, claim.claim, claim.published, claim.bound)
        statements.append(Statement(*texts, result.ours, result.word, result.why, claim.role))
    return tuple(statements)


def integrity(part: Part, rules: Collection[str]) -> Judged:
    """Judge integrity checks as contradicted if a check failed, inconclusive if a check is undecided or none exists."""
    checks = [check for check in part.run.verdict.checks if check.id.removeprefix("integrity/") in rules]
    failed = [check for check in checks if check.status is Status.FAIL]
    decided = bool(checks) and all(check.status is Status.PASS for check in checks)
    why = failed[0].why if failed else f"{len(checks)} checks of {sum(check.n for check in checks)} observations"
    ours = Estimate(float(len(failed)), None, None, len(checks), "checks failed")
    return fact(False if failed else decided or None, ours, why)


@dataclass(frozen=True)
class Verdict:
    word: Word
    why: str


def verdict(statements: Sequence[Statement]) -> Verdict:
    """Return the verdict of a trial, with a reason that names the deciding statement.

    The verdict of a trial is contradicted if a claim is contradicted; else inconclusive if a control is not confirmed
    (the measure then shows an effect where none exists), a claim is inconclusive, or there are no claims; else not seen
    if a claim is not seen; else confirmed.

    Statements of role ``report`` have no effect on the verdict of a trial.
    """
    claims, controls = ([entry for entry in statements if entry.role == role] for role in ("claim", "control"))
    biased = next((control for control in controls if control.word != "confirmed"), None)
    words: tuple[Word, ...] = ("contradicted", "inconclusive", "not seen")
    for word in words:
        if word == "inconclusive" and biased is not None:
            return Verdict(word, f"the control {biased.id} is {biased.word}: {biased.why}")
        if decisive := next((claim for claim in claims if claim.word == word), None):
            return Verdict(word, f"{decisive.id}: {decisive.why}")
    if not claims:
        return Verdict("inconclusive", "the trial has no claims")
    counts = [f"{len(claims)} of {len(claims)} claims", f"{len(controls)} of {len(controls)} controls"]
    return Verdict("confirmed", f"{' and '.join(counts)} are confirmed")


EXIT_CODES: dict[Word, int] = {"confirmed": 0, "contradicted": 1, "not seen": 2, "inconclusive": 2}


def exit_code(words: Sequence[Word]) -> int:
    """Return the exit code for several trials, 1 if a trial is contradicted, 0 if all trials are confirmed, else 2."""
    codes = {EXIT_CODES[word] for word in words}
    return 1 if 1 in codes else max(codes, default=2)
