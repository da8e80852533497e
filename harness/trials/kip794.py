"""The trial of KIP-794: one broker is slow, all are alike, and a rack loses its broker."""

from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.trials.kip794 import CLAIMS
from aftershock.results.trials.kip794_plot import plots

TRIAL = Trial(
    kip=794,
    title="the built-in partitioner",
    claims=CLAIMS,
    parts=(
        Planned("slow", "kips/794-slow", None, 0.0, 450.0),
        Planned("rack", "kips/794-rack", None, 0.0, 165.0),
    ),
    plots=plots,
)
