"""Asking one small question through links: does anybody answer, does the link say no, or is there only silence?

A link that did not answer before the fault is not asked during it: silence that was there before proves nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Scene
from aftershock.faults.runtime.waiting import until, within
from aftershock.faults.targets.values import BrokerId, Link

SILENCE_MS = 1_000  # how long a probe waits for an answer that must not come
AGAIN_DEADLINE_MS = 30_000
Answer = Literal["answered", "closed", "silent"]


async def ask(link: Link, scene: Scene) -> Answer:
    """``closed``: refused or hung up on before ``SILENCE_MS`` were over. Takes no longer than these."""
    began_us = scene.clock.now_us()
    try:
        answer_ms = await within(scene.world.probe_ms(link), scene.clock, SILENCE_MS)
    except FaultError:
        return "closed" if scene.clock.now_us() - began_us < SILENCE_MS * 1000 else "silent"
    return "silent" if answer_ms is None else "answered"


async def ask_all(links: Sequence[Link], scene: Scene) -> list[Answer]:
    """The answers of all links, asked at the same time, in order."""
    return list(await asyncio.gather(*(ask(link, scene) for link in links)))


async def answering(links: Iterable[Link], scene: Scene) -> tuple[Link, ...]:
    """The links that answer now, sorted by proxy."""
    ordered = sorted(set(links), key=lambda link: link.proxy)
    answers = await ask_all(ordered, scene)
    return tuple(link for link, answer in zip(ordered, answers, strict=True) if answer == "answered")


async def answer_again(links: Sequence[Link], scene: Scene) -> None:
    """Return once they all answer; FaultError after a deadline. What another fault sits on is that fault's to heal."""
    await until(lambda: _missing(links, scene), scene.clock, AGAIN_DEADLINE_MS)


async def silent(node: BrokerId, scene: Scene) -> str | None:
    """None once a broker answers through a client link that no fault sits on, or has none; else that it doesn't."""
    ways = [link for link in scene.world.links() if link.channel == "client" and link.broker == node]
    free = await _free(ways, scene)
    return None if not free or "answered" in await ask_all(free, scene) else "it does not answer"


def counted(answers: Iterable[Answer]) -> dict[Answer, int]:
    """How many of each, none left out."""
    seen = Counter(answers)
    return {"answered": seen["answered"], "closed": seen["closed"], "silent": seen["silent"]}


async def _missing(links: Sequence[Link], scene: Scene) -> str | None:
    ours = await _free(links, scene)
    dumb = [link.proxy for link, answer in zip(ours, await ask_all(ours, scene), strict=True) if answer != "answered"]
    return f"{len(dumb)} of {len(ours)} links don't answer, {dumb[0]} first" if dumb else None


async def _free(links: Sequence[Link], scene: Scene) -> list[Link]:
    """The links that no toxic sits on, whose proxy is enabled, and whose broker runs."""
    toxics, disabled = await scene.world.toxics(), await scene.world.disabled()
    quiet = [link for link in links if not toxics.get(link.proxy) and link.proxy not in disabled]
    return [link for link in quiet if await scene.world.state(link.broker) == "running"]
