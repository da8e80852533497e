"""Trials of KIPs: their runs, their results as terminal text, JSON and HTML page, and their evidence.

The headline claims (under both profiles) and the claims that they depend on are judged from the evidence in the
repository; all other claims say that their evidence is not stored.
"""

import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.evidence import Observed, replacement, size_of, write_run
from aftershock.harness.campaigns.kip_budget import Allotted
from aftershock.harness.campaigns.kip_trials import Trial
from aftershock.harness.campaigns.store import Perform, Planned, Record
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.report.page import filled
from aftershock.results.report.several import link
from aftershock.results.studies import statement
from aftershock.results.studies.part import Part, clients_under_trial, mean, ratio
from aftershock.results.studies.statement import DECIDING, Estimate, Measured, Plot, Statement, Word, unknown
from aftershock.results.studies.trials.claim import Claim, Parts, Verdict, state_claims, verdict
from aftershock.results.studies.trials.mechanism import mechanism

BYTES_MAX = 4_000_000


def home_of(trial: Trial, out: Path) -> Path:
    return out / "kips" / trial.name.removeprefix("kip-")


def record_of(trial: Trial, home: Path, seed: int | None = None) -> Record:
    """Return the record of a trial's runs; raise EvidenceError for one of another version of the trial."""
    return store.read(home, trial.name, trial.registration.version, seed, trial.registration.oldest)


def _deciding(trial: Trial, record: Record) -> Record:
    """Return the record without runs that are older than the registration of a claim that needs them."""
    since = {part.name: max((c.since for c in trial.claims if part.name in c.needs), default=1) for part in trial.parts}
    runs = {name: run for name, run in record.runs.items() if run.version >= since.get(name, 1)}
    return replace(record, runs=runs)


def stored_parts(trial: Trial, home: Path, seed: int) -> list[Planned]:
    """Return the parts of a trial that need not run again."""
    record = _deciding(trial, record_of(trial, home, seed))
    return [part for part in trial.parts if record.trusted(part, home)]


def run_missing(
    trial: Trial, allotted: Allotted, home: Path, seed: int, perform: Perform, log: Callable[[str], None]
) -> None:
    """Make the selected runs of a trial that are missing; ``campaign.json`` says why others are left out."""
    left_out = {part.name: allotted.left_out[part] for part in trial.parts if part in allotted.left_out}
    record = replace(_deciding(trial, record_of(trial, home, seed)), left_out=left_out)
    store.run_missing(record, home, [part for part in trial.parts if part in allotted.parts], perform, log)


@dataclass(frozen=True)
class TrialResult:
    kip: int
    title: str
    version: int
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]
    measured: Collection[str] = ()
    """Ids of the claims of which all runs took place, and hold their evidence; of a partial claim one run."""
    since: Mapping[str, int] = field(default_factory=dict)
    """First version of the registration with which runs decide a claim, by the claim's id."""
    whole: bool = True
    """False if some runs are reduced, so that charts can't be drawn from them."""

    @property
    def headline(self) -> Statement:
        return next((claim for claim in self.statements if claim.headline), self.statements[0])

    @property
    def about(self) -> tuple[str, ...]:
        """Host, Kafka version and Aftershock version of the trial's runs, as one line for each distinct combination."""
        return tuple(dict.fromkeys(_environment(part.run.run) for part in self.parts.values()))


