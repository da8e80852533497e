"""Claims of a KIP as a trial states them, the statements that follow from the evidence, and the trial's verdict.

A claim names the parts (judged runs) that it needs. A part that was not run, did not finish, or whose harness can't be
trusted makes each claim on it inconclusive, with the reason, so a claim's ``judge`` function only gets trustworthy
parts. A claim on a run without blocks also needs its faults to be witnessed and exposed (``faults`` of ``on_part``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aftershock.results.checks.check import Status
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged, Role, Statement, Word, fact, unknown

Parts: TypeAlias = Mapping[str, Part]


@dataclass(frozen=True)
class Claim:
    """Claim to be judged from evidence. ``needs``: the parts that ``judge`` reads; other fields as in ``Statement``."""

    id: str
    claim: str
    bound: str
    needs: tuple[str, ...]
    judge: Callable[[Parts], Judged]
    published: str = "-"
    role: Role = "claim"


class Judge(NamedTuple):
    """Parts that a claim needs, and the function that judges the claim from these parts."""

    needs: tuple[str, ...]
    judge: Callable[[Parts], Judged]


def on_part(name: str, judge: Callable[..., Judged], *arguments: object, faults: Sequence[str] = ()) -> Judge:
    """Return a judge of one part: ``judge(part, *arguments)`` if each fault was injected, witnessed and exposed."""

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
    """Return a judge of several parts: ``judge([part, ...], *arguments)``, with the parts in the order of ``names``."""
    return Judge((*names,), lambda parts: judge([parts[name] for name in names], *arguments))


def claim(claim_id: str, text: str, bound: str, judge: Judge, published: str = "-") -> Claim:
    return Claim(claim_id, text, bound, *judge, published)


def control(claim_id: str, text: str, bound: str, judge: Judge, published: str = "-") -> Claim:
    return Claim(claim_id, text, bound, *judge, published, "control")


def report_only(claim_id: str, text: str, judge: Judge, published: str = "-", bound: str = "") -> Claim:
    return Claim(claim_id, text, bound, *judge, published, "report")


def state_claims(claims: Sequence[Claim], parts: Parts, left_out: Mapping[str, str]) -> tuple[Statement, ...]:
    """Return a statement per claim, in order. ``left_out`` maps each part that was not run to the reason."""
    statements = []
    for claim in claims:
        missing = [name for name in claim.needs if name not in parts]
        if missing:
            doubt: str | None = f"not run: {left_out.get(missing[0], 'its part is missing')}"
        else:
            doubt = next((doubt for name in claim.needs if (doubt := parts[name].doubt())), None)
        result = claim.judge(parts) if doubt is None else Judged(unknown(), "inconclusive", doubt)
        texts = (claim.id, claim.claim, claim.published, claim.bound)
        statements.append(Statement(*texts, result.ours, result.word, result.why, claim.role))
    return tuple(statements)


def integrity(part: Part, rules: Collection[str]) -> Judged:
    """Judge integrity checks: contradicted if a check failed, inconclusive if one is undecided or none exists."""
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
    """Return the verdict by the first rule that applies; the reason names the deciding statement.

    1. contradicted, if a claim is contradicted;
    2. inconclusive, if a control is not confirmed: the measure shows an effect where none exists, so it can't be
       trusted;
    3. inconclusive, if a claim is inconclusive, or there are no claims;
    4. not seen, if a claim is not seen;
    5. confirmed.

    Statements of role ``report`` never decide.
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
    """Return the exit code of several trials: 1 if one is contradicted, else 2 unless all are confirmed."""
    codes = {EXIT_CODES[word] for word in words}
    return 1 if 1 in codes else max(codes, default=2)
