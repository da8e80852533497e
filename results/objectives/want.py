"""What a run's SLOs want measured, besides what always is; and what its blocks do, to be compared by."""

from collections.abc import Iterable, Iterator

from aftershock.errors import EvidenceError
from aftershock.results.comparing.blocks import block_cuts
from aftershock.results.evidence import Evidence
from aftershock.results.objectives.arms import block_cut
from aftershock.results.objectives.readings import cuts
from aftershock.results.objectives.recovered import calms
from aftershock.results.slo import Measure, Recovery, Slo, SloSyntaxError, parse
from aftershock.results.wanted import Cut, Wanted

USUAL = 0.95  # the confidence of the bands that the report shows whether or not an SLO asks


def wanted(evidence: Evidence) -> Wanted:
    """Quantiles, confidences, cuts and recoveries. Raises EvidenceError where an SLO of the run can't be read."""
    try:
        slos = [parse(objective.text) for objective in evidence.objectives]
    except SloSyntaxError as broken:
        where = evidence.home / "timeline.json"
        raise EvidenceError(f"{where}: an SLO can't be read: {broken}; restore the file") from broken
    measures = [slo for slo in slos if isinstance(slo, Measure)]
    qs = {one.aggregate for slo in measures for one in slo.selections if isinstance(one.aggregate, float)}
    confidences = {USUAL} | {float(slo.confidence) for slo in measures if slo.confidence is not None}
    recoveries = dict.fromkeys(calm for slo in slos if isinstance(slo, Recovery) for calm in calms(evidence, slo))
    asked = tuple(dict.fromkeys([*_cuts(slos), *block_cuts(evidence)]))
    return Wanted(tuple(sorted(qs)), tuple(sorted(confidences)), asked, tuple(recoveries))


def _cuts(slos: Iterable[Slo]) -> Iterator[Cut]:
    for slo in slos:
        if isinstance(slo, Measure):
            yield from (cut for one in slo.selections for cut in cuts(one, slo.each))
            if slo.compares_arms and slo.confidence is not None:
                yield block_cut(slo)
