"""A timeline drawn as text lanes, at most 80 columns wide.

::

                   -8         0         10        20        30        40
    phase          sssssssss  ................................rrrrrrrrrr
    latency-1                 ==========
    kill-1                               ======----
                   seconds from the end of steady

Steady is drawn by plan; ``-`` is the room left for injecting and healing. Real phases are cut from the journal.
"""

import math

from aftershock.faults.kinds import KINDS
from aftershock.faults.timeline import Step, Timeline

WIDTH = 80
_NAME_WIDTH = 18


def lanes(timeline: Timeline) -> str:
    """The whole picture, without a newline at its end."""
    scale = _Scale(timeline)
    heading = f"{timeline.name}, seed {timeline.seed}: {scale.span_s:g} s of load after warm-up"
    bars = [_lane(step.id, scale.bars(step, timeline.timing.fault_ms)) for step in timeline.steps]
    steps = [line for step in timeline.steps for line in _described(step)]
    picture = [_lane("", scale.axis()), _lane("phase", scale.phases()), *bars]
    note = _lane("", "seconds from the end of steady; = in force, - room to heal")
    return "\n".join([heading[:WIDTH], "", *(line.rstrip() for line in picture), note, "", *steps]).rstrip()


class _Scale:
    """From ms after the end of steady to columns of the picture."""

    def __init__(self, timeline: Timeline) -> None:
        self.begin_ms = -timeline.timing.steady_ms
        self.end_ms = timeline.length_ms
        self.recovery_ms = timeline.timing.recovery_ms
        self.columns = WIDTH - _NAME_WIDTH

    @property
    def span_s(self) -> float:
        return (self.end_ms - self.begin_ms) / 1000

    def column(self, ms: int) -> int:
        return round((ms - self.begin_ms) * self.columns / max(1, self.end_ms - self.begin_ms))

    def bar(self, sign: str, begin_ms: int, end_ms: int) -> str:
        first = min(self.column(begin_ms), self.columns - 1)
        return " " * first + sign * max(1, self.column(end_ms) - first)

    def bars(self, step: Step, fault_ms: int) -> str:
        end_ms = step.at_ms + (fault_ms if step.for_ms is None else step.for_ms)
        force = self.bar("=", step.at_ms, end_ms)
        room = self.column(end_ms + KINDS[step.kind].allowance_ms) - len(force)
        return (force + "-" * max(0, room))[: self.columns]

    def phases(self) -> str:
        names = (("steady", self.begin_ms, 0), ("faults", 0, self.end_ms - self.recovery_ms))
        words = [_block(name, self.column(end) - self.column(begin)) for name, begin, end in names]
        rest = self.columns - sum(map(len, words))
        return "".join([*words, _block("recovery", rest)])

    def axis(self) -> str:
        line = [" "] * self.columns
        free = 0
        for second in range(math.ceil(self.begin_ms / 1000), self.end_ms // 1000 + 1, self._tick_s()):
            label, at = str(second), self.column(second * 1000)
            if at >= free and at + len(label) <= self.columns:
                line[at : at + len(label)] = label
                free = at + len(label) + 1
        return "".join(line)

    def _tick_s(self) -> int:
        return next((tick for tick in (1, 2, 5, 10, 30, 60, 300) if self.span_s / tick <= 8), 3600)  # noqa: PLR2004 -- labels


def _lane(name: str, content: str) -> str:
    short = name if len(name) < _NAME_WIDTH else name[: _NAME_WIDTH - 2] + "~"
    return f"{short:<{_NAME_WIDTH}}{content}"


def _block(word: str, width: int) -> str:
    if width <= len(word) + 1:
        return word[: max(0, width - 1)] + "|" * (width > 0)
    return f"{word} ".ljust(width - 1, ".") + "|"


def _described(step: Step) -> list[str]:
    lasting = "" if step.for_ms is None else f" for {step.for_ms / 1000:g} s"
    words = ", ".join(f"{key}: {value}" for key, value in step.parameters.items())
    head = f"{step.id}: {step.kind} at {step.at_ms / 1000:g} s{lasting}"
    line = f"  {head}; {words}"
    return [line] if len(line) <= WIDTH else [f"  {head}"[:WIDTH], f"    {words}"[:WIDTH]]
