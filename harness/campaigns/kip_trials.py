"""Trials of KIPs, each with the plans to run, the registered claims to judge, and the plots to show.

``off`` of a part is its sabotage: plan changes that switch the KIP off where it should be on, so that no claim may be
confirmed. The durations of runs were measured on a host with two cores.

To add a trial: register its claims in ``results/studies/trials/kipN.toml`` (a headline, a control and the headline's
``-production`` claim at least), measure them in ``kipN.py`` beside it, define the trial here and add it to ``TRIALS``,
draw the KIP in ``mechanisms.toml``, and write ``docs/kips/kipN.md`` and the recount of the headline, ``kipN.sql``. The
claims are named in ``promises.toml`` by the promises of the KIP's text that they test.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from aftershock.errors import AftershockError
from aftershock.harness.campaigns.store import Planned
from aftershock.results.studies.durability import ELR
from aftershock.results.studies.statement import Plot
from aftershock.results.studies.trials import (
    kip227,
    kip392,
    kip794,
    kip848,
    kip890,
    kip951,
    kip951_benchmark,
    kip966,
    kip1224,
)
from aftershock.results.studies.trials.claim import Claim, Parts, Registration
from aftershock.results.studies.trials.kip848_changes import ALONE, PROTOCOLS
from aftershock.results.studies.trials.kip1224_commits import ADAPTIVE, FIXED, LINGER, NONE, SHARE_LINGER


@dataclass(frozen=True)
class Trial:
    """Trial of a KIP; ``parts`` lists the runs. ``draws_evidence`` is True if its charts need stored evidence only."""

    kip: int
    title: str
    registration: Registration
    parts: tuple[Planned, ...]
    plots: Callable[[Parts], tuple[Plot, ...]]
    sabotaged: bool = False
    draws_evidence: bool = False

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self.registration.claims

    @property
    def name(self) -> str:
        """Name of the trial as a campaign, and of the folder with its runs."""
        return f"kip-{self.kip}{'-sabotage' if self.sabotaged else ''}"

    def sabotage(self) -> "Trial":
        """Return the trial with the KIP switched off in each part where it should be on."""
        parts = tuple(replace(part, changes=(*part.changes, *part.off)) for part in self.parts)
        return replace(self, parts=parts, sabotaged=True)


PRODUCTION = "cluster.profile=production"
"""Kafka's default settings and the C2 compiler, whose code is slower at first, so these runs take longer to warm up."""
OLD_KAFKA = "4.1.2"
_METRICS = "cluster.jmx=true"
KILLS = 6
_SLOWER_S = 30.0
_IDLE_S, _BUSY_S = 100.0, 105.0
_FULL_S = 85.0
_OPEN = "workloads.commits.commit={groups: 2400, rate: 1500/s, by_coordinator: true, rack: a}"
"""Commit load of a trial, as a change of its plan; the rate is 50 to 70 % of the capacity measured on two cores."""
_FLUSHED = ("cluster.config.log.flush.interval.messages=1", "workloads.commits.commit.groups=600")
"""Each append waits for the disk; a round of fewer groups is as short as one of more groups without a flush."""
_FIXED = (f"cluster.config.{LINGER}={FIXED}",)
_LOSING = (
    "cluster.config.offsets.topic.replication.factor=1",
    "cluster.controllers=1",
    "workloads.commits.arms.plain.settings.request.timeout.ms=1500",
    (
        "faults=[{id: late, at: 0s, for: 6s, kind: delay_request, api: OffsetCommit, delay: 3s, probability: 0.05}, "
        "{id: coordinator, at: 10s, for: 4s, kind: power_loss, broker: coordinator of commits-plain-0}]"
    ),
)
"""Commits that are held up for longer than a client waits arrive after later ones; a power cut takes unflushed ones."""
_STANDING_STILL = (
    "timing.recovery=4s",
    "faults=[{at: 0s, repeat: 6, every: 8s, fault: {id: stall, for: 3500ms, kind: pause, broker: 1}}]",
)
_SQUARE = ((ADAPTIVE, FIXED, NONE), (NONE, ADAPTIVE, FIXED), (FIXED, NONE, ADAPTIVE))


