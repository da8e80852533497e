"""Probe network links with one small request each."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import InjectionContext
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import wait_until, with_timeout
from aftershock.faults.targets.values import BrokerId, Link

SILENCE_MS = 1_000  # timeout of a probe that must not be answered
SILENCE_US = (SILENCE_MS + 200) * 1000  # time to observe that links don't answer
ANSWER_DEADLINE_MS = 30_000
Answer = Literal["answered", "closed", "silent"]


async def probe(link: Link, context: InjectionContext) -> Answer:
    """Probe a link for ``SILENCE_MS`` at most; return ``closed`` if the connection was refused or closed meanwhile."""
    began_us = context.clock.now_us()
    try:
        answer_ms = await with_timeout(context.world.probe_ms(link), context.clock, SILENCE_MS)
    except FaultError:
        return "closed" if context.clock.now_us() - began_us < SILENCE_MS * 1000 else "silent"
    return "silent" if answer_ms is None else "answered"


async def probe_all(links: Sequence[Link], context: InjectionContext) -> list[Answer]:
    """Probe all links at the same time, and return the results in the order of the links."""
    return list(await asyncio.gather(*(probe(link, context) for link in links)))


async def answering_links(links: Iterable[Link], context: InjectionContext) -> tuple[Link, ...]:
    """Return the links over which a broker answers a probe now, sorted by the links' proxies."""
    ordered = sorted(set(links), key=lambda link: link.proxy)
    answers = await probe_all(ordered, context)
    return tuple(link for link, answer in zip(ordered, answers, strict=True) if answer == "answered")


async def links_to_running_brokers(links: Iterable[Link], context: InjectionContext) -> list[Link]:
    return [link for link in links if await context.world.state(link.broker) == "running"]


async def silence_witness(links: Sequence[Link], context: InjectionContext, held: Sequence[str] = ()) -> Witness:
    """Probe links that answered before the fault, and return a witness that fails if a broker answers now.

    ``held`` has the results of requests over connections that existed before the fault, of which closed connections are
    not counted.
    """
    answers: list[str] = [*await probe_all(links, context), *held]
    answered = answers.count("answered")
    count = answered + answers.count("silent")
    what = "requests that were answered over links that should be silent"
    if not count:
        what = "no broker answers over the fault's links, so the list of its toxics or rules is the only evidence"
    return Witness(what, 0, answered, "answers", count, ok=not answered)


async def wait_until_answering(links: Sequence[Link], context: InjectionContext) -> None:
    """Wait until all links that no other fault affects answer a probe; raise FaultError after a deadline."""

    async def missing() -> str | None:
        healthy = await _healthy(links, context)
        answers = await probe_all(healthy, context)
        silent = [link.proxy for link, answer in zip(healthy, answers, strict=True) if answer != "answered"]
        return f"{len(silent)} of {len(healthy)} links don't answer; the first is {silent[0]}" if silent else None

    await wait_until(missing, context.clock, ANSWER_DEADLINE_MS)


async def unanswered_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None if a broker answers over a client link, or if faults affect all its client links; else a reason."""
    client_links = [link for link in context.world.links() if link.channel == "client" and link.broker == node]
    healthy = await _healthy(client_links, context)
    return None if not healthy or "answered" in await probe_all(healthy, context) else "the node does not answer"


async def _healthy(links: Sequence[Link], context: InjectionContext) -> list[Link]:
    """Return the links without toxics whose proxy is enabled and whose broker runs."""
    toxics, disabled = await context.world.toxics(), await context.world.disabled()
    untouched = [link for link in links if not toxics.get(link.proxy) and link.proxy not in disabled]
    return await links_to_running_brokers(untouched, context)
