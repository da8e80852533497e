"""Documents of a judged run (verdict, measurements), and the reasons not to trust parts of the run.

Reports, stories and comparisons are drawn from these stored documents alone, without Spark.

``analysis.json`` has the measurements as rows of plain data. A row of ``analysis.json`` holds the fields of a
measurement's dataclass and the parts of the measurement's key in ``Facts``. The rows in ``analysis.json`` are sorted,
so that the same facts give the same bytes. A missing key in ``analysis.json`` means that the version that judged the
run did not take that measurement; an empty list means that nothing was observed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.evidence.evidence import verify
from aftershock.results.evidence.files import NEWEST_VERSIONS, read_json, read_object, require_fields
from aftershock.results.model.check import Status, Verdict, from_json
from aftershock.results.model.facts import Distribution, Facts

ANALYSIS_SCHEMA_VERSION = NEWEST_VERSIONS["analysis.json"]
CONTROLS = ("baseline", "control")
AUTHORS_VERDICT = ".verdict-of-its-author"
"""Empty file in the run directory of an unpacked pack, until the run is judged here."""

Row = dict[str, Any]


def analysis_document(facts: Facts) -> Row:
    series = ("metric", "client", "window")
    return {
        "schema_version": ANALYSIS_SCHEMA_VERSION,
        "distributions": [
            _key_fields(series, key) | _distribution(value) for key, value in _sorted(facts.distributions)
        ],
        "gaps": [_key_fields(series, key) | vars(value) for key, value in _sorted(facts.longest)],
        "recovery_definition": facts.recovery_definition,
        "recoveries": [_key_fields(("fault", "client"), key) | value.row for key, value in _sorted(facts.recoveries)],
        "bin_us": facts.bin_us,
        "bins": _rows(facts.bins),
        "crossed": {fault: vars(value) for fault, value in _sorted(facts.crossed)},
        "host": vars(facts.host),
        "spectra": [_key_fields(series, key) | {"points": points} for key, points in _sorted(facts.spectra)],
        "racks": _rows(facts.racks),
        "slowest": [
            _key_fields(("op", "client"), key) | {"records": _rows(records)} for key, records in _sorted(facts.slowest)
        ],
        "stalls": _rows(facts.stalls),
        "failures": [
            _key_fields(("side", "client"), key) | vars(failure)
            for key, spans in _sorted(facts.failures)
            for failure in spans
        ],
        "given_up": [_key_fields(("client", "error"), key) | vars(value) for key, value in _sorted(facts.given_up)],
        "findings": [vars(finding) | {"explained": _rows(finding.explained)} for _, finding in _sorted(facts.findings)],
        "load": [vars(sent) | {"missing": _rows(sent.missing)} for sent in facts.load],
        "unavailable": [
            _key_fields(("side", "client", "window"), key) | {"partitions": _rows(outages)}
            for key, outages in _sorted(facts.unavailable)
        ],
        "lag": [
            {"client": client, "seconds": [[second.at_us, second.records, second.oldest_us] for second in seconds]}
            for client, seconds in _sorted(facts.lag)
        ],
        "stable_lag": [
            {"client": client, "seconds": [[second.at_us, second.records, second.oldest_us] for second in seconds]}
            for client, seconds in _sorted(facts.stable_lag)
        ],
        "perf": [{"client": client} | vars(value) for client, value in _sorted(facts.perf)],
        "rebalances": [
            {
                "client": client,
                "rebalances": [vars(rebalance) | {"moved": _rows(rebalance.moved)} for rebalance in rebalances],
            }
            for client, rebalances in _sorted(facts.rebalances)
        ],
        "unowned": [{"client": client, "waits": _rows(waits)} for client, waits in _sorted(facts.unowned)],
        "cuts": [
            vars(cut)
            | {
                "client": client,
                "slices": [
                    {"subject": part.subject, "start_us": part.start_us, **_distribution(part.values)}
                    for part in facts.slices(cut, client)
                ],
            }
            for cut, client in facts.cuts
        ],
        "calms": [vars(calm) | {"client": client} | value.row for (calm, client), value in facts.calms.items()],
    }


def _distribution(distribution: Distribution) -> Row:
    bands = [
        {"q": q, "confidence": confidence, "low_us": low_us, "high_us": high_us}
        for (q, confidence), (low_us, high_us) in _sorted(distribution.bands)
    ]
    quantiles = {repr(q): value for q, value in distribution.at.items()}
    return vars(distribution) | {"at": quantiles, "bands": bands}


def _key_fields(names: Sequence[str], key: Sequence[str]) -> Row:
    return dict(zip(names, key, strict=True))


def _rows(values: Iterable[Any]) -> list[Row]:
    return [vars(value) for value in values]


def _sorted(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(mapping.items(), key=lambda item: item[0])


def verdict_of(home: Path) -> Verdict:
    """Return the stored verdict of a run. Raises EvidenceError if the run was not judged."""
    path = _judged_file(home, "verdict.json")
    document = read_json(path)
    try:
        return replace(from_json(document), by_author=(home / AUTHORS_VERDICT).exists())
    except (KeyError, TypeError, ValueError) as error:
        again = f"judge the run again: aftershock verdict {home}"
        raise EvidenceError(f"{path}: the file is not a verdict of Aftershock ({error!r}); {again}") from error


def trusted_in(home: Path) -> tuple[str, ...]:
    """Return the differences from the manifest that the verdict in ``home`` accepts; none if the run was not judged."""
    return verdict_of(home).trusted if (home / "verdict.json").exists() else ()


def analysis_of(home: Path) -> Mapping[str, Any]:
    """Return the measurements in ``analysis.json`` of a run. Raises EvidenceError if the run was not judged."""
    return read_object(_judged_file(home, "analysis.json"))


def older_version_note(home: Path, measurement: str) -> str:
    """Return a note for the reader of a run judged by an older version, which did not take ``measurement``."""
    return f"The run was judged by an older version, without {measurement}; `aftershock verdict {home}` adds it."


def _judged_file(home: Path, name: str) -> Path:
    if not home.is_dir():
        raise EvidenceError(f"{home}: the run directory is missing; restore it")
    if not (home / name).exists():
        raise EvidenceError(f"{home / name}: missing; judge the run first: aftershock verdict {home}")
    return home / name


@dataclass(frozen=True)
class JudgedRun:
    home: Path
    run: Mapping[str, Any]
    timeline: Mapping[str, Any]
    analysis: Mapping[str, Any]
    verdict: Verdict

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    def arms(self, workload: Mapping[str, Any]) -> list[str]:
        """Return the arms of a workload, the control (``baseline``, ``control``) first, then the others by name."""
        return sorted(workload["arms"], key=lambda arm: (arm not in CONTROLS, arm))

    def sides(self, workload: Mapping[str, Any]) -> list[str]:
        return [side for side in ("produce", "consume", "commit", "pipe") if workload.get(side)]

    def notes(self) -> tuple[str, ...]:
        """Return a note for each evidence file that was changed after the run."""
        return tuple(f"{self.run_id} was judged with --trust: {difference}" for difference in self.verdict.trusted)

    def doubt(self) -> str | None:
        """Return why the run can't be trusted (it did not finish, or a harness check did not pass), else None."""
        if self.run.get("status") != "complete":
            return f"{self.run_id} did not finish: {self.run.get('why') or self.run.get('status')}"
        untrusted = [c for c in self.verdict.checks if c.kind == "harness" and c.status is not Status.PASS]
        return f"{self.run_id}: {untrusted[0].id}: {untrusted[0].why}" if untrusted else None

    def unproven(self) -> dict[str, str]:
        """Map each fault of the run without a witness or without exposure to the first reason."""
        doubts = [c for c in self.verdict.checks if c.kind in ("witness", "exposure") and c.status is not Status.PASS]
        return {check.id.split("/", 1)[1]: check.why for check in reversed(doubts)}

    def trials(self) -> tuple[set[int] | None, tuple[str, ...]]:
        """Return the plan's blocks in which every fault took effect, and a note for each block that is left out.

        The first value is absent (None) if the plan of the run has no blocks (repetitions of its faults).
        """
        unproven, steps = self.unproven(), [step for step in self.timeline["steps"] if step.get("block")]
        if not steps:
            return None, ()
        spoilt = {step["block"]: step["id"] for step in reversed(steps) if step["id"] in unproven}
        notes = [
            f"block {block} of {self.run_id} is left out, because of {fault}: {unproven[fault]}"
            for block, fault in spoilt.items()
        ]
        return {step["block"] for step in steps} - spoilt.keys(), tuple(notes)


def read_judged_run(home: Path) -> JudgedRun:
    """Read the judged run in ``home``. Raises EvidenceError if the run was not judged, or its files are damaged."""
    verdict, analysis = verdict_of(home), analysis_of(home)
    verify(home, verdict.trusted)
    run, timeline = read_object(home / "run.json"), read_object(home / "timeline.json")
    require_fields(str(home / "timeline.json"), timeline, ("cluster", "steps", "workloads"))
    return JudgedRun(home, run, timeline, analysis, verdict)