def _one_linger_per_broker(
    names: Iterable[str], plan: str, around_s: float, setting: str = LINGER, changes: tuple[str, ...] = ()
) -> Iterator[Planned]:
    """Yield three runs of a plan, so that each broker runs once with each value of the append linger ``setting``."""
    for name, lingers in zip(names, _SQUARE, strict=True):
        brokers = ", ".join(f"{broker}: {{{setting}: {linger}}}" for broker, linger in enumerate(lingers, start=1))
        change = f"cluster.brokers={{{brokers}}}"
        yield Planned(name, plan, around_s, (change, *changes), off=(change.replace(ADAPTIVE, FIXED),))


KIP_1224 = Trial(
    kip=1224,
    title="adaptive append linger",
    registration=kip1224.REGISTRATION,
    parts=(
        *_one_linger_per_broker(kip1224.IDLE, "kips/1224-idle", _IDLE_S),
        *_one_linger_per_broker(kip1224.BUSY, "kips/1224-busy", _BUSY_S),
        *_one_linger_per_broker(kip1224.FLUSHED, "kips/1224-busy", _BUSY_S, changes=_FLUSHED),
        Planned(kip1224.FAILOVER, "kips/1224-failover", 90.0, blocks=KILLS, block_s=13.0, off=_FIXED),
        Planned(kip1224.BROKEN, "kips/1224-failover", 90.0, _LOSING, KILLS, 28.0),
        Planned(kip1224.FULL, "kips/1224-full", _FULL_S, (_METRICS,), off=_FIXED),
        Planned(kip1224.STALLED, "kips/1224-full", _FULL_S + 60.0, _STANDING_STILL),
        Planned(kip1224.USER, "kips/1224-idle", _IDLE_S, ("cluster.config.offsets.topic.replication.factor=3",)),
        Planned(
            kip1224.OLD, "kips/1224-idle", _IDLE_S, (f"cluster.brokers={{3: {{{LINGER}: {NONE}}}}}",), kafka=OLD_KAFKA
        ),
        *_one_linger_per_broker(kip1224.SHARE, "kips/1224-share", _IDLE_S, SHARE_LINGER),
        Planned(kip1224.OPEN, "kips/1224-busy", _BUSY_S, (_OPEN,)),
        *_one_linger_per_broker(kip1224.PRODUCTION, "kips/1224-idle", _IDLE_S + _SLOWER_S, changes=(PRODUCTION,)),
    ),
    plots=kip1224.plots,
)


LOSSES = 6
_NO_SLOTS = "cluster.config.max.incremental.fetch.session.cache.slots=0"


def _full(*arms: str) -> tuple[str, ...]:
    return tuple(f"workloads.{arm}.fetch_session=false" for arm in arms)


_OBSERVED = "cluster.wire_proxy=observe"
_WAITING = "fetch.min.bytes: 1000000, fetch.max.wait.ms: 500"
_EACH_CLIENT = (
    f"java: {{client: java, settings: {{{_WAITING}}}}}, reference: {{client: reference, settings: {{{_WAITING}}}}}, "
    f"librdkafka: {{client: confluent, settings: {{{_WAITING.replace('max.wait', 'wait.max')}}}}}"
)
_SLOW_START = "timing.warmup.max=150s"  # several JVMs start on two cores
_TWICE = (
    "faults=[{id: twice, at: 0s, for: 4s, kind: duplicate_request, api: Fetch, client: reader, op: consume, nth: 3, "
    "answer: second}]"
)
_BROKEN = (
    "{id: slow, at: 0s, for: 7s, kind: latency, link: 'client(a) <-> broker(1)', delay: 900ms}",
    "{id: stranger, at: 2s, kind: close_session, client: reader}",
    "{id: restart, at: 10s, for: 3s, kind: power_loss, broker: 1}",
    "{id: again, at: 19s, kind: close_session, client: reader}",
    "{id: dies, at: 22s, for: 2s, kind: kill_client, client: reader, op: consume}",
)
"""A violation of each fact about fetch sessions. Each answer is late by 1.8 s, which is more than the limit of 1 s."""

