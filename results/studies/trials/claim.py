"""Claims about a KIP as registered before the run, their statements (claims with measured results), and the verdict.

``kip951.toml`` and its siblings hold the registration of a trial: its version, and of each claim the text, the
published figure, the estimand, the unit and number of observations, the decision rule, the smallest effect of interest
and the pilot from which the power is computed, and the control and assay that the claim depends on. The Python module
beside it measures each claim.

A trial measures a KIP in several runs, its parts, and a claim names the parts that the claim needs. A part that was not
run, did not finish, or has failed harness checks leaves each claim that needs it undecided, so the ``measure`` function
of a claim only gets trustworthy parts. A claim on a run without blocks (repetitions of the plan's faults) is also
undecided unless the faults that are passed to ``on_part`` took effect. A claim is undecided if its control is not
confirmed (the measure then shows an effect where none exists), or its assay is not (no effect was visible where one
must appear).
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args

from aftershock.results.model.check import Status
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import (
    DECIDING,
    UNITS_MIN,
    Estimate,
    Judged,
    Measured,
    Role,
    Rule,
    Statement,
    Word,
    power_of,
    sd_of_pilot,
    unknown,
)

Parts: TypeAlias = Mapping[str, Part]


class Measure(NamedTuple):
    """The names of the runs of a trial that a claim needs, and the function that measures the claim by these runs.

    With ``partial`` the function gets the runs that have taken place, and leaves out those that can't be trusted: the
    claim has a figure, and no word, before all of its runs have taken place.
    """

    needs: tuple[str, ...]
    measure: Callable[[Parts], Measured]
    partial: bool = False


@dataclass(frozen=True)
class Claim:
    """Claim about a KIP, which ``measure`` measures by the trial's runs that ``needs`` names.

    ``n`` is the fixed number of observations, in ``unit``. ``control`` and ``assay`` are ids of claims that must be
    confirmed. ``pilot`` is as for `sd_of_pilot`, ``predicted`` the figure of a simulation. A claim without a rule is a
    figure that is only shown. ``statistic`` says of a headline whether the KIP's text has the same statistic, and if
    not, how both differ. ``since`` is the version of the trial in which the claim was registered as it is: runs of
    older versions do not decide it. ``like`` is the id of the claim that this one repeats for other clients, brokers or
    changes. ``arms`` are the arms that the claim is about, of all those in its runs if there are none.
    """

    id: str
    claim: str
    needs: tuple[str, ...]
    measure: Callable[[Parts], Measured]
    role: Role = "claim"
    rule: Rule | None = None
    unit: str = "blocks"
    n: int = UNITS_MIN
    published: str = "-"
    predicted: str = ""
    estimand: str = ""
    smallest_effect: float | None = None
    pilot: tuple[float, ...] | None = None
    pilot_source: str = ""
    control: tuple[str, ...] = ()
    assay: tuple[str, ...] = ()
    statistic: str = ""
    since: int = 1
    like: str = ""
    arms: tuple[str, ...] = ()
    stored: bool = False
    """True if its evidence is kept in the repository, as that of the headline is."""
    headline: bool = False
    partial: bool = False

    @property
    def power(self) -> float | None:
        """Probability that the registered ``n`` confirms the smallest effect of interest; None without a pilot."""
        if self.rule is None or self.smallest_effect is None:
            return None
        if self.pilot is None and not (self.rule.kind == "fact" or self.rule.exact):
            return None
        sd = sd_of_pilot(self.pilot, self.rule) if self.pilot else 0.0
        return self.rule.power(self.n, self.smallest_effect, sd)


class Registration(NamedTuple):
    """Registered claims of a trial; evidence of a newer version, or of one before ``oldest``, is refused."""

    version: int
    claims: tuple[Claim, ...]
    oldest: int | None = None


def register(name: str, measures: Mapping[str, Measure]) -> Registration:
    """Read the registration ``name.toml``; ``measures`` maps the id of each registered claim to its measurement.

    A claim with ``as`` has the fields of the claim that it names, except for those of its own. ``oldest`` of the
    document is the version since which claims without ``since`` are registered as they are, by default ``version``.
    """
    document = tomllib.loads((resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    claims, source = document["claims"], document.get("pilot_source", "")

    def entry_of(claim_id: str) -> dict[str, Any]:
        entry: dict[str, Any] = claims.get(claim_id, {})
        return (entry_of(entry["as"]) if "as" in entry else {}) | entry

    if claims.keys() != measures.keys():
        raise ValueError(f"{name}: registered and measured claims differ: {sorted(claims.keys() ^ measures.keys())}")
    return Registration(
        document["version"],
        tuple(
            _claim(
                claim_id,
                {"pilot_source": source} | entry_of(claim_id),
                measures[claim_id],
                document["headline"],
            )
            for claim_id in claims
        ),
        document.get("oldest", document["version"]),
    )


def _claim(claim_id: str, entry: dict[str, Any], measure: Measure, headline: str) -> Claim:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    fields["like"] = fields.pop("as", "")
    if rule := fields.pop("rule", None):
        (kind,) = rule.keys() - {"no_effect", "ratio", "exact"}
        bounds = rule[kind] if isinstance(rule[kind], list) else () if kind in ("fact", "violated") else [rule[kind]]
        flags = {name: bool(rule.get(name)) for name in ("ratio", "exact")}
        fields["rule"] = Rule(kind, tuple(map(float, bounds)), rule.get("no_effect"), **flags)
    else:
        fields.setdefault("role", "figure")
    return Claim(claim_id, **measure._asdict(), headline=claim_id == headline, **fields)


def on_part(name: str, measure: Callable[..., Measured], *arguments: object, faults: Sequence[str] = ()) -> Measure:
    """Return a function that measures a claim by one run, undecided unless ``faults`` took effect in the run."""
    return on_parts((name,), lambda parts: measure(parts[0], *arguments), faults=faults)


def on_parts(
    names: Sequence[str], measure: Callable[..., Measured], *arguments: object, faults: Sequence[str] = ()
) -> Measure:
    """Return a function that measures a claim by several runs, which ``measure`` gets as a list in order of names."""

    def measure_if_proven(parts: Parts) -> Measured:
        for part in (parts[name] for name in names):
            unproven = part.run.unproven() if faults else {}
            for fault in faults:
                if fault in unproven:
                    return Measured(unknown(), doubt=f"{fault}: {unproven[fault]}")
                if not part.phases(fault):
                    return Measured(unknown(), doubt=f"{fault} was never injected")
        return measure([parts[name] for name in names], *arguments)

    return Measure((*names,), measure_if_proven)


def requirements(claim: Claim, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the claim with its controls and assays.

    A control's own assay decides the control's word only: a claim of superiority shows by itself that effects are seen.
    """
    return (claim, *(other for other in claims if other.id in (*claim.control, *claim.assay)))


