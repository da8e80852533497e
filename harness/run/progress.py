"""What a person sees while a run goes on: a live panel on a terminal, plain lines without one. All of it on stderr.

What GitHub's runner is told: annotations on the plan's lines, and a summary of the job's step.

Nothing is said outside GitHub Actions. Workflow commands go to stderr, which the runner reads as well: stdout holds the
result.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aftershock.results.evidence.files import read_json
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.report.verdict_formats import annotations

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.5


@dataclass(frozen=True)
class ArmStatus:
    """One client process now: counts so far, and the p99 of its latest completions in ms (None: none completed).

    ``sent`` is None for a consumer, whose ``ok`` counts what was delivered to it.
    """

    name: str
    sent: int | None
    ok: int
    failed: int
    p99_ms: float | None


@dataclass(frozen=True)
class Status:
    """The run now; ``elapsed_s`` counts from the start of the load."""

    phase: str
    elapsed_s: float
    faults: Sequence[str]
    arms: Sequence[ArmStatus]


class Progress:
    """Shows prose at once, and a status for as long as one is given by `following`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    def say(self, line: str) -> None:
        """One line of prose."""
        # plain text: a plan's names must not be read as markup
        self._console.print(Text(line), soft_wrap=not self._console.is_terminal)

    def following(self, status: Callable[[], Status]) -> "Following":
        """Show ``status()`` again and again, until the context is left."""
        return Following(self._console, status)


class Following:
    """The part of the progress that moves."""

    def __init__(self, console: Console, status: Callable[[], Status]) -> None:
        self._console = console
        self._status = status
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._live:
            self._live.start()
        self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._live:
            self._live.stop()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S)
            status = self._status()
            if self._live:
                self._live.update(panel(status), refresh=True)
            else:
                self._console.print(Text(plain(status)), soft_wrap=True)


def plain(status: Status) -> str:
    """The status on one line."""
    return f"{status.elapsed_s:5.0f} s  {_phase(status)}  {'; '.join(map(_plain_arm, status.arms))}".rstrip()


def _plain_arm(arm: ArmStatus) -> str:
    count = f"{arm.ok} read" if arm.sent is None else f"{arm.ok}/{arm.sent} ok"
    return f"{arm.name} {count}, p99 {_ms(arm.p99_ms)}"


def panel(status: Status) -> Group:
    """The status as a headline, over a small table of its clients if it has any."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("client")
    for column in ("sent", "ok", "failed", "p99 now"):
        table.add_column(column, justify="right")
    for arm in status.arms:
        style = "red" if arm.failed else ""
        sent = "" if arm.sent is None else str(arm.sent)
        table.add_row(Text(arm.name), sent, str(arm.ok), Text(str(arm.failed), style=style), _ms(arm.p99_ms))
    headline = Text(f"{status.elapsed_s:4.0f} s  ")
    headline.append(_phase(status), style="bold red" if status.faults else "bold")
    return Group(headline, table) if status.arms else Group(headline)


def p99_ms(latencies_us: Sequence[int]) -> float | None:
    """Nearest-rank p99 of a window; None when it is empty."""
    if not latencies_us:
        return None
    ordered = sorted(latencies_us)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] / 1000


def _phase(status: Status) -> str:
    return f"{status.phase}: {', '.join(status.faults)}" if status.faults else status.phase


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def annotate_github(
    run_dirs: Iterable[Path], environment: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> None:
    """Annotate what did not pass in these judged runs (on ``out``, default stderr), and add them to the summary."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    from aftershock.results.report.several import step_summary

    paths = list(run_dirs)
    for path in paths:
        verdict = verdict_of(path)
        (out or sys.stderr).writelines(f"{line}\n" for line in annotations(verdict, plan_file(path, environment)))
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(paths))


def plan_file(run_dir: Path, environment: Mapping[str, str]) -> str | None:
    """The run's plan as GitHub names files, relative to the checkout; None where it lies elsewhere."""
    file = Path(read_json(run_dir / "run.json").get("plan_file") or os.devnull)
    checkout = Path(environment.get("GITHUB_WORKSPACE", ".")).resolve()
    return str(file.relative_to(checkout)) if file.is_relative_to(checkout) else None
