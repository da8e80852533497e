"""What a run recorded of services under test: processes that ended by themselves, and work after the load."""

from collections import Counter
from collections.abc import Iterator

from aftershock.results.evidence.evidence import Client, Evidence

TOLD_US = 1_000_000
"""Shortest work after the load that is told, as long as the shortest stall that is measured."""


def stood_still_until_us(evidence: Evidence) -> dict[str, int]:
    """Return, by client, the end of a standstill that the run did not outlast, if inputs were waiting then."""
    return {
        client.key: int(line["t_us"])
        for client in evidence.clients
        for line in evidence.events
        if line["event"] == "pipe_settled" and client.pipe and client.wrote(line) and line.get("positions")
    }


def notes_on_services(evidence: Evidence) -> tuple[str, ...]:
    """Return sentences about services that ended by themselves, were killed at the end, or worked on after the load."""
    load_end_us = max((phase.end_us for phase in evidence.phases), default=0)
    notes: list[str] = []
    for client in evidence.clients:
        if client.pipe:
            name = evidence.labels[client.key].replace("arm=", "").replace("workload=", "")
            notes += [
                f"{name}: {note}" for note in (*_exits(evidence, client), *_after_load(evidence, client, load_end_us))
            ]
    return tuple(notes)


def _exits(evidence: Evidence, client: Client) -> Iterator[str]:
    own = [line for line in evidence.events if client.wrote(line)]
    exits = [line for line in own if line["event"] == "service_exited"]
    if exits:
        statuses = Counter(_how(int(line["status"])) for line in exits)
        how = ", ".join(f"{count} x {status}" if count > 1 else status for status, count in statuses.items())
        first = exits[0]
        said = next(
            (f'; its last line was "{line}"' for line in reversed(first.get("lines") or ()) if line.strip()), ""
        )
        times = "once" if len(exits) == 1 else f"{len(exits)} times"
        started = sum(line["event"] == "service_started" for line in own)
        again = "was started again" if started == len(exits) else f"was started again {started} times"
        yield (
            f"a process of the service ended by itself {times} ({how}), first {first['worker']} at "
            f"{first['t_us'] / 1e6:.1f} s{said}; it {again}"
        )
    killed = sorted({str(line["worker"]) for line in own if line["event"] == "service_killed"})
    if killed:
        yield f"{', '.join(killed)} did not end within 8 s of SIGTERM, and was killed; its last work is unfinished"


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _after_load(evidence: Evidence, client: Client, load_end_us: int) -> Iterator[str]:
    for line in evidence.events:
        if line["event"] != "pipe_settled" or not client.wrote(line):
            continue
        left = sum(max(0, end - position) for _, _, position, end in line.get("positions") or ())
        stood_us = int(line.get("still_us") or 0)
        worked_us = int(line["t_us"]) - stood_us - load_end_us
        if left and line.get("idle"):
            yield (
                f"after the load the service stood still for {stood_us / 1e6:.1f} s, with {left} inputs that its group "
                "had not committed"
            )
        elif left:
            yield f"after the load the service was still at work when the run ended, {left} inputs behind"
        elif worked_us >= TOLD_US:
            yield f"the service was done with the last inputs {worked_us / 1e6:.1f} s after the load"