KIP_227 = Trial(
    kip=227,
    title="incremental fetch requests",
    registration=kip227.REGISTRATION,
    parts=(
        Planned(kip227.BYTES, "kips/227-bytes", 100.0, off=_full(*(f"p{size}.arms.session" for size in kip227.SIZES))),
        Planned(kip227.CONTROL, "kips/227-control", 90.0, off=_full("busy.arms.session")),
        Planned(kip227.SESSIONS, "kips/227-sessions", 45.0, (), LOSSES, 22.0, off=_full("orders.arms.reader")),
        Planned(
            kip227.EVICTED,
            "kips/227-evicted",
            90.0,
            (),
            LOSSES,
            13.0,
            off=_full(*(f"readers.arms.r{number}" for number in range(1, 7))),
        ),
        Planned(
            kip227.CLIENTS,
            "kips/227-bytes",
            150.0,
            (_OBSERVED, _SLOW_START, *(f"workloads.p{size}.arms={{{_EACH_CLIENT}}}" for size in kip227.SIZES)),
            off=(_NO_SLOTS,),
        ),
        Planned(
            kip227.JAVA_SESSIONS,
            "kips/227-sessions",
            60.0,
            (_OBSERVED, _SLOW_START, "workloads.orders.arms={reader: {client: java}}"),
            LOSSES,
            22.0,
            off=(_NO_SLOTS,),
        ),
        Planned(
            kip227.JAVA_EVICTED,
            "kips/227-evicted",
            110.0,
            (
                _OBSERVED,
                _METRICS,
                _SLOW_START,
                *(f"workloads.readers.arms.r{number}.client=java" for number in range(1, 7)),
            ),
            LOSSES,
            15.0,
            off=(_NO_SLOTS,),
        ),
        Planned(
            kip227.REPEATED,
            "kips/227-sessions",
            60.0,
            (_OBSERVED, _SLOW_START, "workloads.orders.arms={reader: {client: java}}", _TWICE),
            LOSSES,
            12.0,
            off=(_NO_SLOTS,),
        ),
        Planned(
            kip227.BROKEN,
            "kips/227-sessions",
            60.0,
            (_OBSERVED, "cluster.controllers=1", f"faults=[{', '.join(_BROKEN)}]"),
            LOSSES,
            42.0,
        ),
        *(
            Planned(
                f"cpu-{size}",
                "kips/227-threads",
                560.0,
                # the logs of a thousand partitions fill the profile's heap
                (f"topics.0.partitions={size}", *(("cluster.heap=1024MiB",) if size == max(kip227.CPU_SIZES) else ())),
                off=_full("readers.arms.session"),
            )
            for size in kip227.CPU_SIZES
        ),
        # pairs of launches alternate in their order, so that a drift of the host has no effect
        *(
            Planned(name, "kips/227-followers", 90.0, changes, off=off)
            for number, pair in enumerate(kip227.FOLLOWERS)
            for name, changes, off in (((pair[0], (), (_NO_SLOTS,)), (pair[1], (_NO_SLOTS,), ()))[:: (-1) ** number])
        ),
        Planned(
            kip227.PRODUCTION,
            "kips/227-bytes",
            100.0 + _SLOWER_S,
            (PRODUCTION,),
            off=_full(*(f"p{size}.arms.session" for size in kip227.SIZES)),
        ),
    ),
    plots=kip227.plots,
)


_NO_SELECTOR = ("cluster.config.replica.selector.class=''",)
_FROM_LEADER = ("workloads.reads.arms.closest.read_replica=false",)

_AGES = {"java": "metadata.max.age.ms: {}", "librdkafka": "topic.metadata.refresh.interval.ms: {}"}
_TIMEOUTS = {"java": "request.timeout.ms: 4000", "librdkafka": "socket.timeout.ms: 4000"}
_LIBRARIES = {"java": "java", "librdkafka": "confluent"}


