"""The doors at the end of links: who dials which, that they are to be had, and what one sees of them."""

from collections.abc import Sequence

from aftershock.errors import FaultError
from aftershock.faults.fault import Draws, Scene
from aftershock.faults.links import Stretch, resolve
from aftershock.faults.record import Witness
from aftershock.faults.world import World

SHUT_MS = 200  # a refusal takes a ms or two


async def dialled(link: str, scene: Scene, draws: Draws) -> tuple[Stretch, ...]:
    """What the source dials of the links that are named. FaultError if there is none, or one is shut already."""
    chosen = tuple(each for each in await resolve(link, scene.world, draws) if each.stream == "upstream")
    disabled = await scene.world.disabled()
    if taken := sorted(each.link.proxy for each in chosen if each.link.proxy in disabled):
        raise FaultError(f"{taken[0]} is disabled already; let the other fault heal before this one begins")
    return chosen


async def shut(proxies: Sequence[str], world: World) -> Witness:
    """How many of the proxies Toxiproxy has as disabled."""
    disabled = await world.disabled()
    opened = [proxy for proxy in proxies if proxy not in disabled]
    what = "proxies disabled, read back from Toxiproxy" + (f"; {opened[0]} is enabled" if opened else "")
    return Witness(what, len(proxies), len(proxies) - len(opened), "proxies", len(proxies), not opened)