def state_claims(
    claims: Sequence[Claim], parts: Parts, left_out: Mapping[str, str], versions: Mapping[str, int] | None = None
) -> tuple[Statement, ...]:
    """Judge the claims; ``left_out`` maps each planned run of the trial that did not take place to the reason.

    ``versions`` has the version of the trial by which each run was made; without it, all runs are of the newest.
    """
    judged: dict[str, Judged] = {}
    for claim in claims:
        missing = [name for name in claim.needs if name not in parts]
        doubt: str | None = None
        if claim.partial and len(missing) < len(claim.needs):
            pass  # the measurement leaves out the runs that can't be trusted
        elif missing:
            reason = left_out.get(missing[0], f"the trial has no run of its part {missing[0]}")
            doubt = f"not run: {reason}"
        elif older := [name for name in claim.needs if versions and versions[name] < claim.since]:
            doubt = f"not run: {older[0]} ran before version {claim.since} of the trial registered the claim as it is"
        else:
            doubt = next((doubt for name in claim.needs if (doubt := parts[name].doubt())), None)
        measured = claim.measure(parts) if doubt is None else Measured(unknown(), doubt=doubt)
        if claim.rule is None:
            judged[claim.id] = Judged(measured.ours, "undecided", measured.doubt or measured.why)
        else:
            judged[claim.id] = claim.rule.decide(measured, claim.unit, claim.n, claim.smallest_effect)
    words = dict[str, Judged]()
    for claim in claims:
        result = judged[claim.id]
        for other in requirements(claim, claims)[1:]:
            if judged[other.id].word != "confirmed" and result.word != "undecided":
                why = f"its {other.role} {other.id} is {judged[other.id].word} ({judged[other.id].why}); {result.why}"
                result = Judged(result.ours, "undecided", why)
        words[claim.id] = result
    clients = {claim.id: _clients_of(claim, parts) for claim in claims}
    of_others = {
        claim.like or claim.id
        for claim in claims
        if words[claim.id].word == "confirmed" and clients[claim.id] - {"reference"}
    }
    statements = []
    for claim in claims:
        result = words[claim.id]
        statements.append(
            Statement(
                claim.id,
                claim.claim,
                claim.published,
                str(claim.rule or ""),
                result.ours,
                result.word,
                result.why,
                claim.role,
                claim.headline,
                claim.unit,
                claim.n,
                power_of(claim.rule, result.ours, claim.smallest_effect) if claim.rule else None,
                claim.predicted,
                claim.smallest_effect,
                "; ".join(dict.fromkeys(parts[name].client_settings for name in claim.needs if name in parts)),
                claim.statistic,
                ours_alone=claim.role in DECIDING
                and clients[claim.id] == {"reference"}
                and (claim.like or claim.id) not in of_others,
            )
        )
    return tuple(statements)