def _readers(age_ms: int | None, *, rackless: bool, names: Iterable[str] = ("java", "librdkafka")) -> str:
    """Return arms of KIP-392's readers for other people's clients, with ``rackless`` each once more without a rack."""
    arms = []
    for name in names:
        settings = "" if age_ms is None else f"{_AGES[name].format(age_ms)}, {_TIMEOUTS[name]}"
        for suffix, rack in (("", "b"), *((("-rackless", "none"),) if rackless else ())):
            arms.append(
                f"{name}{suffix}: {{client: {_LIBRARIES[name]}, client_rack: {rack}, settings: {{{settings}}}}}"
            )
    return ", ".join(arms)


def _pair(age_ms: int) -> str:
    """Return the arms of KIP-392's readers that are reference clients, with and without the rule."""
    return ", ".join(
        f"{name}: {{client: reference, read_replica: {near}, client_rack: b, "
        f"settings: {{metadata.max.age.ms: {age_ms}, request.timeout.ms: 4000}}}}"
        for name, near in (("closest", "true"), ("leader", "false"))
    )


_SHORT_LEASE = f"{_pair(1_000)}, {_readers(1_000, rackless=False, names=['java'])}"
_LAG = "{id: lag, at: 0s, for: 20s, kind: latency, link: 'replication(b) <-> broker(1)', delay: 8s}"
_FALSIFIED = ", ".join(
    f"{{id: elsewhere-{number}, at: {at}, for: {for_s}s, kind: falsify_hints, hints: [preferred_replica], broker: 3, "
    "probability: 0.5}"
    for number, (at, for_s) in enumerate((("500ms", 6), ("22s", 2)), 1)  # while the replica is in the ISR
)
_STANDING = f"{_pair(20_000)}, {_readers(20_000, rackless=True, names=['java'])}"
_KILLS = (
    "{id: preferred, at: 0s, for: 8s, kind: kill, broker: 2}, {id: leader, at: 22s, for: 8s, kind: kill, broker: 1}, "
    "{id: home, at: 44s, kind: elect, topic: orders}"
)
_STILL = ", ".join(
    f"{{id: still-{name}-{number}, at: {at_s}s, for: {for_s}s, kind: pause_client, client: reads/{name}}}"
    for name in ("closest", "java")
    for number, (at_s, for_s) in enumerate(((1, 7), (23, 12)), 1)
)
_LATE = ", ".join(
    f"{{id: late-{rack}, at: 19s, for: 6s, kind: latency, link: 'replication({rack}) <-> broker(1)', delay: 1500ms}}"
    for rack in "bc"
)

KIP_392 = Trial(
    kip=392,
    title="reads from the closest replica",
    registration=kip392.REGISTRATION,
    parts=(
        Planned("near", "kips/392-near", 165.0, off=_FROM_LEADER),
        Planned(
            "lease",
            "kips/392-lease",
            330.0,
            (_OBSERVED, _SLOW_START, f"workloads.reads.arms={{{_pair(10_000)}, {_readers(10_000, rackless=False)}}}"),
            off=_NO_SELECTOR,
        ),
        Planned(
            "deaths",
            "kips/392-deaths",
            510.0,
            (_OBSERVED, _SLOW_START, f"workloads.reads.arms={{{_pair(20_000)}, {_readers(20_000, rackless=True)}}}"),
            off=_NO_SELECTOR,
        ),
        Planned("selector-off", "kips/392-near", 165.0, _NO_SELECTOR),
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
            off=_NO_SELECTOR,
        ),
        Planned(
            kip392.CLIENTS,
            "kips/392-near",
            210.0,
            (_OBSERVED, _SLOW_START, f"workloads.reads.arms={{{_readers(None, rackless=True)}}}"),
            off=_NO_SELECTOR,
        ),
        Planned(
            kip392.SHORT_LEASE,
            "kips/392-lease",
            330.0,
            (
                _OBSERVED,
                _SLOW_START,
                f"workloads.reads.arms={{{_SHORT_LEASE}}}",
                f"faults.3.fault={{together: [{_LAG}, {_FALSIFIED}]}}",
            ),
        ),
        Planned(
            kip392.BROKEN,
            "kips/392-deaths",
            460.0,
            (
                _OBSERVED,
                _SLOW_START,
                f"workloads.reads.arms={{{_STANDING}}}",
                "workloads.writes.produce.acks=1",
                "workloads.writes.produce.idempotence=false",
                "faults.3.repeat=6",
                f"faults.3.fault={{together: [{_KILLS}, {_STILL}, {_LATE}]}}",
            ),
        ),
        Planned("trickle", "kips/392-near", 200.0, ("workloads.writes.produce.rate=1/s",), off=_FROM_LEADER),
        Planned("production", "kips/392-near", 165.0 + _SLOWER_S, (PRODUCTION,), off=_FROM_LEADER),
    ),
    plots=kip392.plots,
)


