"""What a KIP's trial is made of: plans to run one after the other, claims to judge, plots to show."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.plot import Plot


@dataclass(frozen=True)
class Planned:
    """A part: a shipped plan, which ``aftershock run`` could run by itself, with changes as ``--set`` takes them.

    ``blocks``: as many as the trial wants, the plan's own number notwithstanding; None where the plan has none, and
    then it is never shortened. ``block_s``: how long one takes; ``around_s``: all else, from launch to verdict.
    """

    name: str
    plan: str
    blocks: int | None
    block_s: float
    around_s: float
    changes: tuple[str, ...] = ()
    kafka: str | None = None

    def settings(self, blocks: int | None) -> tuple[str, ...]:
        """The changes to its plan, with so many blocks."""
        return self.changes if blocks is None else (*self.changes, f"blocks={blocks}")


@dataclass(frozen=True)
class Trial:
    """``parts``: the most telling first, as those are the ones that a small budget pays for."""

    kip: int
    title: str
    claims: tuple[Claim, ...]
    parts: tuple[Planned, ...]
    plots: Callable[[Parts], tuple[Plot, ...]]

    def hangs_on(self, part: Planned) -> bool:
        """Whether a claim or a control reads the part, or all of what reads it is only reported."""
        return any(part.name in claim.needs for claim in self.claims if claim.role != "report")

    def reads(self, part: Planned, taken: Collection[Planned]) -> bool:
        """Whether something can be said with the part, if no others than those ``taken`` are run."""
        names = {one.name for one in taken if one in self.parts}
        return part in self.parts and any(part.name in claim.needs and names >= {*claim.needs} for claim in self.claims)