def _clients_of(claim: Claim, parts: Parts) -> set[str]:
    """Return the kinds of client (such as ``java``) that a claim is about."""
    return {
        client
        for name in claim.needs
        if name in parts
        for arm, client in parts[name].clients_under_trial
        if not claim.arms or arm in claim.arms
    }


def integrity(parts: Sequence[Part], rules: Collection[str], faults: Collection[str]) -> Measured:
    """Count the records that break integrity rules; the units are the injections of ``faults`` that took effect.

    A loss counts even if the configuration permits it, because the claim is about records, not about permissions.
    """
    by_part = [[c for c in part.run.verdict.checks if c.id.removeprefix("integrity/") in rules] for part in parts]
    checks = [check for of_part in by_part for check in of_part]
    broken = [check for check in checks if check.observed]
    decided = bool(broken) or (all(by_part) and all(check.status is Status.PASS for check in checks))
    why = broken[0].why if broken else f"{len(checks)} checks of {sum(check.n for check in checks)} observations"
    steps = [(part, step) for part in parts for step in part.run.timeline["steps"] if step.get("entry") in faults]
    n = sum(step["id"] not in part.run.unproven() for part, step in steps)
    count = int(sum(check.observed or 0 for check in broken))
    return Measured(Estimate(float(count), None, None, n, "records"), why, count if decided else None)


_KINDS: Mapping[str, tuple[Role, ...]] = {
    "claims": ("claim", "production"),
    "mechanisms": ("mechanism",),
    "controls": ("control", "assay"),
}


class Worded(Protocol):
    """A result of a claim: a statement, or a row of a published table."""

    @property
    def role(self) -> Role: ...

    @property
    def word(self) -> str: ...


def tally(statements: Sequence[Worded]) -> str:
    """Return the numbers of claims, mechanisms and controls by word; figures are not counted.

    For example ``claims: 8 confirmed, 1 excluded; mechanisms: 3 confirmed; controls: 2 confirmed``.
    """
    kinds = []
    for kind, roles in _KINDS.items():
        words = Counter(entry.word for entry in statements if entry.role in roles)
        if words:
            kinds.append(f"{kind}: {', '.join(f'{words[word]} {word}' for word in get_args(Word) if words[word])}")
    return "; ".join(kinds)


def any_confirmed(statements: Sequence[Statement]) -> bool:
    return any(entry.word == "confirmed" and entry.role in DECIDING for entry in statements)


@dataclass(frozen=True)
class Verdict:
    word: Word
    why: str


def verdict(statements: Sequence[Statement]) -> Verdict:
    """Return the verdict of a trial: the first of contradicted, undecided and excluded that a claim is, else confirmed.

    It is undecided without claims, or if a control is not confirmed. The reason names the first deciding statement.
    Figures have no effect on the verdict.
    """
    counts = tally(statements)
    decisive = [entry for entry in statements if entry.role in DECIDING]
    first = {entry.word: entry for entry in reversed(decisive)}
    if not decisive:
        return Verdict("undecided", "the trial has no claims")
    for word in ("contradicted", "undecided"):
        if entry := first.get(word):
            return Verdict(entry.word, f"{counts}; {entry.id}: {entry.why}")
    if biased := next((entry for entry in statements if entry.role == "control" and entry.word != "confirmed"), None):
        return Verdict("undecided", f"the control {biased.id}: {biased.why}")
    if entry := first.get("excluded"):
        return Verdict(entry.word, f"{counts}; {entry.id}: {entry.why}")
    return Verdict("confirmed", counts)


EXIT_CODES: dict[Word, int] = {"confirmed": 0, "contradicted": 1, "excluded": 2, "undecided": 2}


def exit_code(words: Sequence[Word]) -> int:
    """Return the exit code for several trials, 1 if a trial is contradicted, 0 if all trials are confirmed, else 2."""
    codes = {EXIT_CODES[word] for word in words}
    return 1 if 1 in codes else max(codes, default=2)
