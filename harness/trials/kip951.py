"""The trial of KIP-951: leaders move with Metadata late and not, one is killed; and what is told beside.

What a part takes is measured on two cores: about 65 s from launch to verdict but for its blocks; 75 with JVM clients.
"""

from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.trials.kip951 import CLAIMS
from aftershock.results.trials.kip951_beside import BESIDE
from aftershock.results.trials.kip951_plots import plots

MOVES, KILLS, OTHERS = 40, 8, 12
UNDELAYED = 64  # of 40 the interval was 0.888 to 1.0003: what is small takes more to be told
AROUND_S = 65.0
_ACKS_1 = ("workloads.moves.produce.acks=1", "workloads.moves.produce.idempotence=false")
_JAVA = tuple(f"workloads.moves.arms.{arm}.client=java" for arm in ("whole", "stripped", "capped"))

TRIAL = Trial(
    kip=951,
    title="leader discovery",
    claims=(*CLAIMS, *BESIDE),
    parts=(
        Planned("delay-300", "kips/951-move", MOVES, 6.0, AROUND_S),
        Planned("delay-0", "kips/951-undelayed", UNDELAYED, 6.0, AROUND_S),
        Planned("kill", "kips/951-kill", KILLS, 20.0, AROUND_S),
        Planned("delay-100", "kips/951-move", MOVES, 6.0, AROUND_S, ("faults.0.delay=100ms",)),
        Planned("acks-1", "kips/951-undelayed", OTHERS, 6.0, AROUND_S, _ACKS_1),
        Planned("shared", "kips/951-shared", OTHERS, 6.0, AROUND_S),
        Planned("consume", "kips/951-consume", OTHERS, 6.0, AROUND_S),
        Planned("consume-1s", "kips/951-consume", OTHERS, 6.0, AROUND_S, ("faults.0.delay=1s",)),
        Planned("leaves", "kips/951-leaves", OTHERS, 9.5, AROUND_S),
        Planned("unknown", "kips/951-unknown", 8, 22.5, AROUND_S),
        Planned("librdkafka", "kips/951-foreign", OTHERS, 8.5, AROUND_S),
        Planned("java", "kips/951-foreign", OTHERS, 8.5, 75.0, _JAVA),
        Planned("restart", "kips/951-restart", 8, 15.0, AROUND_S),
        Planned("restart-many", "kips/951-restart", 8, 15.0, AROUND_S, ("topics.0.partitions=120",)),
    ),
    plots=plots,
)
