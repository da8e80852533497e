"""What a run may take at most, and whether it fits into what is left of a budget. Pure: the clock is a parameter.

::

    launch (once) ─ warm-up ─ steady ─ faults, recovery ─ last deadline ─ beside: log, restore, verdict

Rules: a run is begun only if it would be over in time even if its warm-up took all it may; what lies beside the load is
guessed at first, and then is what was seen, with a margin.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from aftershock.faults.timeline import Timeline

LAUNCH_S = (
    45.0  # a cluster of three with the wire proxy, its images here (measured: 15 s alone, twice that beside Spark)
)
BESIDE_S = 60.0  # before any was seen: with Spark's start
CLOSING_S = 15.0
_MARGIN = 1.25


def load_s(timeline: Timeline) -> float:
    """How long clients may be busy with a plan: to the last delivery deadline."""
    parts = [part for workload in timeline.workloads for part in (workload["produce"], workload.get("commit")) if part]
    deadline_ms = max((part["deadline_ms"] for part in parts), default=0)
    timing = timeline.timing
    return (timing.warmup_max_ms + timing.steady_ms + timeline.length_ms + deadline_ms) / 1000


@dataclass
class Budget:
    """``total_s`` seconds from when it is made, on ``clock``, less what it takes to put the cluster away.

    ``took``: what each run took in all; ``beside``: of that, what lay beside its load, of those that came to a verdict.
    """

    total_s: float
    clock: Callable[[], float]
    took: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def left_s(self) -> float:
        """What is left for runs."""
        return self.total_s - CLOSING_S - (self.clock() - self._began_s)

    def needs_s(self, timeline: Timeline) -> float:
        """What a plan may take from now to its verdict."""
        return load_s(timeline) + self._beside_s() + (0 if self.took else LAUNCH_S)

    def fits(self, timeline: Timeline) -> bool:
        """Whether it would be over in time."""
        return self.needs_s(timeline) <= self.left_s

    def seen(self, took_s: float, loaded_s: float | None) -> None:
        """A run is over; ``loaded_s``: how long its clients were busy, None where it came to no verdict."""
        self.took.append(took_s)
        if loaded_s is not None:
            self.beside.append(took_s - loaded_s)

    def more(self) -> int:
        """How many runs there is still room for, if they take what those before did on average."""
        if not self.took:
            return 0
        return max(0, int(self.left_s * len(self.took) / sum(self.took)))

    def _beside_s(self) -> float:
        """What lies beside the load, by the worst run but the first, which paid for the launch and Spark's start."""
        return max(self.beside[1:]) * _MARGIN if self.beside[1:] else BESIDE_S


def shown(seconds: float) -> str:
    """``12 m 10 s``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes} m {rest:02d} s" if minutes else f"{rest} s"
