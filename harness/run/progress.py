"""Progress display of a run on stderr, as a live panel or as plain lines; and GitHub annotations."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aftershock.redaction import redact
from aftershock.results.evidence.files import read_json
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.model.text import visible
from aftershock.results.report.verdict_formats import annotations

_PLAIN_PERIOD_S = 60.0
_LIVE_PERIOD_S = 0.5


@dataclass(frozen=True)
class ArmStatus:
    """Record counts of a client process so far, and the p99 latency of its latest records (None without records).

    A consumer counts its delivered records as ``ok``, and has no value ``sent``.
    """

    name: str
    sent: int | None
    ok: int
    failed: int
    p99_ms: float | None


@dataclass(frozen=True)
class Status:
    """Current state of a run; ``elapsed_s`` is the time since the start of the load, ``left_s`` until its planned end.

    ``injected`` has the number of faults so far, and of the plan. ``worst_minute`` has the start, in seconds of the
    load, and the p99 latency in ms of the worst full minute after the warm-up. ``rows`` counts the rows on the disk.
    """

    phase: str
    elapsed_s: float
    faults: Sequence[str]
    arms: Sequence[ArmStatus]
    left_s: float | None = None
    injected: tuple[int, int] | None = None
    worst_minute: tuple[float, float] | None = None
    rows: int | None = None

    @property
    def headline(self) -> str:
        return f"{self.phase}: {', '.join(self.faults)}" if self.faults else self.phase

    @property
    def outlook(self) -> list[str]:
        """Return a line with the time left, the faults and the rows so far, and a line with the worst minute."""
        parts = [] if self.left_s is None else [f"{_time(self.left_s)} left"]
        if self.injected and self.injected[1]:
            parts.append(f"{self.injected[0]}/{self.injected[1]} faults")
        if self.rows is not None:
            parts.append(f"{self.rows:,} rows on disk")
        lines = [", ".join(parts)]
        if self.worst_minute:
            lines.append(f"worst minute: p99 {_ms(self.worst_minute[1])} at {_time(self.worst_minute[0])}")
        return [line for line in lines if line]


class Progress:
    """Printer of messages, and of the current status of a run, on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    def log(self, line: str) -> None:
        # plain text: a plan's names must not be read as markup
        self._console.print(Text(visible(redact(line))), soft_wrap=not self._console.is_terminal)

    @asynccontextmanager
    async def following(self, status: Callable[[], Status]) -> AsyncIterator[None]:
        """Show the run status that ``status()`` returns, periodically, during the ``with`` block."""
        live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None

        async def refresh() -> None:
            while True:
                await asyncio.sleep(_LIVE_PERIOD_S if live else _PLAIN_PERIOD_S)
                if live:
                    live.update(panel(status()), refresh=True)
                else:
                    self._console.print(Text(status_line(status())), soft_wrap=True)

        with live or nullcontext():
            task = asyncio.create_task(refresh())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def status_line(status: Status) -> str:
    arms = []
    for arm in status.arms:
        count = f"{arm.ok} read" if arm.sent is None else f"{arm.ok}/{arm.sent} ok"
        arms.append(f"{arm.name} {count}, p99 {_ms(arm.p99_ms)}")
    parts = [status.headline, *status.outlook, "; ".join(arms)]
    return f"{status.elapsed_s:5.0f} s  {'  '.join(filter(None, parts))}"


def panel(status: Status) -> Group:
    headline = Text(f"{status.elapsed_s:4.0f} s  ")
    headline.append(status.headline, style="bold red" if status.faults else "bold")
    for line in status.outlook:
        headline.append(f"\n{line}")
    if not status.arms:
        return Group(headline)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("client")
    for column in ("sent", "ok", "failed", "p99 now"):
        table.add_column(column, justify="right")
    for arm in status.arms:
        sent = "" if arm.sent is None else str(arm.sent)
        failed = Text(str(arm.failed), style="red" if arm.failed else "")
        table.add_row(Text(arm.name), sent, str(arm.ok), failed, _ms(arm.p99_ms))
    return Group(headline, table)


def p99_ms(latencies_us: Sequence[int]) -> float | None:
    """Return the nearest-rank 99th percentile of a window of latencies; None for an empty window."""
    if not latencies_us:
        return None
    ordered = sorted(latencies_us)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] / 1000


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def annotate_github(
    run_dirs: Iterable[Path], environment: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> None:
    """In GitHub Actions, annotate the lines of the plan with failed checks, and append the runs to the job summary."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    from aftershock.results.report.several import step_summary

    paths = list(run_dirs)
    for path in paths:
        # GitHub wants the plan's path relative to the checkout; None for a plan outside the checkout
        plan = Path(read_json(path / "run.json").get("plan_file") or os.devnull)
        checkout = Path(environment.get("GITHUB_WORKSPACE", ".")).resolve()
        file = str(plan.relative_to(checkout)) if plan.is_relative_to(checkout) else None
        (out or sys.stderr).writelines(f"{line}\n" for line in annotations(verdict_of(path), file))
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as summary_file:
            summary_file.write(step_summary(paths))
