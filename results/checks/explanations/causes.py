"""All explanations of a run, for every integrity rule."""

from dataclasses import replace

from aftershock.results.checks.explanations.groups import of_groups
from aftershock.results.checks.explanations.leadership import of_leaders
from aftershock.results.checks.explanations.model import Explanation, in_order, unplaced
from aftershock.results.checks.explanations.pipes import of_pipes
from aftershock.results.checks.explanations.retries import of_retries
from aftershock.results.checks.explanations.rewrites import of_rewrites
from aftershock.results.checks.explanations.written import timed
from aftershock.results.evidence.evidence import Evidence


def explanations(evidence: Evidence) -> tuple[Explanation, ...]:
    """Return what the run's witnessed causes explain, the certain ones first."""
    of_records = timed(evidence, [*of_leaders(evidence), *of_rewrites(evidence)])
    at_offsets = [one for one in of_records if (one.from_offset, one.until_offset) != (None, None)]
    of_transactions = [
        replace(one, rule=rule)
        for one in of_records
        if (one.rule, one.side) == ("lost", "produce")
        for rule in ("torn", "lost_commit")
    ]
    losses = [unplaced(one) for one in at_offsets if (one.rule, one.side) == ("lost", "produce")]
    of_groups_and_pipes = *of_groups(evidence, of_records), *of_pipes(evidence)
    return in_order([*of_records, *of_transactions, *losses, *of_retries(evidence), *of_groups_and_pipes])
