"""Integrity findings from the clients' own events: immediate retries, values that went back, and double assignment.

Plain Python, without Spark. Rules:

* A batch is retried without back-off at most once per leader epoch (KIP-951, ``ProducerBatch``). A batch is identified
  by the token of its first record and its number of records, because the parts of a split batch count as new batches.
* A worker owns a partition from ``assigned`` to ``revoked``. A new assignment replaces the worker's earlier assignment.
* Per partition, the epochs of the leader hints that a worker accepted must rise (KIP-951: a hint that is not newer is
  refused), and its committed positions must not fall, except after a new assignment or a position reset.
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
    """Return ``immediate``: a retried (batch, epoch) is broken if it was retried immediately more than once."""
    retries = [
        line for line in _events(evidence, client) if line["event"] == "batch_retried" and line.get("token") is not None
    ]
    times = Counter({_attempt(line): 0 for line in retries})
    times.update(_attempt(line) for line in retries if line["immediate"])
    tokens = sorted({key[3] for key, count in times.items() if count > 1})
    producer_id = next((number for number, key in evidence.producers.items() if key == client.key), -1)
    samples = tuple((producer_id, token) for token in tokens[:SAMPLES_MAX])
    broken = sum(count > 1 for count in times.values())
    return Finding("immediate", "produce", client.key, len(times), broken, samples)


def _attempt(line: Event) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("worker", "topic", "partition", "token", "records", "epoch"))


def regressions(evidence: Evidence, client: Client, side: str) -> Mapping[str, tuple[int, int]]:
    """Map ``leader hints`` and ``committed positions`` to their number, and the number of values that decreased."""
    counts = {"leader hints": [0, 0], "committed positions": [0, 0]}
    highest: dict[tuple[Any, ...], int] = {}
    for line in _events(evidence, client):
        if line.get("op", side) != side:
            continue
        if line["event"] in ("assigned", "position_reset"):
            highest = {key: value for key, value in highest.items() if key[0] != line.get("worker")}
        for kind, partition, value in _progress(line):
            key = (line.get("worker"), kind, partition)
            # a position may be committed twice, an epoch may not be accepted twice
            lowest = value + (kind == "committed positions")
            counts[kind][0] += 1
            counts[kind][1] += highest.get(key, value - 1) >= lowest
            highest[key] = max(value, highest.get(key, value))
    return {kind: (total, back) for kind, (total, back) in counts.items()}


def _progress(line: Event) -> Iterator[tuple[str, tuple[str, int], int]]:
    """Yield (kind, partition, epoch or offset) of an event."""
    if line["event"] == "hint_accepted":
        yield "leader hints", (line["topic"], line["partition"]), line["epoch"]
    elif line["event"] == "committed":
        yield from (("committed positions", (topic, number), offset) for topic, number, offset in line["offsets"])


def _events(evidence: Evidence, client: Client) -> Iterator[Event]:
    for line in evidence.events:
        if line.get("arm") == client.arm and line.get("workload", client.workload) == client.workload:
            yield line


def co_assigned(evidence: Evidence, client: Client) -> tuple[Finding, Finding]:
    """``co_owned`` and ``co_owned_in_fault``: assignments that began while another member owned the partition.

    Members of one group are in workloads that name the same group.
    """
    group = group_of(evidence, client)
    mates = [mate for mate in evidence.clients if group and mate != client and group_of(evidence, mate) == group]
    own = list(_ownership(evidence, client))
    others = [span for mate in mates for span in _ownership(evidence, mate)]
    fault_spans = faults_at_work(evidence)
    overlaps = [max(a[1], b[1]) for a in own for b in others if a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])]
    excused = sum(any(start <= at <= end for start, end in fault_spans) for at in overlaps)
    key = ("consume", client.key, len(own))
    return Finding("co_owned", *key, len(overlaps) - excused), Finding("co_owned_in_fault", *key, excused)


def _ownership(evidence: Evidence, client: Client) -> Iterator[tuple[tuple[str, int], int, float]]:
    """Yield ((topic, partition), start, end) of each partition that the client's worker was assigned."""
    open_us: dict[tuple[str, int], int] = {}
    for line in sorted(_events(evidence, client), key=lambda event: int(event.get("t_us", 0))):
        for topic, number in line.get("partitions") or () if line["event"] in ("assigned", "revoked") else ():
            start_us = open_us.pop((topic, number), None)
            if start_us is not None:
                yield (topic, number), start_us, line["t_us"]
            if line["event"] == "assigned":
                open_us[topic, number] = line["t_us"]
    yield from ((partition, start_us, float("inf")) for partition, start_us in open_us.items())
