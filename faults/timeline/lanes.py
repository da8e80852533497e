"""Picture of a timeline as lines of text (lanes), at most 80 columns wide.

The picture shows planned lengths; ``-`` marks the time reserved for injecting and healing a fault. Faults share a lane
if they never overlap and are repetitions of one fault, or have ids that differ only in the last number.

::

                   -8         0         10        20        30        40
    phase          sssssssss  ................................rrrrrrrrrr
    latency-1                 ==========
    kill-1..2                            ======----  ===---
                   seconds from the end of steady
"""

import math
import re
import textwrap
from collections.abc import Sequence

from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.timeline.timeline import Step, Timeline

WIDTH = 80
_NAME_WIDTH = 18
_COLUMNS = WIDTH - _NAME_WIDTH


def lanes(timeline: Timeline) -> str:
    """Return a picture of the timeline as text, without a final newline."""
    scale = _Scale(timeline)
    heading = f"{timeline.name}, seed {timeline.seed}: {scale.span_s:g} s of load after warm-up"
    rows: list[list[Step]] = []  # the steps of each lane, in the order of their start
    for step in timeline.steps:
        free = (row for row in rows if _stem(row[-1]) == _stem(step) and scale.end_of(row[-1]) <= step.at_ms)
        row = next(free, None)
        if row is None:
            rows.append([step])
        else:
            row.append(step)
    picture = [_lane("", scale.axis()), _lane("phase", scale.phases())]
    for row in rows:
        bars = ""
        for bar in map(scale.bar_of, row):
            start = len(bar) - len(bar.lstrip())  # a bar overwrites the reserved time of the previous one
            bars = bars[:start].ljust(start) + bar[start:]
        picture.append(_lane(_row_name(row), bars))
    note = _lane("", "seconds from the end of steady; = in force, - time to heal")
    descriptions = []
    for row in rows:
        alike: dict[str, list[Step]] = {}  # the steps of the lane with equal parameters
        for step in row:
            alike.setdefault(f"{step.for_ms} {step.parameters}", []).append(step)
        for steps in alike.values():
            step = steps[0]
            duration = "" if step.for_ms is None else f" for {step.for_ms / 1000:g} s"
            parameters = ", ".join(f"{key}: {value}" for key, value in step.parameters.items())
            times = ", ".join(f"{step.at_ms / 1000:g}" for step in steps)
            head = f"{_row_name(steps)}: {step.kind} at {times} s{duration}"
            if len(line := f"  {head}; {parameters}") <= WIDTH:
                descriptions.append(line)
            else:
                descriptions += textwrap.wrap(head, WIDTH, initial_indent="  ", subsequent_indent="      ")
                descriptions += textwrap.wrap(parameters, WIDTH, initial_indent="    ", subsequent_indent="        ")
    return "\n".join([heading[:WIDTH], "", *(line.rstrip() for line in picture), note, "", *descriptions]).rstrip()


class _Scale:
    """Scale of a timeline's picture, which converts ms after the end of ``steady`` to columns of text."""

    def __init__(self, timeline: Timeline) -> None:
        self.start_ms = -timeline.timing.steady_ms
        self.end_ms = timeline.length_ms
        self.recovery_ms = timeline.timing.recovery_ms
        self.fault_ms = timeline.timing.fault_ms
        self.blocks_ms = timeline.blocks_ms

    @property
    def span_s(self) -> float:
        return (self.end_ms - self.start_ms) / 1000

    def column(self, ms: int) -> int:
        return round((ms - self.start_ms) * _COLUMNS / max(1, self.end_ms - self.start_ms))

    def end_of(self, step: Step) -> int:
        return step.at_ms + (self.fault_ms if step.for_ms is None else step.for_ms)

    def bar_of(self, step: Step) -> str:
        end_ms = self.end_of(step)
        first = min(self.column(step.at_ms), _COLUMNS - 1)
        in_force = " " * first + "=" * max(1, self.column(end_ms) - first)
        room = self.column(end_ms + KINDS[step.kind].allowance_ms) - len(in_force)
        return (in_force + "-" * max(0, room))[:_COLUMNS]

    def phases(self) -> str:
        starts = [("steady", self.start_ms)]
        if self.blocks_ms:
            starts += [(f"block {number}", start_ms) for number, start_ms in enumerate(self.blocks_ms, 1)]
        else:
            starts += [("faults", 0), ("recovery", self.end_ms - self.recovery_ms)]
        ends_ms = [*(start_ms for _, start_ms in starts[1:]), self.end_ms]
        line = ""
        for (name, _), end_ms in zip(starts, ends_ms, strict=True):
            width = self.column(end_ms) - len(line)
            label = name if width > len(name) + 1 else name.removeprefix("block ")
            if width <= len(label) + 1:
                line += label[: max(0, width - 1)] + "|" * (width > 0)
            else:
                line += f"{label} ".ljust(width - 1, ".") + "|"
        return line

    def axis(self) -> str:
        line = [" "] * _COLUMNS
        free = 0
        tick_s = next((tick for tick in (1, 2, 5, 10, 30, 60, 300) if self.span_s / tick <= 8), 3600)  # noqa: PLR2004 -- labels
        for second in range(math.ceil(self.start_ms / 1000), self.end_ms // 1000 + 1, tick_s):
            label, at = str(second), self.column(second * 1000)
            if at >= free and at + len(label) <= _COLUMNS:
                line[at : at + len(label)] = label
                free = at + len(label) + 1
        return "".join(line)


def _lane(name: str, content: str) -> str:
    short = name if len(name) < _NAME_WIDTH else name[: _NAME_WIDTH - 2] + "~"
    return f"{short:<{_NAME_WIDTH}}{content}"


def _stem(step: Step) -> tuple[str, str]:
    return step.kind, step.entry if step.entry not in ("", step.id) else re.sub(r"-\d+$", "", step.id)


def _row_name(row: Sequence[Step]) -> str:
    """Return a lane's label, the fault's id (``nap-2``) or a summary like ``nap-1..3``, ``nap-1,3`` or ``nap-*``."""
    if len(row) == 1:
        return row[0].id
    if len({step.id.rpartition("-")[0] for step in row}) > 1:
        return f"{row[0].entry}-*"
    numbers = [int(step.id.rpartition("-")[2]) for step in row]
    is_consecutive = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{row[0].id}..{numbers[-1]}" if is_consecutive else f"{row[0].id},{','.join(map(str, numbers[1:]))}"
