"""What was injected by hand, as a plan that runs. Pure: from the values that the evidence holds to the text of a plan.

Rules. A fault stands in it as it was asked for, roles as roles; ``at`` counts from the first, ``for`` is what it
really lasted (both to 0.1 s), so a Ctrl-C after 2 s gives 2 s. What never took hold is left out. Idleness between
faults is cut down to ``IDLE_MS_MAX``: load that nothing happens to shows nothing. Blocks are not kept: what was done by
hand was done once. The rest is the run's own plan, or,
where there was none, its cluster, the topics that the faults name, one workload and what it can be judged on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.conflicts import fighting
from aftershock.faults.plan.document import dump
from aftershock.faults.plan.parsing import Draft, read_draft
from aftershock.faults.plan.units import format_duration
from aftershock.faults.plan.workloads import Workload
from aftershock.faults.targets import roles
from aftershock.faults.timeline.expand import end_ms, expand
from aftershock.faults.timeline.timeline import Marks

IDLE_MS_MAX = 60_000
EVENT = "injected_by_hand"
_STEP_MS = 100
_AIMING_MS = 500  # between a fault's begin and the journal's first line of it, generously
_ARM = "baseline"  # the arm of a workload that names none
_TIMING = {"warmup": {"min": "5s", "max": "60s"}, "steady": "10s", "fault": "5s", "recovery": "10s"}
_SLO = ["lost == 0", "produce.success >= 99%", "produce.latency p95 < 500ms in steady"]

Words = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """The plan's text, and the ids of the injections that never took hold and so are not in it."""

    text: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Injection:
    """One fault that took hold: its words, the topics there were, and its times in us of the run."""

    words: Words
    topics: Sequence[Words]
    began_us: int
    healing_us: int | None

    @property
    def ended_us(self) -> int:
        return self.began_us if self.healing_us is None else self.healing_us


def plan_from(
    run_id: str,
    said: Words,
    events: Iterable[Words],
    journal: Iterable[Words],
    marks: Marks | None,
    seed: int = 0,
) -> Written:
    """The plan.

    Args:
        run_id: what the plan says it comes from.
        said: the run's ``plan.yaml``, a whole plan or a cluster and its topics.
        events: the run's events.
        journal: the lines of its journal.
        marks: when its load began and ended, if it had any.
        seed: the run's, which decides what its plan's own faults came to.

    Raises:
        EvidenceError: nothing was injected by hand, or nothing of it took hold.
    """
    by_hand = [event for event in events if event.get("event") == EVENT]
    taken = list(_taken(by_hand, list(journal)))
    ids = {injection.words["id"] for injection in taken}
    left_out = tuple(event["fault"]["id"] for event in by_hand if event["fault"]["id"] not in ids)
    if not taken:
        why = f"{', '.join(left_out)} never took hold" if left_out else "`aftershock inject` is how"
        raise EvidenceError(f"nothing was injected by hand into {run_id}, so there is no plan to write: {why}")
    return Written(dump(_plan(run_id, said, taken, marks, seed)), left_out)


def _plan(run_id: str, said: Words, taken: Sequence[_Injection], marks: Marks | None, seed: int) -> Words:
    own = list(said.get("faults") or ())
    planned = _planned(own, seed)
    faults = [*planned, *_timed(taken, _origin_us(taken, marks, planned))]
    cluster = Cluster.model_validate(said.get("cluster") or {})
    words = [_words(fault) for fault in _apart(cluster, faults)[len(planned) :]]
    topics = _topics(said, taken, cluster)
    workloads = list(said.get("workloads") or [_load(topics[0]["name"])])
    joined = list(_joined(words, workloads))
    why = f"{said.get('why') or ''} What was injected by hand into {run_id}.".strip()
    return {
        "name": f"{said['name'][:31]}-by-hand" if "name" in said else "by-hand",
        "why": why,
        "cluster": cluster.model_dump(mode="json", exclude_none=True),
        "topics": topics,
        "workloads": [*workloads, *joined],
        "timing": said.get("timing") or _TIMING,
        "faults": [*own, *(_renamed(each, joined) for each in words)],
        "slo": list((said.get("slo") or ()) if "workloads" in said else _SLO),
    }


def _planned(own: Sequence[Words], seed: int) -> list[Fault]:
    """What the plan's own faults came to in the run."""
    read, _ = read_draft({"faults": own})
    return [each.fault for each in expand(read.faults.elements, read.faults.ids, seed).placed]


def _taken(by_hand: Iterable[Words], journal: Sequence[Words]) -> Iterator[_Injection]:
    """The injections that took hold, in the order they began."""
    found = []
    for event in by_hand:
        times = {line["state"]: line["t_us"] for line in journal if line["fault"] == event["fault"]["id"]}
        if "injected" in times:
            found.append(_Injection(event["fault"], event["topics"], times["intended"], times.get("healing")))
    return iter(sorted(found, key=lambda injection: injection.began_us))


