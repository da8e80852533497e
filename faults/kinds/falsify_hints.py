"""``falsify_hints``: brokers' answers name the wrong leader, the wrong address, session or replica.

The wrong broker is the one that the plan names: it is said to lead, in the epoch that was true; its address is given
as that of whoever was named; and consumers are sent to it, and get no records with that answer, as brokers do it. The
wrong session is one that nobody was granted, drawn by the compiler.
"""

import random
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Place, Rest, Scene
from aftershock.faults.problem import Problem
from aftershock.faults.roles import RoleText, resolve
from aftershock.faults.strikes.hinting import HintFault

_SESSIONS = (1 << 30, (1 << 31) - 1)


class FalsifyHints(HintFault):
    """Make hints in brokers' answers lead to the wrong broker, or to a session that there isn't."""

    band: ClassVar[Band] = Band("#636363", "false hints")
    proof: ClassVar[str] = "answers whose hints were falsified, as the proxy counts them each second"
    remedy: ClassVar[str] = "the rule is removed"

    kind: Literal["falsify_hints"] = "falsify_hints"
    broker: RoleText | None = None

    def roles(self) -> dict[Place, str]:
        """The broker that is named in place of the right one."""
        return {("broker",): self.broker} if self.broker else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``session_id``: one that no broker is likely to have granted."""
        draws = super().draw(source)
        return draws | {"session_id": source.randint(*_SESSIONS)} if "session_id" in self.hints else draws

    def deed(self, draws: Draws) -> dict[str, Any]:
        """These."""
        return {"do": "falsify_hints", "hints": self.hints, "session_id": draws.get("session_id", 0)}

    async def resolved(self, scene: Scene, draws: Draws) -> dict[str, Any]:
        """Who plays the role now."""
        return {"broker": await resolve(self.broker, scene.world, draws, "broker")} if self.broker else {}

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """Without a broker only a session can be falsified."""
        yield from super().problems(rest)
        others = [hint for hint in self.hints if hint != "session_id"]
        if others and self.broker is None:
            yield Problem((), f"a false {others[0]} names a broker: say which, like `broker: 2`")
        if not others and self.broker is not None:
            yield Problem(("broker",), "a false session_id names no broker: take this away")