DEATHS = 6
_SHIPPED = tuple(f"workloads.orders.arms.{arm}.switch=delayed" for arm in kip794.ARMS)
_OTHERS = {"uniform": "adaptive", "adaptive": "uniform", "availability": "uniform", "sticky": "uniform"}
_UNLIKE = tuple(f"workloads.orders.arms.{arm}.partitioner={other}" for arm, other in _OTHERS.items())
_JAVA_UNLIKE = tuple(
    f"workloads.orders.arms.{arm}.settings.partitioner.adaptive.partitioning.enable={adaptive}"
    for arm, adaptive in (("java", "false"), ("java-uniform", "true"))
)
_NOT_NEAR = ("workloads.orders.arms.near.settings.partitioner.rack.aware=false",)

KIP_794 = Trial(
    kip=794,
    title="the built-in partitioner",
    registration=kip794.REGISTRATION,
    parts=(
        Planned(kip794.TEXT, "kips/794-series", 690.0, off=_UNLIKE),
        Planned(kip794.SHIPPED, "kips/794-series", 690.0, _SHIPPED, off=_UNLIKE),
        Planned(kip794.FOREIGN, "kips/794-foreign", 320.0, off=_JAVA_UNLIKE),
        Planned(kip794.RACK, "kips/794-rack", 105.0, blocks=DEATHS, block_s=55.0, off=_NOT_NEAR),
        Planned(kip794.SHIPPED_PRODUCTION, "kips/794-series", 690.0 + _SLOWER_S, (*_SHIPPED, PRODUCTION), off=_UNLIKE),
    ),
    plots=kip794.plots,
)


MOVES, KIP_951_KILLS, OTHERS = 24, 8, 12
ROUNDS = 15  # of twenty moves of one partition
KAFKA_40, MOVES_40 = "4.0.2", 36
UNDELAYED_MOVES = 63  # in each of four runs: an effect of 5 % with a standard deviation of 28 % a move
AROUND_S = 65.0
_ACKS_1 = ("workloads.moves.produce.acks=1", "workloads.moves.produce.idempotence=false")
_JAVA = tuple(f"workloads.moves.arms.{arm}.client=java" for arm in ("whole", "stripped", "capped"))


_LATIN_SQUARE = (
    ("neither", "retry", "hints", "both"),
    ("both", "hints", "retry", "neither"),
    ("retry", "both", "neither", "hints"),
    ("hints", "neither", "both", "retry"),
)
"""Order of the arms in each undelayed run: of identical arms, the last of four is about 3 % slower than the first."""


def _leader_discovery(*, retry: bool = False, hints: bool = False, merge: bool = False) -> str:
    return f"{{hints: {hints}, immediate_retry: {retry}, endpoint_merge: {merge}, highest_version: true}}".lower()


def _in_order(order: Iterable[str]) -> str:
    """Return the change that lets the arms of ``kips/951-undelayed`` send in this order."""
    arms = []
    for arm in order:
        hints = arm in ("hints", "both")
        rule = _leader_discovery(retry=arm in ("retry", "both"), hints=hints, merge=hints)
        arms.append(f"{arm}: {{client: reference, leader_discovery: {rule}}}")
    return f"workloads.moves.arms={{{', '.join(arms)}}}"


