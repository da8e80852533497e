"""The verdict of a whole trial, from its statements.

Rules, the first that applies:

1. contradicted, if a claim is;
2. inconclusive, if a control is not confirmed: then the measure sees what isn't there, and nothing else counts;
3. inconclusive, if a claim is, or there are none;
4. not seen, if a claim is;
5. confirmed.

What is only reported never decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aftershock.results.trials.statement import Statement, Word

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
