"""What the clients' own events decide: immediate retries, what went back, and who was assigned a partition when.

Plain Python. Rules. A batch is retried without back-off at most once for a leader epoch (KIP-951, ``ProducerBatch``):
it is known by the token of its first record and its number of records, for the parts of a batch that was split begin
anew. A partition is a worker's from ``assigned`` to ``revoked``; a worker that is assigned something has nothing from
its earlier life. Of a partition the epochs of the hints that a worker took must rise (KIP-951: a hint is news, or is
refused), and the positions that it committed must not fall, but for a new assignment or a reset.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from aftershock.results.checks.check import SAMPLES_MAX
from aftershock.results.checks.findings.groups import faults_at_work, group_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.measure.facts import Finding

Event = Mapping[str, Any]


def immediate(evidence: Evidence, client: Client) -> Finding:
    """``immediate``: of the (batch, epoch) that were retried, those that were more than once without back-off."""
    retried = [
        line for line in _told(evidence, client) if line["event"] == "batch_retried" and line.get("token") is not None
    ]
    times = Counter({_attempt(line): 0 for line in retried})
    times.update(_attempt(line) for line in retried if line["immediate"])
    broken = sorted({key[3] for key, count in times.items() if count > 1})
    producer = next((number for number, key in evidence.producers.items() if key == client.key), -1)
    samples = tuple((producer, token) for token in broken[:SAMPLES_MAX])
    count = sum(count > 1 for count in times.values())
    return Finding("immediate", "produce", client.key, len(times), count, samples)


def gone_back(evidence: Evidence, client: Client, side: str) -> Mapping[str, tuple[int, int]]:
    """What was told of (leader hints, committed positions) → how many there were, and how many of them went back."""
    counts = {"leader hints": [0, 0], "committed positions": [0, 0]}
    highest: dict[tuple[Any, ...], int] = {}
    for line in _told(evidence, client):
        if line.get("op", side) != side:
            continue
        if line["event"] in ("assigned", "position_reset"):
            highest = {key: value for key, value in highest.items() if key[0] != line.get("worker")}
        for what, place, value in _steps(line):
            key, least = (line.get("worker"), what, place), value + (what == "committed positions")
            counts[what][0] += 1
            counts[what][1] += highest.get(key, value - 1) >= least
            highest[key] = max(value, highest.get(key, value))
    return {what: (told, back) for what, (told, back) in counts.items()}


def _steps(line: Event) -> Iterator[tuple[str, tuple[str, int], int]]:
    """(what, partition, epoch or offset) that a line tells of."""
    if line["event"] == "hint_accepted":
        yield "leader hints", (line["topic"], line["partition"]), line["epoch"]
    elif line["event"] == "committed":
        yield from (("committed positions", (topic, number), offset) for topic, number, offset in line["offsets"])


def _attempt(line: Event) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("worker", "topic", "partition", "token", "records", "epoch"))


def _told(evidence: Evidence, client: Client) -> Iterator[Event]:
    for line in evidence.events:
        if line.get("arm") == client.arm and line.get("workload", client.workload) == client.workload:
            yield line


def co_assigned(evidence: Evidence, client: Client) -> tuple[Finding, Finding]:
    """``co_owned`` and ``co_owned_in_fault`` by assignments: those that began while another member had the partition.

    Members of one group are in workloads that name the same group.
    """
    own = list(_spans(evidence, client))
    others = [span for other in _mates(evidence, client) for span in _spans(evidence, other)]
    at_work = faults_at_work(evidence)
    met = [max(a[1], b[1]) for a in own for b in others if a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])]
    excused = sum(any(start <= at <= end for start, end in at_work) for at in met)
    key = ("consume", client.key, len(own))
    return Finding("co_owned", *key, len(met) - excused), Finding("co_owned_in_fault", *key, excused)


def _mates(evidence: Evidence, client: Client) -> list[Client]:
    group = group_of(evidence, client)
    return [other for other in evidence.clients if group and other != client and group_of(evidence, other) == group]


Span = tuple[tuple[str, int], int, float]


def _spans(evidence: Evidence, client: Client) -> Iterator[Span]:
    """((topic, partition), from, until) of what the worker of a client had."""
    held: dict[tuple[str, int], int] = {}
    for line in sorted(_told(evidence, client), key=lambda one: int(one.get("t_us", 0))):
        for topic, number in line.get("partitions") or () if line["event"] in ("assigned", "revoked") else ():
            begun = held.pop((topic, number), None)
            if begun is not None:
                yield (topic, number), begun, line["t_us"]
            if line["event"] == "assigned":
                held[topic, number] = line["t_us"]
    yield from ((place, begun, float("inf")) for place, begun in held.items())