def _without(*arms: str, retry: bool = False, hints: bool = False) -> tuple[str, ...]:
    """Return changes that give ``arms`` the leader discovery of the arm that they are compared with."""
    rule = _leader_discovery(retry=retry, hints=hints)
    return tuple(f"workloads.{arm}.leader_discovery={rule}" for arm in arms)


_OFF = _without("moves.arms.both", "moves.arms.hints")
_BOTH_OFF = _without("moves.arms.both")
_READERS_OFF = _without("readers.arms.told", retry=True)
_STRIPPED = ("faults.1.client=whole",)
_ROLL_OFF = _without("all.arms.both", "one.arms.both")
_120 = ("topics.0.partitions=120",)
_BENCHMARK_S = 600.0
_BENCHMARK_ARMS = {
    "whole": (),
    "stripped": (
        "faults.0={id: treatment, at: 0s, for: 460s, kind: strip_hints, hints: [current_leader, node_endpoints]}",
    ),
    "capped": ("faults.0.versions={Produce: 9}",),
}
"""Changes of ``kips/951-benchmark`` by arm; without them a version that the producer does not use is capped."""
BENCHMARK_SHORT = (
    "workloads.moves.arms.perf.settings.num-records=300000",
    "workloads.moves.arms.perf.settings.warmup-records=150000",
    "timing.warmup.max=40s",
    "faults.0.for=90s",
    "faults.1.at=40s",
    "faults.1.for=10s",
    "faults.2.at=43s",
)
"""Changes of ``kips/951-benchmark`` for a smoke test of 100 s, which decides nothing."""
_DEFAULT_BROKERS = (PRODUCTION, "cluster.config.num.io.threads=''", "cluster.config.replica.fetch.backoff.ms=''")
_DEFAULT_BACKOFF = (PRODUCTION, "cluster.config.replica.fetch.backoff.ms=''")

