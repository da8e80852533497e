"""A KIP's claims as a trial asks them, and the statements that they become once the parts are judged.

Rules. A claim names the parts that it reads. A part that was not run, did not finish, or whose harness is not to be
trusted leaves every claim on it inconclusive, with the reason; so a claim's own code sees sound parts alone.

Whether the clients' promises were kept: what a trial takes from the run's own integrity checks.

A claim on a run without blocks is as good as its faults: one that was not witnessed or met leaves it open.

The verdict of a whole trial, from its statements.

Rules, the first that applies:

1. contradicted, if a claim is;
2. inconclusive, if a control is not confirmed: then the measure sees what isn't there, and nothing else counts;
3. inconclusive, if a claim is, or there are none;
4. not seen, if a claim is;
5. confirmed.

What is only reported never decides.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aftershock.results.checks.check import Status
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged, Role, Statement, Word, seen, unknown

Parts: TypeAlias = Mapping[str, Part]


@dataclass(frozen=True)
class Claim:
    """One question to the evidence. ``needs``: the parts that ``judge`` reads; see ``Statement`` for the words."""

    id: str
    claim: str
    published: str
    bound: str
    role: Role
    needs: tuple[str, ...]
    judge: Callable[[Parts], Judged]


def stated(claims: Sequence[Claim], parts: Parts, left_out: Mapping[str, str]) -> tuple[Statement, ...]:
    """A statement a claim, in order. ``left_out``: why a part that isn't among ``parts`` was not run."""
    return tuple(_stated(claim, parts, left_out) for claim in claims)


def _stated(claim: Claim, parts: Parts, left_out: Mapping[str, str]) -> Statement:
    doubt = _doubt(claim, parts, left_out)
    found = claim.judge(parts) if doubt is None else Judged(unknown(), "inconclusive", doubt)
    said = (claim.id, claim.claim, claim.published, claim.bound)
    return Statement(*said, found.ours, found.word, found.why, claim.role)


def _doubt(claim: Claim, parts: Parts, left_out: Mapping[str, str]) -> str | None:
    missing = [name for name in claim.needs if name not in parts]
    if missing:
        return f"not run: {left_out.get(missing[0], 'its part is missing')}"
    return next((doubt for name in claim.needs if (doubt := parts[name].doubt())), None)


def kept(part: Part, rules: Collection[str]) -> Judged:
    """One that failed contradicts; one that is open, or that there is none, leaves it open."""
    checks = [each for each in part.run.verdict.checks if each.id.removeprefix("integrity/") in rules]
    failed = [each for each in checks if each.status is Status.FAIL]
    decided = bool(checks) and all(each.status is Status.PASS for each in checks)
    why = failed[0].why if failed else f"{len(checks)} checks, of {sum(each.n for each in checks)} observations"
    ours = Estimate(float(len(failed)), None, None, len(checks), "checks failed")
    return seen(False if failed else decided or None, ours, why)


Judge: TypeAlias = Callable[[Parts], Judged]


def proven(judge: Judge, part: str, *faults: str) -> Judge:
    """``judge``, asked only if these faults of a part took hold."""

    def judged(parts: Parts) -> Judged:
        doubt = next((doubt for fault in faults if (doubt := _doubt_proven(parts[part], fault))), None)
        return judge(parts) if doubt is None else Judged(unknown(), "inconclusive", doubt)

    return judged


def _doubt_proven(part: Part, fault: str) -> str | None:
    unproven = part.run.unproven()
    if fault in unproven:
        return f"{fault}: {unproven[fault]}"
    return None if part.phases(fault) else f"{fault} never struck"


EXIT_CODES: dict[Word, int] = {"confirmed": 0, "contradicted": 1, "not seen": 2, "inconclusive": 2}


@dataclass(frozen=True)
class Verdict:
    """The word for a trial, and why."""

    word: Word
    why: str


def verdict(statements: Sequence[Statement]) -> Verdict:
    """By the rules above; the reason names the statement that decided."""
    claims, controls = ([each for each in statements if each.role == role] for role in ("claim", "control"))
    if found := _first(claims, "contradicted"):
        return Verdict("contradicted", f"{found.id}: {found.why}")
    biased = next((each for each in controls if each.word != "confirmed"), None)
    if biased is not None:
        return Verdict("inconclusive", f"the control {biased.id} is {biased.word}: {biased.why}")
    if found := _first(claims, "inconclusive"):
        return Verdict("inconclusive", f"{found.id}: {found.why}")
    if found := _first(claims, "not seen"):
        return Verdict("not seen", f"{found.id}: {found.why}")
    if not claims:
        return Verdict("inconclusive", "nothing was claimed")
    return Verdict("confirmed", f"{_of(claims)} claims hold, and {_of(controls)} controls")


def exit_code(words: Sequence[Word]) -> int:
    """Of several trials: 1 if one is contradicted, else 2 unless all are confirmed."""
    codes = {EXIT_CODES[word] for word in words}
    return 1 if 1 in codes else max(codes, default=2)


def _of(statements: Sequence[Statement]) -> str:
    return f"{len([each for each in statements if each.word == 'confirmed'])} of {len(statements)}"


def _first(statements: Sequence[Statement], word: Word) -> Statement | None:
    return next((each for each in statements if each.word == word), None)