def read_result(trial: Trial, home: Path) -> TrialResult:
    """Read the judged runs of a trial below ``home``, and judge the trial's claims.

    A run whose plan has changed since is ignored. The runs of a sabotaged trial are judged as if they were honest: by
    the cluster settings of the trial's own plans. Reduced evidence decides by the stored claims alone.
    Raises EvidenceError for a damaged run, or one of another version.
    """
    record = record_of(trial, home)
    runs = {part: finished for part in trial.parts if (finished := record.finished(part, home))}
    parts = {}
    for part, finished in runs.items():
        run = read_judged_run(home / finished)
        if trial.sabotaged and part.off:
            cluster = {**run.timeline["cluster"], **honest_settings(part)}
            run = replace(run, timeline={**run.timeline, "cluster": cluster})
        parts[part.name] = Part(part.name, run)
    left_out = {}
    for part in trial.parts:
        if part not in runs:
            stale = "the plan or seed of this part of the trial has changed since the part ran"
            default = stale if record.stale(part) else "not requested yet" if record.claims is None else "not stored"
            left_out[part.name] = record.left_out.get(part.name) or default
    held = {name: record.runs[name].claims for name in parts}
    missing = {
        claim.id
        for claim in trial.claims
        if any((ids := held.get(name)) is not None and claim.id not in ids for name in claim.needs)
    }
    if record.claims is not None:
        missing |= {claim.id for claim in trial.claims} - record.claims.keys()
    claims = [replace(claim, needs=(), measure=_not_stored) if claim.id in missing else claim for claim in trial.claims]
    versions = {name: record.runs[name].version for name in parts}
    statements = state_claims(claims, parts, left_out, versions)
    measured = {
        claim.id
        for claim in claims
        if claim.needs and parts.keys() >= {*claim.needs} and min(versions[name] for name in claim.needs) >= claim.since
    }
    proven = {entry.id for entry in statements if entry.word == "confirmed" and not entry.ours_alone}
    statements = tuple(
        replace(entry, ours_alone=_clients_of(trial, claim) == {"reference"} and not proven & {claim.id, claim.like})
        if entry.role in DECIDING and claim.id not in measured
        else entry
        for claim, entry in zip(trial.claims, statements, strict=True)
    )
    title = f"{trial.title} (sabotage: the KIP is off)" if trial.sabotaged else trial.title
    version = trial.registration.version
    stored = [entry for entry in statements if entry.id not in missing]
    found = verdict(stored)
    if missing:
        found = replace(found, why=f"{found.why}; {len(statements) - len(stored)} other claims are not stored")
    measured |= {claim.id for claim in partial_claims(claims, parts)}
    whole = all(ids is None for ids in held.values())
    since = {claim.id: max(claim.since, trial.registration.oldest or version) for claim in trial.claims}
    return TrialResult(trial.kip, title, version, found, statements, parts, left_out, measured, since, whole)


def _clients_of(trial: Trial, claim: Claim) -> set[str]:
    """Return the kinds of client that a claim is about, by the plans of its runs."""
    kinds = set()
    for part in trial.parts:
        if part.name in claim.needs:
            checked = load_plan(find(part.plan), part.changes)
            timeline = compile_plan(checked.plan, store.SEED, checked.source, checked.slo_positions)
            arms = clients_under_trial(timeline.workloads)
            kinds |= {client for arm, client in arms if not claim.arms or arm in claim.arms}
    return kinds


def honest_settings(part: Planned) -> dict[str, Any]:
    """Return the settings of brokers that a part's plan has without sabotage; nothing for a plan without a cluster."""
    honest = load_plan(find(part.plan), part.changes[: -len(part.off)]).plan
    cluster = dump(honest).get("cluster", {})
    return {name: cluster[name] for name in ("config", "brokers") if cluster.get(name)}


def _not_stored(_: Parts) -> Measured:
    return Measured(unknown(), doubt="its evidence is not stored; run the trial")


def as_text(entry: Statement) -> str:
    return f"{entry.word}: {statement.figure(entry.ours)}; {entry.why}"


def _environment(run: Mapping[str, Any]) -> str:
    host, profile = run.get("host") or {}, run.get("profile") or {}
    versions = {"kafka": "unknown", **(run.get("versions") or {})}
    content = [f"Kafka {versions['kafka']}", f"profile {profile.get('name', 'unknown')}"]
    host_text = [f"{host.get('cores', '?')} cores", f"{host.get('memory_bytes', 0) / 2**30:.0f} GiB"]
    return ", ".join([*content, *host_text, str(host.get("kernel", "unknown")), f"Aftershock {run.get('git')}"])


_HEADERS: dict[Word, str] = {
    "confirmed": "pass",
    "contradicted": "fail",
    "excluded": "inconclusive",
    "undecided": "inconclusive",
}


def write(trial: Trial, result: TrialResult, home: Path) -> Path:
    runs = [(name, part.run.run_id, link(part.home / "report.html", home)) for name, part in result.parts.items()]
    page = filled(
        "trial.html",
        kip=result.kip,
        title=result.title,
        verdict=result.verdict,
        status=_HEADERS[result.verdict.word],
        statements=result.statements,
        plots=(mechanism(result.kip), *plots_of(trial, result)),
        runs=runs,
        left_out=list(result.left_out.items()),
        about=result.about,
        figure=statement.figure,
        word=statement.word,
    )
    return write_whole(home / f"kip-{result.kip}.html", page)


def plots_of(trial: Trial, result: TrialResult) -> tuple[Plot, ...]:
    return trial.plots({name: part for name, part in result.parts.items() if part.doubt() is None})


_WIDTH = 80
_INDENT = 14


