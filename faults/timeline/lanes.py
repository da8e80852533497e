"""A timeline drawn as text lanes, at most 80 columns wide.

::

                   -8         0         10        20        30        40
    phase          sssssssss  ................................rrrrrrrrrr
    latency-1                 ==========
    kill-1..2                            ======----  ===---
                   seconds from the end of steady

Steady is drawn by plan; ``-`` is the room left for injecting and healing. Real phases are cut from the journal. Steps
whose ids differ in their last number alone, and the rounds and blocks of one fault of the plan, share a lane where they
aren't in force at the same time. A plan with blocks has those in its lane of phases.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.timeline.timeline import Step, Timeline

WIDTH = 80
_NAME_WIDTH = 18


def lanes(timeline: Timeline) -> str:
    """The whole picture, without a newline at its end."""
    scale = _Scale(timeline)
    heading = f"{timeline.name}, seed {timeline.seed}: {scale.span_s:g} s of load after warm-up"
    rows = _rows(timeline, scale)
    bars = [_lane(_name(row), _laid(map(scale.bars, row))) for row in rows]
    steps = [line for row in rows for line in _described(row)]
    picture = [_lane("", scale.axis()), _lane("phase", scale.phases()), *bars]
    note = _lane("", "seconds from the end of steady; = in force, - room to heal")
    return "\n".join([heading[:WIDTH], "", *(line.rstrip() for line in picture), note, "", *steps]).rstrip()


class _Scale:
    """From ms after the end of steady to columns of the picture."""

    def __init__(self, timeline: Timeline) -> None:
        self.begin_ms = -timeline.timing.steady_ms
        self.end_ms = timeline.length_ms
        self.recovery_ms = timeline.timing.recovery_ms
        self.fault_ms = timeline.timing.fault_ms
        self.blocks_ms = timeline.blocks_ms
        self.columns = WIDTH - _NAME_WIDTH

    @property
    def span_s(self) -> float:
        return (self.end_ms - self.begin_ms) / 1000

    def column(self, ms: int) -> int:
        return round((ms - self.begin_ms) * self.columns / max(1, self.end_ms - self.begin_ms))

    def bar(self, sign: str, begin_ms: int, end_ms: int) -> str:
        first = min(self.column(begin_ms), self.columns - 1)
        return " " * first + sign * max(1, self.column(end_ms) - first)

    def end(self, step: Step) -> int:
        return step.at_ms + (self.fault_ms if step.for_ms is None else step.for_ms)

    def bars(self, step: Step) -> str:
        force = self.bar("=", step.at_ms, self.end(step))
        room = self.column(self.end(step) + KINDS[step.kind].allowance_ms) - len(force)
        return (force + "-" * max(0, room))[: self.columns]

    def phases(self) -> str:
        names, begins_ms = zip(("steady", self.begin_ms), *self._after_steady(), strict=True)
        line = ""
        for name, end_ms in zip(names, [*begins_ms[1:], self.end_ms], strict=True):
            line += _block(name, self.column(end_ms) - len(line))
        return line

    def _after_steady(self) -> list[tuple[str, int]]:
        """What there is, and when it begins by plan."""
        if self.blocks_ms:
            return [(f"block {number}", begin) for number, begin in enumerate(self.blocks_ms, 1)]
        return [("faults", 0), ("recovery", self.end_ms - self.recovery_ms)]

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
    word = word if width > len(word) + 1 else word.removeprefix("block ")
    if width <= len(word) + 1:
        return word[: max(0, width - 1)] + "|" * (width > 0)
    return f"{word} ".ljust(width - 1, ".") + "|"


def _rows(timeline: Timeline, scale: _Scale) -> list[list[Step]]:
    """The steps of each lane, in the order in which they begin."""
    rows: list[list[Step]] = []
    for step in timeline.steps:
        alike = (row for row in rows if _stem(row[-1]) == _stem(step))
        row = next((row for row in alike if scale.end(row[-1]) <= step.at_ms), None)
        if row is None:
            rows.append([step])
        else:
            row.append(step)
    return rows


def _stem(step: Step) -> tuple[str, str]:
    return step.kind, step.entry if step.entry not in ("", step.id) else re.sub(r"-\d+$", "", step.id)


def _laid(bars: Iterable[str]) -> str:
    """Bars on one lane; one that begins cuts off the room of the one before."""
    line = ""
    for bar in bars:
        begin = len(bar) - len(bar.lstrip())
        line = line[:begin].ljust(begin) + bar[begin:]
    return line


def _name(row: Sequence[Step]) -> str:
    """``nap-2``; of several ``nap-1..3``, ``nap-1,3`` where others are between them, ``nap-*`` of rounds in blocks."""
    if len(row) == 1:
        return row[0].id
    if len({step.id.rpartition("-")[0] for step in row}) > 1:
        return f"{row[0].entry}-*"
    numbers = [int(step.id.rpartition("-")[2]) for step in row]
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{row[0].id}..{numbers[-1]}" if whole else f"{row[0].id},{','.join(map(str, numbers[1:]))}"


def _described(row: Sequence[Step]) -> Iterator[str]:
    """A line for the steps of a lane that say the same, or two."""
    said: dict[str, list[Step]] = {}
    for step in row:
        said.setdefault(f"{step.for_ms} {step.parameters}", []).append(step)
    for steps in said.values():
        step = steps[0]
        lasting = "" if step.for_ms is None else f" for {step.for_ms / 1000:g} s"
        words = ", ".join(f"{key}: {value}" for key, value in step.parameters.items())
        times = ", ".join(f"{each.at_ms / 1000:g}" for each in steps)
        head = f"{_name(steps)}: {step.kind} at {times} s{lasting}"
        line = f"  {head}; {words}"
        yield from [line] if len(line) <= WIDTH else [*_wrapped(head, "  "), *_wrapped(words, "    ")]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
