"""Times in which faults killed or froze client processes, read from the journal, and clients that ended by themselves.

Faults that were injected by hand during the run are included. In a rehearsal clients are never killed or frozen,
because no fault is injected. A client that ended by itself (event ``client_died``) did nothing from then on, as if it
had been killed.
"""

from dataclasses import dataclass

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import Interval, merged

KILLED = "start_clients"
FROZEN = "resume_clients"
POLLING_STOPPED = "resume_polling"
"""The undo verbs, in the journal, of faults that kill clients, freeze them, or keep consumers from polling."""


CLIENT_DIED = "client_died"
"""Event of a client that neither the runner nor a fault had ended; the run went on without it."""

IDENTITY = "producer_identity"
"""Event of the harness with the first batch in the log of each id and epoch of a producer."""


@dataclass(frozen=True)
class ClientDeath:
    """End of a client's process ``worker`` by itself; ``side`` is what the process did.

    ``status`` is its exit status, or the negative number of a signal; None if it only gave up. ``lines`` are the last
    of its output.
    """

    client: Client
    side: str
    worker: str
    at_us: int
    why: str
    status: int | None
    lines: tuple[str, ...]


def deaths_of(evidence: Evidence, *, closing: bool = False) -> tuple[ClientDeath, ...]:
    """Return the deaths of clients, in order of time; with ``closing``, also crashes of clients that had to close.

    A client that crashes while it closes has no work left, and one that left its group can come back.
    """
    found = []
    for line in evidence.events:
        if line.get("event") != CLIENT_DIED or (line.get("closing") and not closing):
            continue
        owner = next((client for client in evidence.clients if client.wrote(line)), None)
        if owner is not None:
            names = str(line.get("op")), str(line.get("worker"))
            why, lines = str(line.get("why") or "it ended"), tuple(map(str, line.get("lines") or ()))
            found.append(ClientDeath(owner, *names, int(line["t_us"]), why, line.get("status"), lines))
    return tuple(sorted(found, key=lambda death: (death.at_us, death.worker)))


def worker_outages(
    evidence: Evidence, *verbs: str, besides: str = "", only: str = "", since: str = "intended"
) -> dict[str, tuple[Interval, ...]]:
    """Return, by client process, the times in which faults with one of the undo ``verbs`` stopped that process.

    Faults of the kind ``besides`` are left out; with ``only``, all faults of other kinds. The times begin with the
    journal's line ``since``, or with its first line if there is none. Clients that ended by themselves count as killed.
    """
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    by_worker: dict[str, list[Interval]] = {}
    for fault in dict.fromkeys(line["fault"] for line in evidence.journal):
        of_fault = [line for line in evidence.journal if line["fault"] == fault and line.get("kind") != besides]
        of_fault = [line for line in of_fault if not only or line.get("kind") == only]
        lines = [line for line in of_fault if (line.get("undo") or {}).get("verb") in verbs]
        if lines:
            healed = [line["t_us"] for line in lines if line["state"] == "healed"]
            begun = [line["t_us"] for line in lines if line["state"] == since] or [lines[0]["t_us"]]
            span = (begun[0], healed[-1] if healed else max(end_us, lines[-1]["t_us"]))
            for worker in lines[0]["targets"]["clients"]:
                by_worker.setdefault(worker, []).append(span)
    if KILLED in verbs and not only:
        for death in deaths_of(evidence):
            by_worker.setdefault(death.worker, []).append((death.at_us, max(end_us, death.at_us)))
    return {worker: merged(spans) for worker, spans in by_worker.items()}


def client_outages(evidence: Evidence, *verbs: str) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """Return, by (side, client key), the times in which such faults stopped any of the client's processes."""
    by_worker = worker_outages(evidence, *verbs)
    outages = {
        (side, client.key): merged([span for worker in client.workers(side) for span in by_worker.get(worker, ())])
        for client in evidence.clients
        for side in ("produce", "consume", "commit", "pipe")
    }
    return {place: spans for place, spans in outages.items() if spans}