def _origin_us(taken: Sequence[_Injection], marks: Marks | None, own: Iterable[Fault]) -> int:
    """The moment that ``at: 0s`` stands for: the end of steady for what was injected under load, else the first.

    What was injected when the load was over comes after the plan's own faults.
    """
    first_us = taken[0].began_us
    if marks is not None and first_us < marks.load_end_us:
        return marks.faults_start_us
    return first_us - max(map(end_ms, own), default=0) * 1000


def _timed(taken: Sequence[_Injection], origin_us: int) -> Iterator[Fault]:
    """The faults with ``at`` and ``for``."""
    skipped_us = 0
    busy_us = taken[0].began_us
    for injection in taken:
        skipped_us += max(0, injection.began_us - busy_us - IDLE_MS_MAX * 1000)
        busy_us = max(busy_us, injection.ended_us)
        at_ms = max(0, _rounded_ms(injection.began_us - skipped_us - origin_us))
        yield _fault({**injection.words, "at": format_duration(at_ms), **_lasting(injection)})


def _lasting(injection: _Injection) -> Words:
    """``for`` as it was; as it was asked for where it was not cut short."""
    asked = injection.words.get("for")
    if asked is None or injection.healing_us is None:
        return {}
    real_ms = max(_STEP_MS, _rounded_ms(injection.healing_us - injection.began_us))
    asked_ms = _fault({**injection.words, "at": "0s"}).for_ or 0
    return {"for": format_duration(real_ms)} if asked_ms - real_ms > _AIMING_MS else {}


def _rounded_ms(us: int) -> int:
    return round(us / 1000 / _STEP_MS) * _STEP_MS


def _apart(cluster: Cluster, faults: Sequence[Fault]) -> list[Fault]:
    """Each that would fight with an earlier one, by the plan's allowances or by rounding, begins when that one ends."""
    apart = list(faults)
    while pair := next(fighting(apart, Draft(cluster)), None):
        earlier, later, _ = pair
        apart[later] = apart[later].model_copy(update={"at": end_ms(apart[earlier])})
    return apart


def _fault(words: Words) -> Fault:
    return KINDS[words["kind"]].model_validate(words)


def _words(fault: Fault) -> dict[str, Any]:
    """The fault as a plan says it: when, what, to whom; what goes without saying left out."""
    words = {"at": "0s"} | fault.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {key: words[key] for key in ("id", "at", "for", "kind") if key in words} | words


def _topics(said: Words, taken: Sequence[_Injection], cluster: Cluster) -> list[Words]:
    """The run's own as they were when last seen, and those that the faults name; one of our own if there are none."""
    seen = {topic["name"]: topic for injection in taken for topic in injection.topics}
    own = {topic["name"]: {**topic, **seen.get(topic["name"], {})} for topic in said.get("topics") or ()}
    named = {name for injection in taken for name in _named(_fault({**injection.words, "at": "0s"}))}
    own |= {name: dict(seen[name]) for name in sorted(named & seen.keys() - own.keys())}
    replication = min(3, len(cluster.broker_racks))
    return list(own.values()) or [{"name": "orders", "partitions": 6, "replication": replication}]


def _named(fault: Fault) -> Iterator[str]:
    """The topics that a fault names."""
    asked = [roles.innermost(roles.parse(text)) for text in fault.roles().values()]
    yield from (role.topic for role in asked if isinstance(role, roles.Leader | roles.Replica))
    yield from fault.topics().values()


def _load(topic: str) -> Words:
    return {"name": "load", "produce": {"topic": topic, "rate": "60/s"}, "consume": {"topic": topic}}


def _joined(faults: Sequence[Words], workloads: Sequence[Words]) -> Iterator[Words]:
    """A workload for each consumer group that a fault names and no workload has, so that it has a coordinator."""
    parsed = [Workload.model_validate(workload) for workload in workloads]
    known = {group for each in parsed for group in each.consumer_groups}
    topic = next(part.topic for each in parsed for part in (each.consume, each.produce) if part)
    missing = {group.removesuffix(f"-{_ARM}") for group in _groups(faults) - known}
    for number, group in enumerate(sorted(missing), 1):
        yield {"name": f"group-{number}", "consume": {"topic": topic, "group": group}}


def _groups(faults: Sequence[Words]) -> set[str]:
    asked = [roles.innermost(roles.parse(text)) for words in faults for text in _fault(words).roles().values()]
    return {role.group for role in asked if isinstance(role, roles.Coordinator)}


def _renamed(words: Any, joined: Sequence[Words]) -> Any:
    """The fault's words with the names that those groups have in a run: ``<group>-<arm>``."""
    if isinstance(words, Mapping):
        return {key: _renamed(value, joined) for key, value in words.items()}
    if isinstance(words, str):
        for group in (each["consume"]["group"] for each in joined):
            words = re.sub(rf"coordinator of {re.escape(group)}(?![\w.-])", f"coordinator of {group}-{_ARM}", words)
    return words
