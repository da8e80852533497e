"""The trial of KIP-392: leaders in one rack, readers in another; and brokers that select no replica."""

from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.trials.kip392 import CLAIMS
from aftershock.results.trials.kip392_plot import plots

TRIAL = Trial(
    kip=392,
    title="reads from the closest replica",
    claims=CLAIMS,
    parts=(
        Planned("near", "kips/392-near", None, 0.0, 165.0),
        Planned("lease", "kips/392-lease", None, 0.0, 240.0),
        Planned("selector-off", "kips/392-near", None, 0.0, 165.0, ("cluster.config.replica.selector.class=''",)),
        Planned(
            "selector-own",
            "kips/392-near",
            None,
            0.0,
            165.0,
            # whoever is sent away and doesn't go reads nothing: an arm with the rule off would starve
            (
                "cluster.config.replica.selector.class=aftershock.HighestFollower",
                "workloads.reads.arms.leader.read_replica=true",
                # whoever was the only follower when first asked for is kept for the length of a lease
                "workloads.reads.arms.closest.settings.metadata.max.age.ms=5000",
            ),
        ),
        Planned("trickle", "kips/392-near", None, 0.0, 200.0, ("workloads.writes.produce.rate=1/s",)),
    ),
    plots=plots,
)
