"""Trials of KIPs, each with the plans to run, the claims to judge, and the plots to show.

The durations of runs were measured on a host with two cores. To add a trial, define the trial in this module and add it
to ``TRIALS``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from aftershock.errors import AftershockError
from aftershock.results.trials import kip227, kip392, kip794, kip951, kip1224
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.kip1224_commits import ADAPTIVE, FIXED, LINGER, NONE, SHARE_LINGER
from aftershock.results.trials.statement import Plot


@dataclass(frozen=True)
class Planned:
    """Part of a trial, a bundled plan that ``aftershock run`` accepts, with changes as for ``--set``.

    ``around_s`` is the duration of the run from launch to verdict, without its blocks (repetitions of the plan's
    faults), and ``block_s`` the duration of a block. ``blocks`` is the number of blocks, None for a plan without
    blocks.
    """

    name: str
    plan: str
    around_s: float
    changes: tuple[str, ...] = ()
    blocks: int | None = None
    block_s: float = 0.0
    kafka: str | None = None

    def settings(self, blocks: int | None) -> tuple[str, ...]:
        return self.changes if blocks is None else (*self.changes, f"blocks={blocks}")


@dataclass(frozen=True)
class Trial:
    """Trial of a KIP; ``parts`` lists the runs, most informative first, as a small budget covers only the first."""

    kip: int
    title: str
    claims: tuple[Claim, ...]
    parts: tuple[Planned, ...]
    plots: Callable[[Parts], tuple[Plot, ...]]

    def decides_on(self, part: Planned) -> bool:
        """True if a claim or control of the trial needs the run ``part``; False if only reported statements need it."""
        return any(part.name in claim.needs for claim in self.claims if claim.role != "report")

    def is_readable(self, part: Planned, selected: Collection[Planned]) -> bool:
        """True if a claim that needs the run ``part`` can be judged from the runs ``selected`` alone."""
        names = {candidate.name for candidate in selected if candidate in self.parts}
        return part in self.parts and any(part.name in claim.needs and names >= {*claim.needs} for claim in self.claims)


OLD_KAFKA = "4.1.2"
KILLS = 6
_IDLE_S, _BUSY_S = 100.0, 105.0
_FULL_S = 85.0
_OPEN = "workloads.commits.commit={groups: 2400, rate: 1500/s, by_coordinator: true, rack: a}"
"""Commit load of a trial, as a change of its plan; the rate is 50 to 70 % of the capacity measured on two cores."""
_SQUARE = ((ADAPTIVE, FIXED, NONE), (NONE, ADAPTIVE, FIXED), (FIXED, NONE, ADAPTIVE))


def _one_linger_per_broker(
    names: Iterable[str], plan: str, around_s: float, setting: str = LINGER
) -> Iterator[Planned]:
    """Yield three runs of a plan, so that each broker runs once with each value of the append linger ``setting``."""
    for name, lingers in zip(names, _SQUARE, strict=True):
        brokers = ", ".join(f"{broker}: {{{setting}: {linger}}}" for broker, linger in enumerate(lingers, start=1))
        yield Planned(name, plan, around_s, (f"cluster.brokers={{{brokers}}}",))


KIP_1224 = Trial(
    kip=1224,
    title="adaptive append linger",
    claims=kip1224.CLAIMS,
    parts=(
        *_one_linger_per_broker(kip1224.IDLE, "kips/1224-idle", _IDLE_S),
        *_one_linger_per_broker(kip1224.BUSY, "kips/1224-busy", _BUSY_S),
        Planned(kip1224.FAILOVER, "kips/1224-failover", 90.0, blocks=KILLS, block_s=13.0),
        Planned(kip1224.FULL, "kips/1224-full", _FULL_S),
        Planned(kip1224.USER, "kips/1224-idle", _IDLE_S, ("cluster.config.offsets.topic.replication.factor=3",)),
        Planned(
            kip1224.OLD, "kips/1224-idle", _IDLE_S, (f"cluster.brokers={{3: {{{LINGER}: {NONE}}}}}",), kafka=OLD_KAFKA
        ),
        *_one_linger_per_broker(kip1224.SHARE, "kips/1224-share", _IDLE_S, SHARE_LINGER),
        Planned(kip1224.OPEN, "kips/1224-busy", _BUSY_S, (_OPEN,)),
    ),
    plots=kip1224.plots,
)


LOSSES = 6
_NO_SLOTS = "cluster.config.max.incremental.fetch.session.cache.slots=0"

KIP_227 = Trial(
    kip=227,
    title="incremental fetch requests",
    claims=kip227.CLAIMS,
    parts=(
        Planned(kip227.BYTES, "kips/227-bytes", 100.0),
        Planned(kip227.CONTROL, "kips/227-control", 90.0),
        Planned(kip227.SESSIONS, "kips/227-sessions", 45.0, blocks=LOSSES, block_s=22.0),
        Planned(kip227.EVICTED, "kips/227-evicted", 90.0, blocks=LOSSES, block_s=13.0),
        Planned(kip227.CPU_SESSION, "kips/227-cpu", 110.0),
        Planned(kip227.CPU_FULL, "kips/227-cpu", 110.0, ("workloads.p1000.arms.reader.fetch_session=false",)),
        Planned(kip227.FOLLOWERS_SESSION, "kips/227-followers", 110.0),
        Planned(kip227.FOLLOWERS_FULL, "kips/227-followers", 110.0, (_NO_SLOTS,)),
    ),
    plots=kip227.plots,
)


KIP_392 = Trial(
    kip=392,
    title="reads from the closest replica",
    claims=kip392.CLAIMS,
    parts=(
        Planned("near", "kips/392-near", 165.0),
        Planned("lease", "kips/392-lease", 240.0),
        Planned("selector-off", "kips/392-near", 165.0, ("cluster.config.replica.selector.class=''",)),
        Planned(
            "selector-own",
            "kips/392-near",
            165.0,
            # without read_replica a consumer ignores the preferred replica and reads nothing
            (
                "cluster.config.replica.selector.class=aftershock.HighestFollower",
                "workloads.reads.arms.leader.read_replica=true",
                # a consumer stays with the first selected follower until metadata.max.age.ms ends its lease
                "workloads.reads.arms.closest.settings.metadata.max.age.ms=5000",
            ),
        ),
        Planned("trickle", "kips/392-near", 200.0, ("workloads.writes.produce.rate=1/s",)),
    ),
    plots=kip392.plots,
)


KIP_794 = Trial(
    kip=794,
    title="the built-in partitioner",
    claims=kip794.CLAIMS,
    parts=(Planned("slow", "kips/794-slow", 450.0), Planned("rack", "kips/794-rack", 165.0)),
    plots=kip794.plots,
)


MOVES, KIP_951_KILLS, OTHERS = 40, 8, 12
UNDELAYED = 64  # with 40 the interval was 0.888 to 1.0003: a small effect needs more blocks
AROUND_S = 65.0
_ACKS_1 = ("workloads.moves.produce.acks=1", "workloads.moves.produce.idempotence=false")
_JAVA = tuple(f"workloads.moves.arms.{arm}.client=java" for arm in ("whole", "stripped", "capped"))

KIP_951 = Trial(
    kip=951,
    title="leader discovery",
    claims=(*kip951.CLAIMS, *kip951.BESIDE),
    parts=(
        Planned("delay-300", "kips/951-move", AROUND_S, blocks=MOVES, block_s=6.0),
        Planned("delay-0", "kips/951-undelayed", AROUND_S, blocks=UNDELAYED, block_s=6.0),
        Planned("kill", "kips/951-kill", AROUND_S, blocks=KIP_951_KILLS, block_s=20.0),
        Planned("delay-100", "kips/951-move", AROUND_S, ("faults.0.delay=100ms",), blocks=MOVES, block_s=6.0),
        Planned("acks-1", "kips/951-undelayed", AROUND_S, _ACKS_1, blocks=OTHERS, block_s=6.0),
        Planned("shared", "kips/951-shared", AROUND_S, blocks=OTHERS, block_s=6.0),
        Planned("consume", "kips/951-consume", AROUND_S, blocks=OTHERS, block_s=6.0),
        Planned("consume-1s", "kips/951-consume", AROUND_S, ("faults.0.delay=1s",), blocks=OTHERS, block_s=6.0),
        Planned("leaves", "kips/951-leaves", AROUND_S, blocks=OTHERS, block_s=9.5),
        Planned("unknown", "kips/951-unknown", AROUND_S, blocks=8, block_s=22.5),
        Planned("librdkafka", "kips/951-foreign", AROUND_S, blocks=OTHERS, block_s=8.5),
        Planned("java", "kips/951-foreign", 75.0, _JAVA, blocks=OTHERS, block_s=8.5),
        Planned("restart", "kips/951-restart", AROUND_S, blocks=8, block_s=15.0),
        Planned("restart-many", "kips/951-restart", AROUND_S, ("topics.0.partitions=120",), blocks=8, block_s=15.0),
    ),
    plots=kip951.plots,
)


TRIALS: Mapping[int, Trial] = {trial.kip: trial for trial in (KIP_951, KIP_227, KIP_794, KIP_392, KIP_1224)}
ALL = "all"


def select_trials(selection: str) -> tuple[Trial, ...]:
    """Return the trial of one KIP, or all trials; raise AftershockError for a KIP without a trial."""
    if selection == ALL:
        return tuple(TRIALS.values())
    number = selection.lower().removeprefix("kip").strip("-")
    if not number.isdecimal() or int(number) not in TRIALS:
        numbers = ", ".join(map(str, TRIALS))
        raise AftershockError(f"there is no trial of `{selection}`: use one of {numbers}, or {ALL}")
    return (TRIALS[int(number)],)
