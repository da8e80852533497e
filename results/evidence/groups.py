"""Consumer groups of a run, as its timeline and events show them: readers, commits, and clients that only commit."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aftershock.results.evidence.evidence import Client, Evidence, listed_once

OFFSETS_READ = "offsets_read"
"""Event with the time at which the harness began to read the offsets topic; ``error`` is set if that failed."""


def reader_events(evidence: Evidence, event: str) -> Iterator[tuple[Client, Mapping[str, Any]]]:
    readers = [client for client in evidence.clients if client.consumes_from]
    for line in evidence.events:
        if line.get("event") == event and line.get("op", "consume") == "consume":
            for client in readers:
                if client.wrote(line):
                    yield client, line


def group_of(evidence: Evidence, client: Client) -> str | None:
    """Return the name of a client's consumer group, ``<group>-<arm>``; None if the client joins no group."""
    workloads = {workload["name"]: workload for workload in evidence.timeline["workloads"]}
    group = (workloads.get(client.workload, {}).get("consume") or {}).get("group")
    return f"{group}-{client.arm}" if group else None


class Commit(NamedTuple):
    """Offset commit that a coordinator acknowledged at ``done_us``; ``sent_us`` is None if the client doesn't tell."""

    client: str
    topic: str
    partition: int
    sent_us: int | None
    done_us: int
    offset: int


@listed_once
def commits_of(evidence: Evidence) -> Iterator[Commit]:
    """Yield each acknowledged commit of a consumer."""
    for client, line in reader_events(evidence, "committed"):
        done_us, took_us = int(line["t_us"]), line.get("took_us")
        sent_us = None if took_us is None else done_us - int(took_us)
        for topic, number, offset in line["offsets"]:
            yield Commit(client.key, topic, number, sent_us, done_us, offset)


def committers(evidence: Evidence) -> Iterator[Client]:
    """Yield the clients of ``commit`` workloads whose commits are found in the log of the offsets topic."""
    if "attach" in evidence.timeline.get("cluster", {}):
        return
    for client in evidence.clients:
        if client.commits_to and not evidence.arm_settings(client).get("share"):
            yield client


def committing_readers(evidence: Evidence) -> dict[Client, str]:
    """Return each consumer whose commits must be in the log of the offsets topic, with its group."""
    if read_us(evidence) is None:
        return {}
    clients = dict.fromkeys(client for client, _ in reader_events(evidence, "committed"))
    return {client: group for client in clients if (group := group_of(evidence, client))}


def read_us(evidence: Evidence) -> int | None:
    """Return when the harness read the offsets topic after the end of all consumers; None if it did not try."""
    return next((int(line["t_us"]) for line in evidence.events if line.get("event") == OFFSETS_READ), None)