def text(result: TrialResult) -> str:
    lines = _wrapped(f"KIP-{result.kip} {result.title}: {result.verdict.word.upper()}", "")
    lines += _wrapped(result.verdict.why, "  ")
    for claim in result.statements:
        lines += ["", *_text_row(claim.role, f"{claim.id}{' (headline)' if claim.headline else ''}: {claim.claim}")]
        if claim.clients:
            lines += _text_row("clients", claim.clients)
        if claim.published:
            lines += _text_row("published", claim.published)
        if claim.statistic:
            lines += _text_row("statistic", claim.statistic)
        lines += _text_row("measured", statement.figure(claim.ours))
        if claim.bound:
            lines += [*_text_row("rule", claim.design), *_text_row("result", claim.word)]
        lines += _text_row("why", claim.why)
    rows = {
        "not run": [f"{name}: {why}" for name, why in result.left_out.items()],
        "measured on": result.about,
        "runs": [f"{name}: {part.run.run_id}" for name, part in result.parts.items()],
    }
    lines.append("")
    for name, contents in rows.items():
        for number, content in enumerate(contents):
            lines += _text_row("" if number else name, content)
    return "\n".join(lines)


def document(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the JSON document that ``aftershock kip --json`` prints."""
    trials = [
        {
            "kip": result.kip,
            "version": result.version,
            "title": result.title,
            "verdict": result.verdict.word,
            "why": result.verdict.why,
            "statements": [asdict(statement) for statement in result.statements],
            "runs": {name: part.run.run_id for name, part in result.parts.items()},
            "not_run": dict(result.left_out),
            "measured_on": list(result.about),
        }
        for result in results
    ]
    return {"schema_version": 2, "trials": trials}


def _text_row(name: str, content: str) -> list[str]:
    return _wrapped(content, f"  {name:<{_INDENT - 2}}")


def _wrapped(content: str, prefix: str) -> list[str]:
    later = " " * (_INDENT if prefix.strip() else len(prefix))
    return textwrap.wrap(content, _WIDTH, initial_indent=prefix, subsequent_indent=later, break_on_hyphens=False)


class Launch(NamedTuple):
    """The headline, measured by the runs of one launch; ``day`` is the date of its first run."""

    day: str
    ours: Estimate


def earlier_launches(trial: Trial, record: Record, target: Path) -> tuple[Mapping[str, str], ...]:
    """Return the launches of the headline in the folder ``target`` that ran the plans of ``record`` before its runs."""
    oldest = max(headline_of(trial).since, trial.registration.oldest or record.version)
    if not (target / store.NAME).is_file() or read_object(target / store.NAME)["version"] < oldest:
        return ()
    before, needs = record_of(trial, target), headline_of(trial).needs
    same = before.seed == record.seed and all(before.runs[name].digest == record.runs[name].digest for name in needs)
    last = {name: before.runs[name].run for name in needs}
    now = {name: record.runs[name].run for name in needs}
    return (*before.launches, *([] if last == now else [last])) if same else ()


def add_launch(trial: Trial, home: Path, target: Path, bytes_max: int = BYTES_MAX) -> int:
    """Add the headline's runs in ``home`` to the evidence in ``target`` as a further launch; return its size in bytes.

    Raises AftershockError if a run is missing, is stored already or can't be trusted, or if the evidence is of other
    plans.
    """
    record, before, headline = record_of(trial, home), record_of(trial, target), headline_of(trial)
    found = read_result(trial, home).parts
    parts = {name: Observed(name, found[name].run) for name in headline.needs if name in found}
    (entry,) = state_claims([replace(headline, control=(), assay=())], parts, {})
    if entry.ours.value is None:
        raise AftershockError(f"{home}: no further launch of the headline of KIP-{trial.kip}: {entry.why}")
    if any(name not in before.runs or before.runs[name].digest != record.runs[name].digest for name in parts):
        raise AftershockError(f"{target}: the stored runs of {', '.join(parts)} are of other plans or another seed")
    if any((target / part.home.name).exists() for part in parts.values()):
        raise AftershockError(f"{target}: this launch is stored already; run the trial again with another --out")
    with replacement(target, bytes_max) as draft:
        shutil.copytree(target, draft, dirs_exist_ok=True)
        for part in parts.values():
            write_run(part, draft / part.home.name)
        runs = {name: part.home.name for name, part in parts.items()}
        store.write(draft, replace(before, launches=(*before.launches, runs)))
    return size_of(target)


def launches(trial: Trial, home: Path) -> list[Launch]:
    """Return the launches of the headline whose evidence is stored, in the order of their days."""
    record, headline = record_of(trial, home), headline_of(trial)
    latest = {name: record.runs[name].run for name in headline.needs}
    alone, measured = replace(headline, control=(), assay=()), list[Launch]()
    for runs in (*record.launches, latest):
        parts = {name: Part(name, read_judged_run(home / run)) for name, run in runs.items()}
        (entry,) = state_claims([alone], parts, {})
        if entry.ours.value is not None:
            measured.append(Launch(min(part.run.run["started_at"] for part in parts.values())[:10], entry.ours))
    return sorted(measured, key=lambda launch: launch.day)


def over_launches(trial: Trial, found: Sequence[Launch]) -> Estimate:
    """Return the headline's figure with the launches as units: violations are added, other figures are averaged."""
    values = [launch.ours.value or 0.0 for launch in found]
    rule, unit = headline_of(trial).rule, found[0].ours.unit
    if rule and rule.kind == "fact":
        hits, n = (sum(launch.ours.hits or 0 for launch in found), sum(launch.ours.n for launch in found))
        return Estimate(sum(values), None, None, n, unit, hits=hits)
    return ratio(np.array(values), np.ones(len(values))) if rule and rule.ratio else mean(values, unit)


def headline_of(trial: Trial) -> Claim:
    return next(claim for claim in trial.claims if claim.headline)


def kept_claims(claims: Sequence[Claim], parts: Iterable[str]) -> tuple[Claim, ...]:
    """Return the headline claim, that under the production profile, those marked ``stored``, and all that they need.

    All but the headline are left out if their runs did not take place.
    """
    by_id, present = {claim.id: claim for claim in claims}, set(parts)
    kept: set[str] = set()
    for claim in claims:
        if claim.headline or claim.role == "production" or claim.stored:
            needed, open_ids = set[str](), [claim.id]
            while open_ids:
                needed.add(found := open_ids.pop())
                open_ids += {*by_id[found].control, *by_id[found].assay} - needed
            if claim.headline or all(present.issuperset(by_id[found].needs) for found in needed):
                kept |= needed
    return tuple(claim for claim in claims if claim.id in kept)


def partial_claims(claims: Sequence[Claim], parts: Iterable[str]) -> tuple[Claim, ...]:
    """Return the claims that are measured by the runs that exist, if one has taken place: those of a benchmark."""
    present = set(parts)
    return tuple(claim for claim in claims if claim.partial and present & {*claim.needs})


def adopt(trial: Trial, source: Path, home: Path) -> None:
    """Copy the stored runs in ``source`` that ``home`` lacks, so that the trial continues there."""
    stored, record = record_of(trial, source), record_of(trial, home)
    for part in trial.parts:
        finished = stored.finished(part, source)
        if finished and not record.finished(part, home):
            shutil.copytree(source / finished, home / finished)
            record = replace(record, runs={**record.runs, part.name: stored.runs[part.name]})
    store.write(home, record)


def reduce_trial(trial: Trial, home: Path, target: Path, bytes_max: int = BYTES_MAX, *, partial: bool = False) -> int:
    """Write the evidence of the headline claims in ``home`` to the folder ``target``; return its size in bytes.

    With ``partial`` it is that of the partial claims, with the runs that ``target`` has already.
    Raises AftershockError if a run of the headline claim is missing, if the evidence is larger than ``bytes_max`` or
    names a place of this machine, or if it gives other words than the runs.
    """
    if partial and (target / store.NAME).is_file():
        adopt(trial, target, home)
    result = read_result(trial, home)
    claims = (partial_claims if partial else kept_claims)(trial.claims, result.parts)
    needs = {name for claim in claims for name in claim.needs}
    if not partial and (missing := sorted(needs - result.parts.keys())):
        raise AftershockError(
            f"{home}: no run of {', '.join(missing)}, which the headline claim of KIP-{trial.kip} needs; run "
            f"`aftershock kip {trial.kip}` first"
        )
    if target.exists() and not (target / store.NAME).is_file():
        raise AftershockError(f"{target}: the folder is not evidence of a trial; name another folder")
    parts = {name: Observed(name, part.run) for name, part in result.parts.items() if name in needs}
    state_claims(claims, parts, {})
    words = {entry.id: as_text(entry) for entry in result.statements if entry.id in {claim.id for claim in claims}}
    record = record_of(trial, home)
    earlier = () if partial else earlier_launches(trial, record, target)
    with replacement(target, bytes_max) as draft:
        for part in parts.values():
            write_run(part, draft / part.home.name, all_witnesses=not partial)
        for run in (run for launch in earlier for run in launch.values()):
            shutil.copytree(target / run, draft / run)
        stored = {
            name: replace(record.runs[name], claims=sorted(claim.id for claim in claims if name in claim.needs))
            for name in parts
        }
        store.write(draft, replace(record, runs=stored, left_out={}, claims=words, launches=earlier))
        again = {entry.id: as_text(entry) for entry in read_result(trial, draft).statements}
        if changed := [claim for claim, text in words.items() if again[claim] != text]:
            raise AftershockError(f"{target}: the reduced evidence gives other words for {', '.join(changed)}")
    return size_of(target)