KIP_951 = Trial(
    kip=951,
    title="leader discovery",
    registration=kip951.REGISTRATION,
    parts=(
        Planned("shared", "kips/951-shared", AROUND_S, (), MOVES, 6.0, off=_OFF),
        Planned("delay-300", "kips/951-move", AROUND_S, (), MOVES, 6.0, off=_OFF),
        *(
            Planned(name, "kips/951-undelayed", AROUND_S, (_in_order(order),), UNDELAYED_MOVES, 6.0, off=_OFF)
            for name, order in zip(kip951.UNDELAYED, _LATIN_SQUARE, strict=True)
        ),
        *(
            Planned(name, "kips/951-busy", AROUND_S, (f"faults.0.delay={delay_ms}ms",), MOVES, 7.5, off=_BOTH_OFF)
            for name, delay_ms in kip951.BUSY_MS.items()
        ),
        *(
            Planned(
                name,
                "kips/951-one",
                AROUND_S,
                (f"cluster.config.replica.fetch.backoff.ms={backoff_ms}",),
                ROUNDS,
                10.6,
                off=_BOTH_OFF,
            )
            for name, backoff_ms in kip951.BACKOFF_MS.items()
        ),
        Planned(kip951.KAFKA_40, "kips/951-undelayed", AROUND_S, (), MOVES_40, 6.0, KAFKA_40, off=_OFF),
        Planned("kill", "kips/951-kill", AROUND_S, (), KIP_951_KILLS, 20.0, off=_BOTH_OFF),
        Planned("delay-100", "kips/951-move", AROUND_S, ("faults.0.delay=100ms",), MOVES, 6.0, off=_OFF),
        Planned("acks-1", "kips/951-undelayed", AROUND_S, _ACKS_1, OTHERS, 6.0, off=_OFF),
        Planned("consume", "kips/951-consume", AROUND_S, (), 40, 6.0, off=_READERS_OFF),
        Planned("consume-1s", "kips/951-consume", AROUND_S, ("faults.0.delay=1s",), OTHERS, 6.0, off=_READERS_OFF),
        Planned("leaves", "kips/951-leaves", AROUND_S, (), OTHERS, 9.5, off=_BOTH_OFF),
        Planned(
            "unknown",
            "kips/951-unknown",
            AROUND_S,
            blocks=8,
            block_s=22.5,
            off=_without("moves.arms.merged", retry=True, hints=True),
        ),
        Planned("librdkafka", "kips/951-foreign", AROUND_S, (), OTHERS, 8.5, off=_STRIPPED),
        Planned("java", "kips/951-foreign", 75.0, _JAVA, MOVES, 8.5, off=_STRIPPED),
        Planned("restart", "kips/951-restart", AROUND_S, (), 8, 15.0, off=_ROLL_OFF),
        Planned("restart-many", "kips/951-restart", AROUND_S, _120, 8, 15.0, off=_ROLL_OFF),
        Planned(
            "production",
            "kips/951-busy",
            AROUND_S + _SLOWER_S,
            (f"faults.0.delay={kip951.BUSY_MS['busy-300']}ms", *_DEFAULT_BACKOFF),
            MOVES,
            8.5,
            off=_BOTH_OFF,
        ),
        Planned("shared-production", "kips/951-shared", AROUND_S + _SLOWER_S, _DEFAULT_BACKOFF, MOVES, 7.0, off=_OFF),
        *(
            Planned(
                kip951_benchmark.name_of(unit, arm),
                "kips/951-benchmark",
                _BENCHMARK_S,
                (*_BENCHMARK_ARMS[arm], *(_DEFAULT_BROKERS if unit in kip951_benchmark.PRODUCTION else ())),
                off=_BENCHMARK_ARMS["stripped"] if arm == "whole" else (),
            )
            for unit, order in kip951_benchmark.orders()
            for arm in order
        ),
    ),
    plots=kip951.plots,
)


CHANGES, CHANGE_S, COORDINATORS = 6, 64.0, 7
_CHANGES_S = 180.0  # until 25 JVMs have started, their groups are complete and their code is warm
_LONG_WARM_UP = ("timing.warmup.max=180s",)  # each of 25 consumers must be steady at the same time
_CLASSIC = (
    "workloads.consumer.consume.protocol=classic",
    "workloads.consumer.consume.assignor=range",
    # in groups of the classic protocol the client sets what brokers set otherwise
    "workloads.consumer.arms.members.settings.session.timeout.ms=9000",
    "workloads.consumer.arms.members.settings.heartbeat.interval.ms=3000",
)


def _clients(client: str) -> tuple[str, ...]:
    """Return changes that let another client than Java's consume."""
    return tuple(f"workloads.{name}.arms.members.client={client}" for name in (*PROTOCOLS, ALONE))


KIP_848 = Trial(
    kip=848,
    title="the consumer rebalance protocol",
    registration=kip848.REGISTRATION,
    parts=(
        *(
            Planned(name, "kips/848-changes", around_s, changes, CHANGES, CHANGE_S, off=_CLASSIC)
            for name, around_s, changes in (
                (kip848.JAVA, _CHANGES_S, _LONG_WARM_UP),
                (kip848.LIBRDKAFKA, _CHANGES_S - _SLOWER_S, _clients("confluent")),
                (kip848.REFERENCE, _CHANGES_S - _SLOWER_S, (*_clients("reference"), *_LONG_WARM_UP)),
            )
        ),
        Planned(kip848.ROLL, "kips/848-roll", 370.0, off=_CLASSIC),
        Planned(kip848.COORDINATOR, "kips/848-coordinator", 150.0, (), COORDINATORS, 26.0, off=_CLASSIC),
        Planned(kip848.ROLL_LIBRDKAFKA, "kips/848-roll", 340.0, _clients("confluent"), off=_CLASSIC),
        Planned(
            kip848.COORDINATOR_LIBRDKAFKA,
            "kips/848-coordinator",
            120.0,
            _clients("confluent"),
            COORDINATORS,
            26.0,
            off=_CLASSIC,
        ),
        Planned(
            kip848.PRODUCTION,
            "kips/848-changes",
            _CHANGES_S + _SLOWER_S,
            (PRODUCTION, *_LONG_WARM_UP),
            CHANGES,
            CHANGE_S,
            off=_CLASSIC,
        ),
    ),
    plots=kip848.plots,
)

