"""A KIP's claims as a trial asks them, and the statements that they become once the parts are judged.

Rules. A claim names the parts that it reads. A part that was not run, did not finish, or whose harness is not to be
trusted leaves every claim on it inconclusive, with the reason; so a claim's own code sees sound parts alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Judged, Role, Statement, unknown

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
