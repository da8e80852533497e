"""What is to be made small: a run that failed, its plan as it ran, and the checks that failed."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.document import load
from aftershock.faults.minimise.candidate import Document, changed, value_at
from aftershock.faults.minimise.trying import refused
from aftershock.faults.problem import Loc
from aftershock.harness.engine import DEFAULT_KAFKA
from aftershock.results.check import Status
from aftershock.results.files import read_json, read_lines, read_object
from aftershock.results.shown import sentence
from aftershock.results.verdict import Verdict, from_json


@dataclass(frozen=True)
class Source:
    """``checks``: the ids of those that must fail again, all of them; ``rehearse``: nothing was injected."""

    run_id: str
    document: Document
    seed: int
    rehearse: bool
    checks: tuple[str, ...]


def source_of(home: Path, chosen: Collection[str] = ()) -> Source:
    """The run in ``home``; ``chosen``: which of its failed checks are meant, if not all.

    AftershockError with what to do, for a run that is no failure to be made small.
    """
    facts = read_object(home / "run.json")
    verdict = _verdict(home, facts)
    if verdict.status is not Status.FAIL:
        raise AftershockError(f"{home.name} {_REFUSED[verdict.status]}: {sentence(verdict)}")
    source = Source(home.name, _document(home, facts), facts["seed"], facts["rehearse"], _checks(verdict, chosen))
    if value_at(source.document, ("cluster", "attach")):
        raise AftershockError(f"{home.name} ran on a cluster of yours (`attach`); take `attach` out of the plan first")
    if problem := refused(source.document, source.seed):
        told = f"{home.name} can't be run again by this version: {problem}"
        raise AftershockError(f"{told}; mend a copy of {home / 'plan.yaml'} and run that")
    return source


_REFUSED = {
    Status.PASS: "passed, so there is nothing to make small; name a run that failed",
    Status.INCONCLUSIVE: "was INCONCLUSIVE, not FAIL; mend what its checks say, and run it again first",
    Status.ERROR: "could not be judged; mend what its checks say, and run it again first",
}


def _verdict(home: Path, facts: dict[str, Any]) -> Verdict:
    if not (home / "verdict.json").exists():
        how = f"it is {facts.get('status')}; run its plan again, or judge what there is: aftershock verdict {home}"
        raise AftershockError(f"{home.name} has no verdict ({how})")
    try:
        return from_json(read_json(home / "verdict.json"))
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{home / 'verdict.json'}: no verdict of this version; aftershock verdict {home}"
        ) from error


def _checks(verdict: Verdict, chosen: Collection[str]) -> tuple[str, ...]:
    failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
    if missing := [name for name in chosen if name not in failed]:
        raise AftershockError(f"--check {missing[0]}: that did not FAIL; what did: {', '.join(failed)}")
    return tuple(name for name in failed if not chosen or name in chosen)


def _document(home: Path, facts: dict[str, Any]) -> Document:
    """The plan as it ran: with what a test expected of it, and the Kafka that it ran on."""
    said = load(home / "plan.yaml").data
    expected = [{"slo": line["text"], "gate": line.get("gate", "verdict")} for line in read_lines(home / _EXPECTED)]
    kafka = facts["versions"].get("kafka", DEFAULT_KAFKA)
    values: dict[Loc, Any] = {("slo",): [*(said.get("slo") or ()), *expected]}
    if kafka != DEFAULT_KAFKA:
        values["cluster", "kafka"] = kafka
    return changed(said, values)


_EXPECTED = "expectations.jsonl"