CUTS = 6
_NO_ELR = f"cluster.features={{{ELR}: 0}}"
_KILLED = "faults.2={id: last, at: 8s, for: 4s, kind: kill, broker: 1}"

KIP_966 = Trial(
    kip=966,
    title="eligible leader replicas",
    registration=kip966.REGISTRATION,
    parts=tuple(
        Planned(name, "kips/966-last-replica", around_s, changes, CUTS, 34.0, off=off)
        for name, around_s, changes, off in (
            (kip966.ELR, 70.0, (), (_NO_ELR,)),
            (kip966.NO_ELR, 70.0, (_NO_ELR,), ()),
            (kip966.KILLED, 70.0, (_NO_ELR, _KILLED), ()),
            (kip966.PRODUCTION, 70.0 + _SLOWER_S, (PRODUCTION,), (_NO_ELR,)),
        )
    ),
    plots=kip966.plots,
)


LATE_COMMITS, LATE_COMMITS_1, LATE_COMMITS_OF_CLIENTS_1, LATE_BATCHES = 66, 20, 30, 8
_VERSION_1 = "cluster.features={transaction.version: 1}"
# one record in a transaction, and a quick repetition of the commit: when it is answered, no other record is due yet
_EARLY = (
    _VERSION_1,
    "workloads.payments.produce.rate=5/s",
    "workloads.payments.produce.transaction.records=1",
    *(
        f"workloads.payments.arms.{arm}.settings.{setting}.backoff.ms=10"
        for arm in ("librdkafka", "reference")
        for setting in ("reconnect", "retry")
    ),
    "timing.warmup.max=150s",
    "faults.0.together.0.until.sent=0",
    "faults.0.together.1.until.sent=0",
)
_UNVERIFIED = "cluster.config.transaction.partition.verification.enable=false"

KIP_890 = Trial(
    kip=890,
    title="transactions, server-side defence",
    registration=kip890.REGISTRATION,
    parts=(
        Planned(kip890.VERSION_2, "kips/890-late-commit", 75.0, (), LATE_COMMITS, 4.0, off=(_VERSION_1,)),
        Planned(kip890.VERSION_1, "kips/890-late-commit", 75.0, (_VERSION_1,), LATE_COMMITS_1, 4.0),
        Planned(kip890.EARLY, "kips/890-late-commit", 135.0, _EARLY, LATE_COMMITS_1, 4.0),
        Planned(kip890.VERIFIED, "kips/890-late-batch", 70.0, (), LATE_BATCHES, 7.0, off=(_UNVERIFIED,)),
        Planned(kip890.UNVERIFIED, "kips/890-late-batch", 85.0, (_UNVERIFIED,), LATE_BATCHES, 7.0),
        Planned(
            kip890.PRODUCTION,
            "kips/890-late-commit",
            75.0 + _SLOWER_S,
            (PRODUCTION,),
            LATE_COMMITS,
            4.0,
            off=(_VERSION_1,),
        ),
        Planned(kip890.CLIENTS_2, "kips/890-clients", 80.0, (), LATE_COMMITS, 4.0, off=(_VERSION_1,)),
        Planned(kip890.CLIENTS_1, "kips/890-clients", 80.0, (_VERSION_1,), LATE_COMMITS_OF_CLIENTS_1, 4.0),
    ),
    plots=kip890.plots,
    draws_evidence=True,
)


TRIALS: Mapping[int, Trial] = {
    trial.kip: trial for trial in (KIP_951, KIP_227, KIP_794, KIP_392, KIP_1224, KIP_848, KIP_966, KIP_890)
}
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
