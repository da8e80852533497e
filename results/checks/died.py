"""Check ``client/died``: no client ended by itself.

A client program that exits or crashes, and a library that ends its process, FAILS its arm; the run goes on for the
others; so does a program that crashes while it closes. A fault of the plan that kills a client is no death. There is a
check only for an arm of which a client died.

INCONCLUSIVE, because the cause may lie elsewhere:

* the program was killed by SIGKILL or SIGTERM, which come from another process, or from a kernel without memory;
* a fault had given the client an error after which a client may end for good (a fenced producer, authorisation).
"""

import signal
from collections.abc import Iterator

from aftershock.results.checks.obligations.reach import Harm, harms_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.outages import ClientDeath, deaths_of
from aftershock.results.model.check import Check, Status

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
_OF_A_CONTAINER = 128
"""What a shell, or ``docker run``, adds to the number of a signal for its own exit status."""
FENCING = ("fence_producer",)
"""Kinds of faults after which a producer may end for good, besides errors of the wire proxy (``FATAL_ERRORS``)."""


def death_checks(evidence: Evidence) -> list[Check]:
    deaths: dict[str, list[ClientDeath]] = {}
    for death in deaths_of(evidence, closing=True):
        deaths.setdefault(death.client.key, []).append(death)
    return [_check(evidence, of_client[0].client, of_client) for of_client in deaths.values()]


def _check(evidence: Evidence, client: Client, deaths: list[ClientDeath]) -> Check:
    harms = harms_of(evidence, max(death.at_us for death in deaths) + 1)
    reasons = {death: _other_cause(death, harms) for death in deaths}
    blamed = [death for death in deaths if reasons[death] is None]
    texts = [_sentence(death, reasons[death]) for death in (blamed or deaths)]
    count = len(deaths)
    first = (blamed or deaths)[0]
    log = f"logs/{first.worker}.log"
    return Check(
        id="client/died",
        kind="client",
        subject=evidence.subject_of(client),
        arm=client.arm,
        status=Status.FAIL if blamed else Status.INCONCLUSIVE,
        observed=float(count),
        threshold=0.0,
        unit="processes",
        n=count,
        minimum=1,
        why="; ".join(texts),
        next=f"read {log} before {first.at_us / 1e6:.1f} s"
        if blamed
        else f"find out who killed it: the kernel's log names processes for which there was no memory; see also {log}",
    )


def _sentence(death: ClientDeath, reason: str | None) -> str:
    last = f': "{death.lines[-1].strip()}"' if death.lines else ""
    lines = " | ".join(line.strip() for line in death.lines[:-1])
    before = f" (before: {lines})" if lines else ""
    text = f"{death.worker} ended by itself at {death.at_us / 1e6:.1f} s: {death.why}{last}{before}"
    return text if reason is None else f"{text}; {reason}"


def _other_cause(death: ClientDeath, harms: list[Harm]) -> str | None:
    status = death.status
    if status is not None and any(status in (-number, _OF_A_CONTAINER + number) for number in _FROM_OUTSIDE):
        return "that signal comes from another process, or from a kernel that has no memory left"
    return next(_fatal(death, harms), None)


def _fatal(death: ClientDeath, harms: list[Harm]) -> Iterator[str]:
    """Yield the faults before a death that may have given the client an error after which a client may end."""
    topics = {name for names in death.client.topics.values() for name in names}
    for harm in harms:
        concerned = not harm.clients or death.worker in harm.clients
        if harm.injected_us > death.at_us or not concerned or (harm.topics and topics.isdisjoint(harm.topics)):
            continue
        if harm.kind in FENCING or (harm.tampering and harm.tampering.fatal):
            yield f"{harm.fault} had given it an error after which a client may end for good"
