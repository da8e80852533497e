"""The story of a run: how it began, a chapter for each fault in order of time, what was owed, the slowest records.

The story as plain text: no line wider than 80 columns, no colours, so that it can be piped.

::

    kill-1: kill, by the plan, on broker 1 in rack a                  26.0 to 34.0 s
      26.040 s   +0.040  injected, 0.040 s after it was begun
      29.003 s   +3.003  arm=a produce: first success again, after 2.931 s without any

The story as Markdown, for a pull request or an issue: a table a fault, and a table of the slowest records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from aftershock.results.checks.check import Status, Verdict
from aftershock.results.checks.obligations.stalls import lanes
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.stored import analysis_of, older_version_note, verdict_of
from aftershock.results.explain.chapter import Chapter, chapter, labels
from aftershock.results.explain.events import Force, Moment, forces
from aftershock.results.explain.record import Followed
from aftershock.results.explain.slow import Part, Tale, slowest
from aftershock.results.text import cell, milliseconds, printable, sentence, table


@dataclass(frozen=True)
class Story:
    """``promises``: the obligations, held or not; ``slowest`` is None, and ``missing`` says why, for an older run."""

    run_id: str
    sentence: str
    opening: tuple[Moment, ...]
    chapters: tuple[Chapter, ...]
    promises: tuple[str, ...]
    slowest: tuple[Tale, ...] | None
    labels: Mapping[str, str]
    missing: str | None

    def to_json(self) -> dict[str, Any]:
        """The story as plain data."""
        return asdict(self)


def story(home: Path) -> Story:
    """The story of the judged run in ``home``. Raises EvidenceError where it was not judged."""
    return told(read(home, {}), verdict_of(home), analysis_of(home))


def told(evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any]) -> Story:
    """The story, of what is already at hand."""
    known = forces(evidence)
    slow = slowest(evidence, analysis, known)
    return Story(
        run_id=verdict.run_id,
        sentence=sentence(verdict),
        opening=tuple(_opening(evidence, analysis)),
        chapters=tuple(_chapters(evidence, analysis, known)),
        promises=tuple(_promises(verdict)),
        slowest=slow,
        labels=labels(evidence),
        missing=None if slow is not None else older_version_note(evidence.home, "the slowest records"),
    )


def _chapters(evidence: Evidence, analysis: Mapping[str, Any], known: Sequence[Force]) -> Iterator[Chapter]:
    owed = lanes(evidence)
    load_end_us = (evidence.run.get("marks") or {}).get("load_end_us") or 1 << 62
    begun = sorted((force for force in known if force.window_us), key=lambda force: force.window_us or (0, 0))
    starts_us = [force.window_us[0] for force in begun if force.window_us]
    for force in [*begun, *(force for force in known if not force.window_us)]:
        start_us = force.window_us[0] if force.window_us else 0
        until_us = min((at_us for at_us in starts_us if at_us > start_us), default=load_end_us)
        yield chapter(evidence, analysis, force, until_us, owed)


def _opening(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[Moment]:
    marks = evidence.run.get("marks") or {}
    if marks.get("load_start_us") is not None:
        yield Moment(marks["load_start_us"], "the load begins")
    if marks.get("steady_start_us") is not None:
        why = (evidence.run.get("warmup") or {}).get("why")
        yield Moment(marks["steady_start_us"], f"warm-up is over{f': {why}' if why else ''}")
    if marks.get("faults_start_us") is not None:
        calm = "; ".join(_steady(evidence, analysis))
        yield Moment(marks["faults_start_us"], f"steady is over{f': {calm}' if calm else ''}")


def _steady(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[str]:
    named = labels(evidence)
    for row in analysis["distributions"]:
        if (row["metric"], row["window"]) == ("produce.latency", "steady") and row["at"].get("0.95") is not None:
            yield f"{named.get(row['client'], row['client'])} p95 {row['at']['0.95'] / 1e3:.4g} ms"


def _promises(verdict: Verdict) -> Iterator[str]:
    words = {Status.PASS: "held", Status.FAIL: "BROKEN"}
    for check in verdict.checks:
        if check.kind == "obligation":
            yield f"{check.id} {check.subject}: {words.get(check.status, 'not decided')}: {check.why}"


WIDTH = 80
_TEXT_AT = 22


def story_text(story: Story) -> str:
    """The whole story, with a newline at its end."""
    blocks = [_filled(story.sentence), _lines(story.opening, None), *map(_chapter, story.chapters)]
    if story.promises:
        blocks.append("\n".join(["What was owed", *(_filled(promise, 2) for promise in story.promises)]))
    blocks.append("\n".join(_slowest(story)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def record_text(found: Followed) -> str:
    """One record's way, with a newline at its end."""
    if found.missing:
        return _filled(found.missing) + "\n"
    first_us = found.moments[0].at_us if found.moments else None
    blocks = [f"Record {found.name}", _lines(found.moments, first_us), *(_filled(note, 2) for note in found.notes)]
    blocks += ["\n".join(_causes(found.tale))] if found.tale else []
    return "\n".join(block for block in blocks if block) + "\n"


