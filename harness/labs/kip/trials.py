"""Trials of KIPs: the plans to run, the claims to judge, and the plots to show.

Durations of plan runs are measured on two cores: about 65 s (75 s with JVM clients) from launch to verdict, plus the
duration of the blocks of the plan (repetitions of its faults). To add a trial, define the trial in this module and add
it to ``TRIALS``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from aftershock.errors import AftershockError
from aftershock.results.trials import kip227, kip392, kip794, kip951, kip1224
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.kip1224_commits import ADAPTIVE, FIXED, LINGER, NONE, SHARE_LINGER
from aftershock.results.trials.statement import Plot


@dataclass(frozen=True)
class Planned:
    """Part of a trial: a bundled plan that ``aftershock run`` accepts, with changes as for ``--set``.

    ``blocks`` overrides the plan's number of blocks (repetitions of the plan's faults); None for a plan without blocks,
    which is never shortened. ``block_s`` is the duration of a block, and ``around_s`` the duration of the run from
    launch to verdict without all blocks.
    """

    name: str
    plan: str
    blocks: int | None
    block_s: float
    around_s: float
    changes: tuple[str, ...] = ()
    kafka: str | None = None

    def settings(self, blocks: int | None) -> tuple[str, ...]:
        return self.changes if blocks is None else (*self.changes, f"blocks={blocks}")


@dataclass(frozen=True)
class Trial:
    """Trial of a KIP: its runs (``parts``), the most informative first because a small budget covers only the first."""

    kip: int
    title: str
    claims: tuple[Claim, ...]
    parts: tuple[Planned, ...]
    plots: Callable[[Parts], tuple[Plot, ...]]

    def decides_on(self, part: Planned) -> bool:
        """True if a claim or control of the trial needs the part (a run of a plan); False if only its reports do."""
        return any(part.name in claim.needs for claim in self.claims if claim.role != "report")

    def is_readable(self, part: Planned, selected: Collection[Planned]) -> bool:
        """True if the runs ``selected`` suffice to judge at least one claim that needs the run ``part``."""
        names = {candidate.name for candidate in selected if candidate in self.parts}
        return part in self.parts and any(part.name in claim.needs and names >= {*claim.needs} for claim in self.claims)


OLD_KAFKA = "4.1.2"
KILLS = 6
_IDLE_S, _BUSY_S = 100.0, 105.0
_FULL_S = 85.0
_OPEN = "workloads.commits.commit={groups: 2400, rate: 1500/s, by_coordinator: true, rack: a}"
"""Commit load of a trial. The rate is 50 to 70 % of the measured capacity of two shared cores, which varies."""
_SQUARE = ((ADAPTIVE, FIXED, NONE), (NONE, ADAPTIVE, FIXED), (FIXED, NONE, ADAPTIVE))


def _brokers(lingers: Iterable[str], setting: str = LINGER) -> str:
    settings = ", ".join(f"{broker}: {{{setting}: {linger}}}" for broker, linger in enumerate(lingers, start=1))
    return f"cluster.brokers={{{settings}}}"


KIP_1224 = Trial(
    kip=1224,
    title="adaptive append linger",
    claims=kip1224.CLAIMS,
    parts=(
        *(
            Planned(name, "kips/1224-idle", None, 0.0, _IDLE_S, (_brokers(lingers),))
            for name, lingers in zip(kip1224.IDLE, _SQUARE, strict=True)
        ),
        *(
            Planned(name, "kips/1224-busy", None, 0.0, _BUSY_S, (_brokers(lingers),))
            for name, lingers in zip(kip1224.BUSY, _SQUARE, strict=True)
        ),
        Planned(kip1224.FAILOVER, "kips/1224-failover", KILLS, 13.0, 90.0),
        Planned(kip1224.FULL, "kips/1224-full", None, 0.0, _FULL_S),
        Planned(
            kip1224.USER, "kips/1224-idle", None, 0.0, _IDLE_S, ("cluster.config.offsets.topic.replication.factor=3",)
        ),
        Planned(
            kip1224.OLD,
            "kips/1224-idle",
            None,
            0.0,
            _IDLE_S,
            (f"cluster.brokers={{3: {{{LINGER}: {NONE}}}}}",),
            OLD_KAFKA,
        ),
        *(
            Planned(name, "kips/1224-share", None, 0.0, _IDLE_S, (_brokers(lingers, SHARE_LINGER),))
            for name, lingers in zip(kip1224.SHARE, _SQUARE, strict=True)
        ),
        Planned(kip1224.OPEN, "kips/1224-busy", None, 0.0, _BUSY_S, (_OPEN,)),
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
        Planned(kip227.BYTES, "kips/227-bytes", None, 0.0, 100.0),
        Planned(kip227.CONTROL, "kips/227-control", None, 0.0, 90.0),
        Planned(kip227.SESSIONS, "kips/227-sessions", LOSSES, 22.0, 45.0),
        Planned(kip227.EVICTED, "kips/227-evicted", LOSSES, 13.0, 90.0),
        Planned(kip227.CPU_SESSION, "kips/227-cpu", None, 0.0, 110.0),
        Planned(
            kip227.CPU_FULL, "kips/227-cpu", None, 0.0, 110.0, ("workloads.p1000.arms.reader.fetch_session=false",)
        ),
        Planned(kip227.FOLLOWERS_SESSION, "kips/227-followers", None, 0.0, 110.0),
        Planned(kip227.FOLLOWERS_FULL, "kips/227-followers", None, 0.0, 110.0, (_NO_SLOTS,)),
    ),
    plots=kip227.plots,
)


KIP_392 = Trial(
    kip=392,
    title="reads from the closest replica",
    claims=kip392.CLAIMS,
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
            # without read_replica a consumer ignores the preferred replica and reads nothing
            (
                "cluster.config.replica.selector.class=aftershock.HighestFollower",
                "workloads.reads.arms.leader.read_replica=true",
                # a consumer stays with the first selected follower until metadata.max.age.ms ends its lease
                "workloads.reads.arms.closest.settings.metadata.max.age.ms=5000",
            ),
        ),
        Planned("trickle", "kips/392-near", None, 0.0, 200.0, ("workloads.writes.produce.rate=1/s",)),
    ),
    plots=kip392.plots,
)


KIP_794 = Trial(
    kip=794,
    title="the built-in partitioner",
    claims=kip794.CLAIMS,
    parts=(Planned("slow", "kips/794-slow", None, 0.0, 450.0), Planned("rack", "kips/794-rack", None, 0.0, 165.0)),
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
        Planned("delay-300", "kips/951-move", MOVES, 6.0, AROUND_S),
        Planned("delay-0", "kips/951-undelayed", UNDELAYED, 6.0, AROUND_S),
        Planned("kill", "kips/951-kill", KIP_951_KILLS, 20.0, AROUND_S),
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
