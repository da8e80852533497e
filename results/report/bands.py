"""The bands that faults draw across the plots: one colour a fault, in the order of the timeline.

The eight are Okabe and Ito's, told apart by colour-blind eyes too; more faults start over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aftershock.results.evidence import Evidence

PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999")


@dataclass(frozen=True)
class Band:
    """One window of a fault, in seconds of the run."""

    fault: str
    colour: str
    start_s: float
    end_s: float


def colours(evidence: Evidence) -> Mapping[str, str]:
    """Each fault's colour by its id."""
    return {step["id"]: PALETTE[index % len(PALETTE)] for index, step in enumerate(evidence.steps)}


def bands(evidence: Evidence) -> list[Band]:
    """The bands of all fault windows, in order of time."""
    painted = colours(evidence)
    return [
        Band(phase.fault, painted.get(phase.fault, PALETTE[-1]), phase.start_us / 1e6, phase.end_us / 1e6)
        for phase in evidence.phases
        if phase.fault is not None
    ]