def latency(tale: Tale) -> str:
    """``2234 ms``, or that it never ended."""
    ended = tale.record.latency_us is not None
    return f"{milliseconds(tale.record.latency_us)} ms" if ended else "never ended"


def parts(found: Sequence[Part]) -> str:
    """``schedule lag 0.2 ms, in the client or broker 41 ms``."""
    return ", ".join(f"{part.name} {milliseconds(part.us)} ms" for part in found)


def headline(tale: Tale, whose: str) -> str:
    """``1:1580 of arm=metadata, produce, orders/8: 2234 ms, wanted at 45.281 s``."""
    one = tale.record
    where = f", {one.topic}/{one.partition}" if one.partition is not None else ""
    status = "" if one.status == "ok" else f", {one.status}{f' ({one.error})' if one.error else ''}"
    told = f"{one.name} of {whose}, {one.op}{where}: {latency(tale)}{status}"
    return f"{told}, wanted at {one.intended_us / 1e6:.3f} s"


def _chapter(chapter: Chapter) -> str:
    when = "" if chapter.start_us is None else f", {chapter.start_us / 1e6:.1f} to {(chapter.end_us or 0) / 1e6:.1f} s"
    lines = [_filled(f"{chapter.fault}: {chapter.what}{when}"), _lines(chapter.moments, chapter.start_us)]
    return "\n".join(line for line in [*lines, *(_filled(note, 2) for note in chapter.notes)] if line)


def _lines(moments: Sequence[Moment], since_us: int | None) -> str:
    return "\n".join(_line(moment, since_us) for moment in moments)


def _line(moment: Moment, since_us: int | None) -> str:
    after = "" if since_us is None else f"{(moment.at_us - since_us) / 1e6:+9.3f}"
    stamp = f"{moment.at_us / 1e6:9.3f} s {after:<9}".ljust(_TEXT_AT)
    return fill(
        printable(moment.said), WIDTH, initial_indent=stamp, subsequent_indent=" " * _TEXT_AT, break_on_hyphens=False
    )


def _slowest(story: Story) -> Iterator[str]:
    if story.slowest is None:
        yield _filled(story.missing or "")
        return
    yield "The slowest records" if story.slowest else "No record was seen after warm-up."
    for number, tale in enumerate(story.slowest, 1):
        whose = story.labels.get(tale.record.client, tale.record.client)
        yield fill(printable(f"{number:>2}. {headline(tale, whose)}"), WIDTH, subsequent_indent="    ")
        yield from _causes(tale)


def _causes(tale: Tale) -> Iterator[str]:
    if tale.parts:
        yield _filled(parts(tale.parts), 4)
    yield from (_filled(note, 4) for note in tale.notes)


def _filled(text: str, indent: int = 0) -> str:
    return fill(
        printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2 * bool(indent))
    )


_TIMES = ("at", "after", "what")
_SLOWEST = ("record", "where its time went", "faults")


def story_markdown(story: Story) -> str:
    """The whole story."""
    return "".join(_story(story))


def record_markdown(found: Followed) -> str:
    """One record's way."""
    if found.missing:
        return f"{cell(found.missing)}\n"
    since_us = found.moments[0].at_us if found.moments else 0
    lines = [f"### Record {cell(found.name)}\n\n", *_moments(found.moments, since_us), "\n"]
    causes = [parts(found.tale.parts), *found.tale.notes] if found.tale else []
    return "".join([*lines, *(f"- {cell(note)}\n" for note in [*found.notes, *causes] if note)])


def _story(story: Story) -> Iterator[str]:
    yield f"**{cell(story.sentence)}**\n\n"
    yield from _moments(story.opening, 0)
    for part in story.chapters:
        yield f"\n### {cell(part.fault)}\n\n{cell(part.what)}\n\n"
        yield from _moments(part.moments, part.start_us or 0)
        yield "\n"
        yield from (f"- {cell(note)}\n" for note in part.notes)
    if story.promises:
        yield "\n### What was owed\n\n"
        yield from (f"- {cell(promise)}\n" for promise in story.promises)
    yield "\n### The slowest records\n\n"
    if story.slowest is None:
        yield f"{cell(story.missing or '')}\n"
    else:
        yield from table(_SLOWEST, [_row(story, index) for index in range(len(story.slowest))])


def _row(story: Story, index: int) -> tuple[str, str, str]:
    tale = (story.slowest or ())[index]
    whose = story.labels.get(tale.record.client, tale.record.client)
    return headline(tale, whose), parts(tale.parts), "; ".join(tale.notes)


def _moments(moments: Sequence[Moment], since_us: int) -> Iterator[str]:
    if moments:
        yield from table(
            _TIMES,
            [(f"{one.at_us / 1e6:.3f} s", f"{(one.at_us - since_us) / 1e6:+.3f} s", one.said) for one in moments],
        )
