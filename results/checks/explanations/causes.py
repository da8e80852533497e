"""All explanations of a run, for every integrity rule."""

from aftershock.results.checks.explanations.leadership import of_leaders
from aftershock.results.checks.explanations.model import Explanation, in_order
from aftershock.results.checks.explanations.retries import of_retries
from aftershock.results.checks.explanations.rewrites import of_rewrites
from aftershock.results.evidence.evidence import Evidence


def explanations(evidence: Evidence) -> tuple[Explanation, ...]:
    """Return what the run's witnessed causes explain, the certain ones first."""
    cause = "a commit that was in flight on a lost connection, which no member epoch fences"
    commits = Explanation("backward", "commit", cause, "offsets/")
    return in_order([*of_leaders(evidence), *of_rewrites(evidence), *of_retries(evidence), commits])
