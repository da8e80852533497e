"""The trial of KIP-227: what fetches cost, and what becomes of sessions that are lost."""

from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.trials.kip227 import BYTES, CLAIMS, CONTROL, EVICTED, SESSIONS
from aftershock.results.trials.kip227_brokers import CPU_FULL, CPU_SESSION, FOLLOWERS_FULL, FOLLOWERS_SESSION
from aftershock.results.trials.kip227_plot import plots

LOSSES = 6
_NO_SLOTS = "cluster.config.max.incremental.fetch.session.cache.slots=0"

TRIAL = Trial(
    kip=227,
    title="incremental fetch requests",
    claims=CLAIMS,
    parts=(
        Planned(BYTES, "kips/227-bytes", None, 0.0, 100.0),
        Planned(CONTROL, "kips/227-control", None, 0.0, 90.0),
        Planned(SESSIONS, "kips/227-sessions", LOSSES, 22.0, 45.0),
        Planned(EVICTED, "kips/227-evicted", LOSSES, 13.0, 90.0),
        Planned(CPU_SESSION, "kips/227-cpu", None, 0.0, 110.0),
        Planned(CPU_FULL, "kips/227-cpu", None, 0.0, 110.0, ("workloads.p1000.arms.reader.fetch_session=false",)),
        Planned(FOLLOWERS_SESSION, "kips/227-followers", None, 0.0, 110.0),
        Planned(FOLLOWERS_FULL, "kips/227-followers", None, 0.0, 110.0, (_NO_SLOTS,)),
    ),
    plots=plots,
)
