"""What a night has to do, and what of it a budget pays for. Pure.

Rules. Steps are taken in their order, the most telling first; one that doesn't fit at its shortest is left out, with
its reason, and those after it are still tried. What is left over then lengthens those that can use it, in proportion to
what they want. Without a budget all are done, each for as long as it wants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftershock.errors import AftershockError
from aftershock.harness.explore.budget import shown

CLOSING_S = 120.0  # report, trend and summary


@dataclass(frozen=True)
class Step:
    """A command of ours, and what it takes, least and most; ``{out}``, ``{seed}`` and ``{seconds}`` are the night's."""

    name: str
    command: tuple[str, ...]
    least_s: float
    most_s: float

    def words(self, out: str, seed: int, seconds: float) -> list[str]:
        """The command line."""
        return [word.format(out=out, seed=seed, seconds=int(seconds)) for word in self.command]


AFTERSHOCK = ("-m", "aftershock.harness.cli")
_JUNIT = ("--junitxml", "{out}/nightly-junit.xml")
_SUITE = ("-m", "pytest", "-m", "engine or nightly", "tests", "--aftershock-out", "{out}", *_JUNIT)
_NAMED = ("--seed", "{seed}", "--out", "{out}")


CONTROLS = {"leader-rotation": "metadata"}
"""Plans that are compared with those of other nights, block by block, and the arm by whose values they are divided."""
COMPARED = (*(f"{op}.latency {q} in fault" for op in ("produce", "consume") for q in ("p50", "p95")), "recovery")
"""By what: medians are steady from night to night, and what a fault itself costs is not."""
_BLOCKS = ("--set", "blocks=8")


def _plan(name: str, takes_s: float, *more: str) -> Step:
    return Step(name, (*AFTERSHOCK, "run", name, *more, *_NAMED), takes_s, takes_s)


def _rehearsal(name: str, takes_s: float) -> Step:
    return Step(f"{name} rehearsed", (*AFTERSHOCK, "run", name, "--rehearse", *_NAMED), takes_s, takes_s)


STEPS = (
    Step("explore", (*AFTERSHOCK, "explore", "--budget", "{seconds}s", *_NAMED), 300, 1_200),
    _plan("leader-rotation", 340, *_BLOCKS),
    _plan("demo", 150),
    Step("trials", (*AFTERSHOCK, "kip", "all", "--budget", "{seconds}s", *_NAMED), 480, 3_600),
    _plan("broker-loss", 180),
    _rehearsal("demo", 150),
    _rehearsal("leader-rotation", 240),
    _rehearsal("broker-loss", 180),
    Step("suite", _SUITE, 5_400, 5_400),
)


@dataclass(frozen=True)
class Allotted:
    """How many seconds each step has, in their order; ``left_out``: why others have none."""

    seconds: Mapping[Step, float]
    left_out: Mapping[Step, str]

    @property
    def takes_s(self) -> float:
        """All of it."""
        return sum(self.seconds.values()) + CLOSING_S


def allot(steps: Sequence[Step], budget_s: float | None) -> Allotted:
    """What to do. AftershockError where the budget pays for no step at all."""
    if budget_s is None:
        return Allotted({step: step.most_s for step in steps}, {})
    taken: list[Step] = []
    left_s = budget_s - CLOSING_S
    for step in steps:
        if step.least_s <= left_s:
            taken.append(step)
            left_s -= step.least_s
    if not taken:
        least_s = min(step.least_s for step in steps) + CLOSING_S
        what = f"a budget of {shown(budget_s)} pays for no step of a night"
        raise AftershockError(f"{what}: give --budget {int(least_s / 60) + 1}m or more")
    wanted_s = sum(step.most_s - step.least_s for step in taken)
    share = min(1.0, left_s / wanted_s) if wanted_s else 0.0
    left_out = {step: f"a budget of {shown(budget_s)}" for step in steps if step not in taken}
    return Allotted({step: step.least_s + share * (step.most_s - step.least_s) for step in taken}, left_out)


def worst(codes: Sequence[int]) -> int:
    """The worst of exit codes: 3 ERROR, 1 FAIL, 2 INCONCLUSIVE, 0; any other is an ERROR."""
    order = (0, 2, 1)
    return max(
        (code if code in order else 3 for code in codes), key=lambda c: order.index(c) if c in order else 3, default=0
    )
