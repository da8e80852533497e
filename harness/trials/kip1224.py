"""The trial of KIP-1224: three lingers on three brokers, turned round, idle and busy; kills; the old default."""

from collections.abc import Iterable

from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.trials.commits import ADAPTIVE, FIXED, LINGER, NONE, SHARE_LINGER
from aftershock.results.trials.kip1224 import CLAIMS, FAILOVER, IDLE, OLD, SHARE, USER
from aftershock.results.trials.kip1224_busy import BUSY, OPEN
from aftershock.results.trials.kip1224_full import FULL
from aftershock.results.trials.kip1224_plot import plots

OLD_KAFKA = "4.1.2"
KILLS = 6
_IDLE_S, _BUSY_S = 100.0, 105.0
_FULL_S = 85.0
_OPEN = "workloads.commits.commit={groups: 2400, rate: 1500/s, by_coordinator: true, rack: a}"
"""Half to 70 % of what two shared cores came to, as they wander."""
_SQUARE = ((ADAPTIVE, FIXED, NONE), (NONE, ADAPTIVE, FIXED), (FIXED, NONE, ADAPTIVE))


def _brokers(lingers: Iterable[str], setting: str = LINGER) -> str:
    """The change that sets broker 1, 2 and 3 so."""
    of_each = ", ".join(f"{broker}: {{{setting}: {linger}}}" for broker, linger in enumerate(lingers, start=1))
    return f"cluster.brokers={{{of_each}}}"


TRIAL = Trial(
    kip=1224,
    title="adaptive append linger",
    claims=CLAIMS,
    parts=(
        *(
            Planned(name, "kips/1224-idle", None, 0.0, _IDLE_S, (_brokers(lingers),))
            for name, lingers in zip(IDLE, _SQUARE, strict=True)
        ),
        *(
            Planned(name, "kips/1224-busy", None, 0.0, _BUSY_S, (_brokers(lingers),))
            for name, lingers in zip(BUSY, _SQUARE, strict=True)
        ),
        Planned(FAILOVER, "kips/1224-failover", KILLS, 13.0, 90.0),
        Planned(FULL, "kips/1224-full", None, 0.0, _FULL_S),
        Planned(USER, "kips/1224-idle", None, 0.0, _IDLE_S, ("cluster.config.offsets.topic.replication.factor=3",)),
        Planned(
            OLD, "kips/1224-idle", None, 0.0, _IDLE_S, (f"cluster.brokers={{3: {{{LINGER}: {NONE}}}}}",), OLD_KAFKA
        ),
        *(
            Planned(name, "kips/1224-share", None, 0.0, _IDLE_S, (_brokers(lingers, SHARE_LINGER),))
            for name, lingers in zip(SHARE, _SQUARE, strict=True)
        ),
        Planned(OPEN, "kips/1224-busy", None, 0.0, _BUSY_S, (_OPEN,)),
    ),
    plots=plots,
)
